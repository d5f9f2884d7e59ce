"""The `mappa` command.

Its commands are those of the environments, and what other installed packages add through the
entry-point group `mappa.commands`. An error that is the user's to mend, and a run that cannot go
on, is one line and exit code 2.
"""

from __future__ import annotations

import errno
import sys
from importlib.metadata import entry_points

import typer

from mappa_envs.commands import add_commands, help_alone

EPILOG = (
    "Exit codes: 0 done, 2 wrong input or a run that cannot go on (one line says why, and how to "
    "mend it), 130 stopped."
)


def build_app() -> typer.Typer:
    """Return the command with everything that installed packages add to it."""
    app = typer.Typer(
        name="mappa",
        help="Train and measure teams of language-model agents.",
        epilog=EPILOG,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    add_commands(app)
    for entry_point in entry_points(group="mappa.commands"):
        entry_point.load()(app)
    return app


def main() -> None:
    """Run the command line."""
    try:
        # standing alone it would print errors of options itself, in boxes
        sys.exit(build_app()(prog_name="mappa", standalone_mode=False))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if isinstance(error, OSError) and (error.filename or full) and code is None:
            code = 2  # a file that cannot be read or written is for the user to mend
        if code is None:
            raise
        typer.echo(f"error: {_message(error)}", err=True)
        sys.exit(code)


def _message(error: Exception) -> str:
    """Return what an error says in one line; one about the options of a command names its help."""
    say = getattr(error, "format_message", None)
    text = str(error) if say is None else str(say())
    line = " ".join(filter(None, map(str.strip, text.splitlines())))
    context = getattr(error, "ctx", None)
    return f"{line.rstrip('.')}; see {context.command_path} --help" if context else line


def _root(context: typer.Context) -> None:
    """Train and measure teams of language-model agents."""
    help_alone(context)

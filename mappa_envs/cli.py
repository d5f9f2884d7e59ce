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

from mappa_envs.commands import add_commands

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
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    add_commands(app)
    for entry_point in entry_points(group="mappa.commands"):
        entry_point.load()(app)
    return app


def main() -> None:
    """Run the command line."""
    try:
        build_app()()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if isinstance(error, OSError) and (error.filename or full) and code is None:
            code = 2  # a file that cannot be read or written is for the user to mend
        if code is None:
            raise
        line = " ".join(filter(None, map(str.strip, str(error).splitlines())))
        typer.echo(f"error: {line}", err=True)
        sys.exit(code)


def _root() -> None:
    """Train and measure teams of language-model agents."""

"""The options of `mappa audit`.

They are apart from what the command does, so that `mappa --help` imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from mappa_envs.errors import CommandError

Run = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run directory, or one file of episodes.")
]
Source = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="NAME",
        help="One file of a RUN, e.g. train-0003. Default: all of training; with "
        "--counterfactual the last.",
    ),
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page too, for a browser.")]
Probe = Annotated[
    bool,
    typer.Option("--probe", help="Change single actions and ask the coach about both versions."),
]
Counterfactual = Annotated[
    str | None,
    typer.Option(
        metavar="SCENARIO|RUN",
        help="Replace each action by others, play on, and compare scores with what changed.",
    ),
]
Scenario = Annotated[
    str,
    typer.Option(
        metavar="SCENARIO", help="Of --probe: whose scripted teams the coach is probed with."
    ),
]
Coach = Annotated[
    list[str] | None,
    typer.Option(
        "--coach",
        metavar="KIND|FILE|KEY=VALUE",
        help="A coach, e.g. rubric; FILE is TOML with a table named coach; repeat for more keys. "
        "Of a RUN a second coach, by default none; else the one audited, by default the rubric.",
    ),
]
Team = Annotated[
    str,
    typer.Option(
        metavar="TEAM,TEAM",
        help="Who plays. Default for --probe: scripted, noop and a faulty team of each role; for "
        "--counterfactual: scripted, or in a RUN, after a change, what is stored.",
    ),
]
Tasks = Annotated[
    str, typer.Option(metavar="N|ID,ID", help="Training tasks; of a RUN the first N episodes.")
]
Resample = Annotated[
    str,
    typer.Option(
        metavar="TEAM,TEAM",
        help="Of --counterfactual: whose actions take the place of those played.",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of --counterfactual: alternatives to each action. Default: one of each such team.",
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, help="Of --counterfactual: episodes of a team on a task.")
]
Repeats = Annotated[
    int,
    typer.Option(
        min=1,
        help="Of --probe: how often the coach judges each action as it was.",
    ),
]
AtOnce = Annotated[
    int, typer.Option(min=1, help="Of --probe: questions to the coach under way at a time.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Of --counterfactual: keep each episode's credits there, a JSON line each.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with that file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

OF_RUN, OF_PROBE = "an audit of a RUN", "--probe"
OF_PLAY, OF_REPLAY = "--counterfactual SCENARIO", "--counterfactual RUN"
_CREDIT = frozenset({"counterfactual", "team", "tasks", "resample", "samples", "out", "resume"})
_APPLY: Mapping[str, frozenset[str]] = {
    OF_RUN: frozenset({"run", "source", "coach"}),
    OF_PROBE: frozenset({"probe", "scenario", "coach", "team", "tasks", "repeats", "at_once"}),
    OF_PLAY: _CREDIT | {"coach", "seeds"},
    OF_REPLAY: _CREDIT | {"source"},
}
"""Which options each kind of audit takes; `html` and `as_json` go with all."""


def check_options(context: typer.Context, kind: str) -> None:
    """Refuse options that have no effect on an audit.

    Args:
        context: Of the command.
        kind: One of the kinds above.

    Raises:
        CommandError: such an option was given.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        kinds = [other for other, options in _APPLY.items() if name in options]
        source = context.get_parameter_source(name)
        if kinds and kind not in kinds and source is not None and source.name == "COMMANDLINE":
            raise CommandError(
                f"{parameter.opts[0]} has no effect on {kind}; leave it out: it is for "
                f"{' and '.join(kinds)}"
            )

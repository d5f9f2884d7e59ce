"""The environments' own commands: `mappa scenario check`, `play`, `bench` and `audit`.

What a command needs is imported when it runs, so that `mappa --help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mappa_envs.commands import audit_options
from mappa_envs.errors import CommandError

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario folder, or the name of a shipped one.")
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key of the scenario; repeat for more."
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add this package's commands to `mappa`."""
    scenarios = typer.Typer()
    scenarios.callback(invoke_without_command=True)(_scenario)
    scenarios.command(name="check")(check)
    app.add_typer(scenarios, name="scenario")
    app.command(name="play")(play)
    app.command(name="bench")(bench)
    app.command(name="audit")(audit)


def help_alone(context: typer.Context) -> None:
    """Print the help of a group of commands, and end, where none of them is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _scenario(context: typer.Context) -> None:
    """Work on scenario folders.

    Example: mappa scenario check my_scenario
    """
    help_alone(context)


def check(scenario: ScenarioArgument, settings: Settings = None) -> None:
    """Check a scenario folder and play a scripted episode; each mistake is one line.

    Example: mappa scenario check scenarios/debate
    """
    from mappa_envs.commands.checking import check_scenario
    from mappa_envs.commands.set_option import scenario_tables

    if not check_scenario(scenario, scenario_tables(settings or ())):
        raise typer.Exit(2)


def play(
    scenario: ScenarioArgument,
    team: Annotated[
        str,
        typer.Option(
            metavar="person|scripted|TEAM", help="Who sits in the seats; a team of the scenario's."
        ),
    ] = "person",
    seats: Annotated[
        list[str] | None,
        typer.Option(
            "--seat",
            metavar="AGENT=person|scripted|TEAM|FILE",
            help="Who sits in one seat; repeat for more. FILE holds texts, --- between them.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="An id, or a number that counts through the split.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train or test. Default: that of the task's id, or train.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the task, and seeds programs.")] = 0,
    coach: Annotated[
        bool | None,
        typer.Option(help="Score by the rubrics. Default: if every role has one."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write transcript and ledger there, as JSON lines."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Play one episode with a person, a team's role or a file of texts in each seat.

    A text of several lines ends with a line that holds a single dot, or with Ctrl-D.

    Example: mappa play mathchat --team scripted --seat verifier_0=person --task 3
    """
    from mappa_envs.commands.playing import Choice, play_scenario
    from mappa_envs.commands.set_option import scenario_tables

    choice, tables = Choice(split, task, seed), scenario_tables(settings or ())
    play_scenario(scenario, team, seats or [], choice, coach, save, tables)


def bench(
    scenario: ScenarioArgument,
    team: Annotated[
        str, typer.Option(metavar="TEAM,TEAM", help="Teams of the scenario's, or scripted.")
    ] = "scripted",
    tasks: Annotated[
        str,
        typer.Option(
            metavar="all|N|ID,ID",
            help="N are the first N of each split: with both splits up to twice N.",
        ),
    ] = "all",
    split: Annotated[str, typer.Option(help="train, test or both.")] = "both",
    seeds: Annotated[int, typer.Option(min=1, help="Episodes of a team on a task.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, help="Episodes under way at a time.")] = 2,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep each episode there, a JSON line each.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with that file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    settings: Settings = None,
) -> None:
    """Play scripted teams on many tasks and print their mean outcomes.

    Example: mappa bench dsbench --team oracle,weak,noop --out results.jsonl
    """
    from mappa_envs.commands.benching import Request, bench_scenario
    from mappa_envs.commands.set_option import scenario_tables

    tables = scenario_tables(settings or ())
    request = Request(scenario, team, tasks, split, seeds, at_once, out, resume, tables)
    bench_scenario(request, as_json=as_json)


def audit(
    context: typer.Context,
    run: audit_options.Run = None,
    source: audit_options.Source = "",
    coach: audit_options.Coach = None,
    html: audit_options.Html = None,
    probe: audit_options.Probe = False,
    counterfactual: audit_options.Counterfactual = None,
    scenario: audit_options.Scenario = "mathchat",
    team: audit_options.Team = "",
    tasks: audit_options.Tasks = "2",
    repeats: audit_options.Repeats = 5,
    at_once: audit_options.AtOnce = 8,
    resample: audit_options.Resample = "noop",
    samples: audit_options.Samples = None,
    seeds: audit_options.Seeds = 1,
    out: audit_options.Out = None,
    resume: audit_options.Resume = False,
    as_json: audit_options.AsJson = False,
) -> None:
    """Audit a coach: from a run's stored episodes, by --probe, or by --counterfactual.

    Example: mappa audit runs/mathchat-cpu --html audit.html
    """
    from mappa_envs.audit import documents
    from mappa_envs.commands.auditing import Request, audit_run
    from mappa_envs.commands.counterfactual import CounterfactualRequest, audit_counterfactual
    from mappa_envs.commands.delivering import deliver
    from mappa_envs.commands.probing import ProbeRequest, probe_scenario
    from mappa_envs.commands.stored_runs import is_run

    if sum([run is not None, probe, counterfactual is not None]) != 1:
        raise CommandError("give one of: a RUN, --probe, --counterfactual SCENARIO or RUN")
    if html is not None and not html.parent.is_dir():
        raise CommandError(f"--html is {html}: there is no folder {html.parent}; make it first")
    table = tuple(coach or ())
    if counterfactual is not None:
        replays = is_run(counterfactual)
        audit_options.check_options(
            context, audit_options.OF_REPLAY if replays else audit_options.OF_PLAY
        )
        credit = CounterfactualRequest(
            counterfactual,
            teams=team,
            resample=resample,
            samples=samples,
            tasks=tasks,
            seeds=seeds,
            coach=table,
            episodes=source,
            out=out,
            resume=resume,
        )
        document = documents.credit_document(audit_counterfactual(credit))
    elif run is not None:
        audit_options.check_options(context, audit_options.OF_RUN)
        document = documents.run_document(audit_run(Request(run, source, table)))
    else:
        audit_options.check_options(context, audit_options.OF_PROBE)
        probes = ProbeRequest(scenario, table, team, tasks, repeats=repeats, at_once=at_once)
        document = documents.probe_document(probe_scenario(probes))
    deliver(document, html, as_json=as_json)

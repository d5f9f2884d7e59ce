"""The trainer's commands: `mappa train`, `plan`, `eval`, `compare`, `show` and `export`.

Torch is imported by the command that needs it, when it needs it.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from mappa_trainer.errors import RecipeError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def add_commands(app: typer.Typer) -> None:
    """Add this package's commands to `mappa`."""
    app.command(name="train")(train)
    app.command(name="plan")(plan)
    app.command(name="eval")(evaluate)
    app.command(name="show")(show)
    app.command(name="compare")(compare)
    app.command(name="export")(export)


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe file, TOML.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one key of the recipe."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory to make; default runs/NAME-TIME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run instead.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run would do and cost, and end.")
    ] = False,
) -> None:
    """Train a team. Ctrl-C stops cleanly; --resume goes on.

    Example: mappa train scenarios/recipes/mathchat-cpu.toml --set train.iterations=2
    """
    if (recipe is None) == (resume is None) or (resume and (settings or out)):
        raise RecipeError("give either a recipe (with --set and --out if you like) or --resume RUN")
    if dry_run and (recipe is None or out):
        raise RecipeError("--dry-run makes no run: give it a recipe (with --set if you like)")
    _offline()
    from mappa_trainer import train as training
    from mappa_trainer.console import Console
    from mappa_trainer.dry_run import dry_run as rehearse
    from mappa_trainer.recipe import load_recipe

    if resume:
        reached = training.resume(resume, Console())
    else:
        assert recipe is not None
        loaded = load_recipe(recipe, settings or ())
        if dry_run:
            rehearse(loaded)
            return
        path = out or Path("runs") / f"{loaded.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        reached = training.start(loaded, path, Console())
    if not reached:
        raise typer.Exit(130)


def plan(
    recipe: Annotated[Path, typer.Argument(help="A recipe file, TOML.")],
    gpus: Annotated[
        str, typer.Option(metavar="COUNTxSIZE", help="Devices, e.g. 8x80GB, 1x24GiB or 80GB.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one key of the recipe."),
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER_OR_JSON",
            help="The model's configuration, where its folder is not on this machine.",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Of the longest prompt; default: what model.token_budget leaves."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what memory a run takes, where it fits, and what its coach is asked.

    No weights are needed: the model's configuration is enough.

    Example: mappa plan scenarios/recipes/mathchat-qwen3-4b.toml --gpus 8x80GB
    """
    _offline()
    from mappa_trainer import plan as planning

    report = planning.plan_run(
        recipe, settings or (), gpus, model_config=model_config, prompt_tokens=prompt_tokens
    )
    if as_json:
        typer.echo(planning.as_json(report))
    else:
        planning.show(report)


def evaluate(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|RECIPE", help="A run directory, or a recipe file.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Who plays: checkpoint:PATH, base, URL#MODEL or package.module:function. Default: "
            "the newest checkpoint of the run, or the recipe's base model."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="A way to evaluate that ships, e.g. aime-2025, amc-32 or dsbench-6, or a TOML "
            "file; other options win over what it says."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Where a preset's problem files are; default $MAPPA_DATA_DIR."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train or test. Default: test.", show_default=False)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Episodes of each problem. Default: 1.")
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=1, help="Default: eval.problems of the recipe.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Default: that of the recipe's evaluations.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Most likely tokens.")] = False,
    coach: Annotated[
        bool, typer.Option("--coach", help="Have actions judged, as the recipe says.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one key of the recipe."),
    ] = None,
    allow_overlap: Annotated[
        bool,
        typer.Option("--allow-overlap", help="Play test problems that were trained on, too."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="With a recipe, where episodes go; default runs/NAME-eval-TIME."),
    ] = None,
) -> None:
    """Evaluate a team on held-out problems. Nothing is trained.

    No coach is asked without --coach. What is stopped, the same command goes on with.

    Examples: mappa eval runs/mathchat-cpu --samples 4

    mappa eval runs/mathchat-cpu --policy base --preset aime-2025 --data problems

    mappa eval scenarios/recipes/mathchat-cpu.toml --policy http://127.0.0.1:8000/v1#qwen3-4b

    mappa eval scenarios/recipes/mathchat-cpu.toml --policy my_team:say --out runs/scripted
    """
    if greedy and temperature is not None:
        raise RecipeError(f"--greedy and --temperature {temperature:g} exclude each other")
    if temperature is not None and not math.isfinite(temperature):
        raise RecipeError(f"--temperature is {temperature}; give a finite number from 0")
    if split not in (None, "train", "test"):
        raise RecipeError(f"--split is {split!r}; it must be 'train' or 'test'")
    _offline()
    from mappa_trainer.evaluate_run import Wanted, evaluate_run

    wanted = Wanted(
        policy=policy,
        split=None if split is None else "train" if split == "train" else "test",
        samples=samples,
        problems=problems,
        temperature=0.0 if greedy else temperature,
        coach=coach,
        settings=settings or (),
        preset=preset,
        data=data,
        allow_overlap=allow_overlap,
    )
    evaluate_run(source, wanted, out)


def compare(
    one: Annotated[Path, typer.Argument(help="A run directory or an episode file of a run.")],
    other: Annotated[Path, typer.Argument(help="The same; the change is from one to other.")],
) -> None:
    """Compare two stored evaluations of the same problems, paired by problem.

    Of a run directory the last evaluation is taken.

    Example: mappa compare runs/first runs/second/episodes/eval-0016-greedy.jsonl
    """
    from mappa_trainer.compare import compare as show_change

    show_change(one, other)


def show(
    run: RunArgument,
    episode: Annotated[int, typer.Option(min=0, help="Counts through the file(s), from 0.")] = 0,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="An episode file, e.g. eval-0000-greedy."),
    ] = None,
) -> None:
    """Print an episode as a conversation with each action's score and reasons.

    Example: mappa show runs/mathchat-cpu --episode 0
    """
    from mappa_trainer.show import show_episode

    show_episode(run, episode, source)


def export(
    run: RunArgument,
    agent: Annotated[str, typer.Option(help="Whose weights, e.g. solver_0.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default exports/ in the run.")
    ] = None,
) -> None:
    """Write an agent's weights as a model that plain transformers loads, with a model card.

    Example: mappa export runs/mathchat-cpu --agent solver_0
    """
    _offline()
    import rich

    from mappa_trainer.export import export as write

    folder = write(run, agent, out)
    rich.get_console().print(f"exported to {folder}", highlight=False, markup=False)


def _offline() -> None:
    """Keep the model library from asking a hub for what is on disk, and from its progress bars."""
    import os

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

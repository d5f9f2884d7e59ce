"""`mappa plan`: what memory a run takes, where it fits, and what it will be asked to do.

Memory comes from the model's configuration alone (see `capacity` and `placement`), work and cost
from a look at the environment (see `dry_run`). Nothing is written or loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from mappa_trainer.capacity import Shape, read_shape
from mappa_trainer.console import Console
from mappa_trainer.dry_run import Survey, say_plan, survey
from mappa_trainer.errors import ModelError, RecipeError
from mappa_trainer.placement import (
    USABLE,
    Devices,
    Group,
    Placement,
    TeamMemory,
    longest_prompt,
    parse_devices,
    place_sharded,
    place_today,
    team_memory,
)
from mappa_trainer.recipe import Recipe, load_recipe

_SHAPES = "shapes"
"""The folder beside a recipe with configurations of models that are not on this machine."""


def find_shape(recipe: Recipe, recipe_file: Path, config: Path | None) -> tuple[Shape, Path]:
    """Return the shape of the recipe's base and where it was read.

    It is looked for in `config`, in the base's folder, and in `shapes/` beside the recipe.

    Raises:
        ModelError: it is in none of them, or is no configuration of such a model.
    """
    base = Path(recipe.model.base).expanduser()
    beside = recipe_file.parent / _SHAPES / f"{base.name}.json"
    for place in (config, base if base.is_dir() else None, beside if beside.is_file() else None):
        if place is not None:
            return read_shape(place), place
    raise ModelError(
        f"model.base {recipe.model.base!r} is no folder on this machine, and {beside} is not "
        "there; give the model's config.json, or its folder, by --model-config"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A change of settings, and what the team takes with it."""

    settings: tuple[str, ...]
    """As `--set` takes them, or other options of the command."""
    today: Placement
    sharded: Placement


def choices(
    recipe: Recipe, agents: Sequence[str], shape: Shape, prompt: int, devices: Devices
) -> Iterator[Choice]:
    """Yield settings that take less memory, one by one, and at last all of them together."""
    together: list[str] = []
    changed, shorter = recipe, prompt
    for setting, changes in _savings(recipe, prompt):
        one, other = _changed(recipe, changes), changes.get("prompt", prompt)
        if team_memory(one, agents, shape, other) == team_memory(recipe, agents, shape, prompt):
            continue
        yield _choice((setting,), one, agents, shape, other, devices)
        together.append(setting)
        changed, shorter = _changed(changed, changes), changes.get("prompt", shorter)
    if len(together) > 1:
        yield _choice(tuple(together), changed, agents, shape, shorter, devices)


def _savings(recipe: Recipe, prompt: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = recipe.model
    less: Mapping[str, Any] = {
        "gradient_checkpointing": True,
        "offload_optimizer": True,
        "sampler_precision": "bfloat16",
        "tuning": "lora",
    }
    for key, value in less.items():
        if getattr(table, key) != value:
            yield f"model.{key}={str(value).lower()}", {key: value}
    half, shorter = max(1, table.token_budget // 2), max(1, prompt // 4)
    yield f"model.token_budget={half}", {"token_budget": half}
    yield (
        f"model.token_budget={half} --prompt-tokens {shorter}",
        {
            "token_budget": half,
            "prompt": shorter,
        },
    )


def _changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    table = {key: value for key, value in changes.items() if key != "prompt"}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=table)})


def _choice(
    settings: tuple[str, ...],
    recipe: Recipe,
    agents: Sequence[str],
    shape: Shape,
    prompt: int,
    devices: Devices,
) -> Choice:
    team = team_memory(recipe, agents, shape, prompt)
    return Choice(settings, place_today(team, devices), place_sharded(team, devices))


def without_missing_files(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Leave out of `[scenario]` what names a file that is not here; return what was left out.

    Memory does not depend on it, and a plan is made before the files are brought.
    """
    table = recipe.scenario or {}
    missing = [
        key
        for key, value in table.items()
        if isinstance(value, str) and Path(value).suffix and not Path(value).exists()
    ]
    kept = {key: value for key, value in table.items() if key not in missing}
    left_out = [f"scenario.{key} = {table[key]!r}" for key in missing]
    return recipe.model_copy(update={"scenario": kept}) if missing else recipe, left_out


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `mappa plan` says."""

    recipe: str
    model: str
    """The file or folder of the configuration."""
    shape: Shape
    devices: Devices
    prompt: int
    left_out: tuple[str, ...]
    """Keys of `[scenario]` that name files which are not here."""
    team: TeamMemory
    today: Placement
    sharded: Placement
    choices: tuple[Choice, ...]
    """Where the team does not fit as it is."""
    survey: Survey
    tokens: Mapping[str, int]
    """For each agent the most that it generates in the run; empty where it is not known."""


def plan_run(
    recipe_file: Path,
    settings: Sequence[str],
    gpus: str,
    *,
    model_config: Path | None = None,
    prompt_tokens: int | None = None,
) -> Report:
    """Work out everything; see `mappa plan --help`.

    Raises:
        RecipeError: the recipe or the devices are not as they must be.
        ModelError: there is no configuration of the model, or none that is understood.
    """
    devices = parse_devices(gpus)
    recipe, left_out = without_missing_files(load_recipe(recipe_file, settings))
    shape, place = find_shape(recipe, recipe_file, model_config)
    seen = survey(recipe)
    prompt = prompt_tokens or longest_prompt(recipe, shape, seen.agents)
    new = max(map(recipe.sampling.limit, seen.agents))
    if prompt + new > shape.context:
        raise RecipeError(
            f"a prompt of {prompt:,} tokens and an action of {new:,} are more than the model's "
            f"context of {shape.context:,}; lower --prompt-tokens or sampling.max_new_tokens"
        )
    team = team_memory(recipe, seen.agents, shape, prompt)
    today, sharded = place_today(team, devices), place_sharded(team, devices)
    crowded = not today.fits
    return Report(
        recipe=recipe.name,
        model=str(place),
        shape=shape,
        devices=devices,
        prompt=prompt,
        left_out=tuple(left_out),
        team=team,
        today=today,
        sharded=sharded,
        choices=tuple(choices(recipe, seen.agents, shape, prompt, devices)) if crowded else (),
        survey=seen,
        tokens=_tokens(recipe, seen),
    )


def _tokens(recipe: Recipe, seen: Survey) -> dict[str, int]:
    episodes = seen.planned.episodes + seen.planned.evaluation_episodes
    return {
        agent: episodes * most * recipe.sampling.limit(agent)
        for agent, (_, most) in seen.actions.items()
    }


def as_json(report: Report) -> str:
    """Return a report as JSON, with whether each placement fits."""
    document = asdict(report)
    placements = [
        (document, report),
        *zip(document["choices"], report.choices, strict=True),
    ]
    for written, one in placements:
        for name in ("today", "sharded"):
            placement: Placement = getattr(one, name)
            written[name] |= {"fits": placement.fits, "excess": placement.excess}
    return json.dumps(document, indent=2)


def show(report: Report) -> None:
    """Print a report."""
    console = Console()
    devices = report.devices
    console.say(
        f"run {report.recipe}, model {report.model}, {report.shape.parameters:,} parameters"
    )
    for key in report.left_out:
        console.say(f"{key} is not here; planned with the environment's own instead")
    console.table(sets_table(report.team))
    console.say(
        f"cache: {report.team.rows} rows of a prompt of {report.prompt:,} tokens and an action; "
        "--prompt-tokens plans with shorter prompts"
    )
    console.say(
        f"devices: {devices.count} of {_gb(devices.size)}, of which {USABLE:.0%} are counted on: "
        f"{_gb(devices.usable)}"
    )
    console.table(placement_table("today, the whole team on one device", report.today))
    console.say(verdict(report.today))
    if report.today.fits and devices.count > 1:
        console.say("this version leaves the other devices idle")
    if devices.count > 1:
        title = f"a plan, not in this version: each set over {report.sharded.divided} devices"
        console.table(placement_table(title, report.sharded))
        console.say(verdict(report.sharded))
    if report.choices:
        console.table(choices_table(report.choices, several=devices.count > 1))
    for agent, tokens in report.tokens.items():
        console.say(f"{agent} generates at most {tokens:,} tokens in the run")
    say_plan(console, report.survey.planned)


def sets_table(team: TeamMemory) -> Table:
    """Return a table of what each set of weights takes, and the base that all share."""
    title = "memory of each set of weights; gradients, activations and cache take turns"
    table = Table(title=title, title_justify="left")
    columns = ("trained", "weights", "copy", "gradients", "moments", "activations", "cache", "sum")
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    for one in team.sets:
        training = one.training
        parts = (
            training.weights,
            one.copy,
            training.gradients,
            training.moments,
            training.activations + training.casts,
            team.rows * (one.cache + one.row),
        )
        players = "" if one.agents == (one.name,) else f": {', '.join(one.agents)}"
        cells = map(_gb, (*parts, sum(parts)))
        table.add_row(
            escape(f"{one.name}{players} ({one.tuning})"), f"{training.trained:,}", *cells
        )
    shared = (team.base, team.base_copy)
    table.add_row("the base", "0", *map(_gb, shared), "", "", "", "", _gb(sum(shared)))
    return table


def placement_table(title: str, placement: Placement) -> Table:
    """Return a table of what each group of devices holds, and whether it fits."""
    table = Table(title=f"{title}, {placement.rows} rows on each", title_justify="left")
    for column in ("devices", "weights of", "at rest", "training", "generating", "room left"):
        table.add_column(column, justify="left" if column == "weights of" else "right")
    for group in placement.groups:
        room = placement.usable - group.peak
        names = escape(", ".join(group.sets))
        cells = map(_gb, (group.resident, group.training, group.generating))
        table.add_row(_range(group), names, *cells, _room(room))
    return table


def choices_table(found: Sequence[Choice], *, several: bool) -> Table:
    """Return a table of the settings that take less memory, and what comes of them.

    `several` says that there are more devices than one, among which sets could be divided.
    """
    table = Table(title="what takes less", title_justify="left")
    table.add_column("settings", overflow="fold")
    columns = ("one device", "fits today", *(("sharded", "would fit") if several else ()))
    for column in columns:
        table.add_column(column, justify="right")
    for choice in found:
        cells: list[str] = []
        for placement in (choice.today, choice.sharded):
            cells += [_gb(placement.peak), "yes" if placement.fits else "no"]
        table.add_row(escape("\n".join(choice.settings)), *cells[: len(columns)])
    return table


def verdict(placement: Placement) -> str:
    """Return whether a placement fits, or by how much not, for whom and to do what."""
    if placement.fits:
        return "it fits"
    worst = max(placement.groups, key=lambda group: group.peak)
    what = "generate" if worst.generating > worst.training else "train"
    return (
        f"it does not fit: {_gb(placement.excess)} too much on each device of "
        f"{', '.join(worst.sets)}, to {what}"
    )


def _room(room: float) -> str:
    return _gb(room) if room >= 0 else f"{_gb(-room)} short"


def _range(group: Group) -> str:
    first, last = group.devices[0], group.devices[-1]
    return str(first) if first == last else f"{first} to {last}"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB" if size else "0"

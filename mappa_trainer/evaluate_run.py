"""`mappa eval`: plays a team on held-out problems and prints what it is worth."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import rich
from rich.status import Status

from mappa_trainer.coaching import coach_line, cost, cost_rows, in_words, unscored
from mappa_trainer.collect import Env, Play, collect, plays
from mappa_trainer.console import measurement_table
from mappa_trainer.environment import check_seats, make_env, task_ids, without_coach
from mappa_trainer.errors import PolicyError, RecipeError, RunDirectoryError
from mappa_trainer.evaluate import report, unplayed
from mappa_trainer.leakage import checked, fingerprints_of
from mappa_trainer.policies import Chosen, choose
from mappa_trainer.presets import Preset, load_preset, tables_of
from mappa_trainer.rates import rate_line, rates
from mappa_trainer.recipe import Recipe, laid_over, load_recipe
from mappa_trainer.runlog import Record, RunDirectory, episode_record
from mappa_trainer.team import sampling_of
from mappa_trainer.types import Sampling

AT_A_TIME = 64
"""Episodes played in lockstep; they are kept when all of them have ended."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How an evaluation is to be played; what is None is as the preset or the recipe has it."""

    policy: str | None = None
    """See `mappa_trainer.policies.choose`."""
    split: Literal["train", "test"] | None = None
    """The test problems where nobody says."""
    samples: int | None = None
    """Episodes of each problem; one where nobody says."""
    problems: int | None = None
    temperature: float | None = None
    """0 takes the most likely tokens."""
    coach: bool = False
    """Whether actions are judged; else the environment is made without a coach."""
    settings: Sequence[str] = ()
    """Changes of the recipe, e.g. `["scenario.tasks=other.json"]`."""
    preset: str | None = None
    """See `mappa_trainer.presets.load_preset`."""
    data: Path | None = None
    """Where the files of the preset are."""
    allow_overlap: bool = False
    """Whether problems may be played that the team was trained on."""


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation that was settled on, and where its episodes go."""

    path: Path
    """Of the run directory, which is made when there is something to keep."""
    recipe: Recipe
    name: str
    """Of the episode file."""
    what: Record
    """What decides the episodes, apart from the policy's own insides."""
    todo: Sequence[Play]

    def so_far(self) -> list[Record]:
        """Return the episodes that were played before this evaluation was stopped."""
        if not (self.path / "config.json").exists():
            return []
        return RunDirectory.open(self.path).unfinished(self.name, self.what)

    def keep(self, records: Sequence[Record], new: Sequence[Record]) -> None:
        """Keep the episodes so far, of which some are new."""
        made = (self.path / "config.json").exists()
        run = RunDirectory(self.path) if made else RunDirectory.create(self.path, self.recipe)
        run.keep_unfinished(self.name, self.what, records)
        run.add_costs(cost_rows(self.name, new))


def evaluate_run(source: Path, wanted: Wanted, out: Path | None = None) -> None:
    """Evaluate and print a table; the episodes are stored in a run directory.

    What was stopped is gone on with: episodes are kept `AT_A_TIME` after another.

    Args:
        source: A run directory, into which the episodes go, or a recipe file.
        wanted: How it is played.
        out: With a recipe, the run directory for the episodes; a new one under runs/ when None.

    Raises:
        RunDirectoryError: there is no run at `source`, its tasks are others now, or `out` is of
            another recipe.
        CheckpointError: the run has no checkpoint yet.
        PolicyError: what plays cannot be asked, or fails.
        LeakageError: test problems are among those that the team was trained on.
    """
    run, recipe, wanted = _opened(source, wanted)
    path = _path(run, recipe, out)
    played = recipe if wanted.coach else without_coach(recipe)
    count, samples = wanted.problems or recipe.eval.problems, wanted.samples or 1
    split = wanted.split or "test"
    envs = [make_env(played) for _ in range(min(AT_A_TIME, count * samples))]
    try:
        if run is not None and not (wanted.settings or wanted.preset):
            run.check_task_ids(task_ids(envs[0]))
        agents = list(envs[0].possible_agents)
        check_seats(recipe, agents)
        _check_size(envs[0], split, count)
        chosen = choose(wanted.policy, recipe, agents, run)
        if split == "test":
            _check_overlap(
                chosen, envs[0], count, wanted.allow_overlap or recipe.eval.allow_overlap
            )
        seed = recipe.train.seed  # so sample 0 is played as in the evaluation of training
        rounds = [plays(seed, "eval", 0, count, split, sample) for sample in range(samples)]
        todo = [play for own in rounds for play in own]
        evaluation = _settled(run, path, recipe, wanted, chosen, todo)
        records = _play(envs, evaluation, chosen, _sampling(recipe, wanted, agents))
    finally:
        for env in envs:
            env.close()
    RunDirectory.open(path).finish(evaluation.name, records)
    title = f"{chosen.title} on {count} {split} problems, {samples} samples of each"
    _show(title, records, agents, samples)
    _say(f"episodes: {path / 'episodes' / evaluation.name}.jsonl")


def _opened(source: Path, wanted: Wanted) -> tuple[RunDirectory | None, Recipe, Wanted]:
    """Return the run, where `source` is one, the recipe, and what is wanted with its preset."""
    run = None if source.is_file() else RunDirectory.open(source)
    recipe = load_recipe(source, wanted.settings) if run is None else run.recipe()
    tables: Mapping[str, Any] = {}
    if wanted.preset is not None:
        preset = load_preset(wanted.preset, recipe)
        tables = tables_of(preset, wanted.preset, wanted.data)
        wanted = _filled(wanted, preset)
    return run, laid_over(recipe, tables, wanted.settings), wanted


def _filled(wanted: Wanted, preset: Preset) -> Wanted:
    """Return what is wanted; the preset says what was left open."""
    temperature = preset.temperature if wanted.temperature is None else wanted.temperature
    return replace(
        wanted,
        split=wanted.split or preset.split,
        samples=wanted.samples or preset.samples,
        problems=wanted.problems or preset.problems,
        temperature=temperature,
    )


def _path(run: RunDirectory | None, recipe: Recipe, out: Path | None) -> Path:
    """Return the run directory that the episodes go to, which may not be there yet."""
    if run is not None:
        if out is not None:
            raise RunDirectoryError(
                f"--out is {out}; leave it out, the episodes of a run's evaluation go into the run"
            )
        return run.path
    if out is None:
        return Path("runs") / f"{recipe.name}-eval-{time.strftime('%Y%m%d-%H%M%S')}"
    if (out / "config.json").is_file():
        if RunDirectory.open(out).recipe() != recipe:
            raise RunDirectoryError(f"{out}: is a run of another recipe; name another with --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunDirectoryError(f"{out}: exists already and is not empty; name another with --out")
    return out


def _check_size(env: Env, split: str, count: int) -> None:
    """Refuse to play a problem a second time as if it were another."""
    texts = fingerprints_of(env, split, count)
    if texts is not None and len(texts) < count:
        raise RecipeError(
            f"{count} problems are to be played and the {split} split has {len(texts)}; give "
            f"--problems {len(texts)}, and --samples for several episodes of each"
        )


def _check_overlap(chosen: Chosen, env: Env, count: int, allowed: bool) -> None:
    """Compare the test problems with what the team was trained on, where both are known."""
    held_out = fingerprints_of(env, "test", count)
    if chosen.trained_in is None or held_out is None:
        return
    trained = chosen.trained_in.trained_on()
    if trained is None:
        _say(f"{chosen.trained_in.path} does not say what it was trained on; nothing is compared")
        return
    if said := checked(held_out, trained, allowed, "play others, or give --allow-overlap"):
        _say(said)


def _temperature(recipe: Recipe, wanted: Wanted) -> float:
    if wanted.temperature is None:
        return recipe.eval_modes["sampled"]
    return wanted.temperature


def _sampling(recipe: Recipe, wanted: Wanted, agents: list[str]) -> dict[str, Sampling]:
    return sampling_of(recipe, agents, _temperature(recipe, wanted))


def _settled(
    run: RunDirectory | None,
    path: Path,
    recipe: Recipe,
    wanted: Wanted,
    chosen: Chosen,
    todo: Sequence[Play],
) -> _Evaluation:
    """Return the evaluation with its name, which differs where the episodes are to differ."""
    samples = todo[-1].sample + 1
    count, split = len(todo) // samples, str(todo[0].options["split"])
    parts = [split, chosen.name, _mode(wanted), f"{count}x{samples}"]
    if wanted.preset is not None:
        parts.append(Path(wanted.preset).stem)
    if run is not None and wanted.settings:
        parts.append(f"set-{_digest(wanted.settings)}")
    if wanted.coach:
        parts.append("coached")
    what: dict[str, Any] = {
        "evaluation": chosen.title,
        "split": split,
        "problems": count,
        "samples": samples,
        "temperature": _temperature(recipe, wanted),
        "coach": wanted.coach,
        "recipe": recipe.model_dump(mode="json"),
    }
    return _Evaluation(path, recipe, "-".join(parts), what, todo)


def _mode(wanted: Wanted) -> str:
    if wanted.temperature is None:
        return "sampled"
    return f"t{wanted.temperature:g}" if wanted.temperature else "greedy"


def _digest(settings: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(settings)).encode()).hexdigest()[:8]


def _play(
    envs: Sequence[Env],
    evaluation: _Evaluation,
    chosen: Chosen,
    sampling: Mapping[str, Sampling],
) -> list[Record]:
    """Play what is left to be played, and return all episodes."""
    records = evaluation.so_far()
    todo = evaluation.todo
    if records:
        _say(f"{len(records)} of {len(todo)} episodes were played before; going on")
    with rich.get_console().status(f"evaluating {chosen.title}") as status:
        policies = chosen.load() if len(records) < len(todo) else {}
        progress = _progress(status)
        while len(records) < len(todo):
            chunk = todo[len(records) : len(records) + len(envs)]
            try:
                episodes = collect(envs, chunk, policies, sampling, progress)
            except PolicyError as error:
                raise PolicyError(f"{error}{_kept(evaluation, records)}") from error
            new: list[Record] = [episode_record(episode) for episode in episodes]
            records += new
            evaluation.keep(records, new)
    return records


def _progress(status: Status) -> Callable[[str], None]:
    return lambda text: status.update(text)


def _kept(evaluation: _Evaluation, records: Sequence[Record]) -> str:
    """Say how to go on, where there is something to go on with."""
    if not records:
        return ""
    return (
        f"; {len(records)} of {len(evaluation.todo)} episodes are kept in {evaluation.path}, and "
        f"the same command goes on with them (with a recipe, add --out {evaluation.path})"
    )


def _show(title: str, records: Sequence[Record], agents: Sequence[str], samples: int) -> None:
    rich.print(measurement_table(title, report(records, agents)))
    for line in map(rate_line, rates(records, samples)):
        rich.get_console().print(line, highlight=False, markup=False)
    judging = (unplayed(records), in_words(unscored(records).failures), coach_line(cost(records)))
    for line in filter(None, judging):
        _say(line)


def _say(line: str) -> None:
    rich.get_console().print(line, highlight=False, markup=False, soft_wrap=True)

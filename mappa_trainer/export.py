"""`mappa export`: one agent's weights as a model that plain transformers loads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from mappa_trainer.checkpoint import latest_checkpoint, players_of
from mappa_trainer.errors import CheckpointError
from mappa_trainer.evaluate import Measurement, report
from mappa_trainer.models import load_model, load_tokenizer, resolve_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory


def export(path: Path, agent: str, out: Path | None) -> Path:
    """Write the newest weights of an agent, with a model card, and return their folder.

    A LoRA adapter is merged into its base.

    Args:
        path: The run directory.
        agent: Whose weights.
        out: The folder to make; `exports/<agent>-after-<iteration>` in the run when None.

    Raises:
        RunDirectoryError: there is no run at `path`.
        CheckpointError: the run has no checkpoint, the agent is not trained, or `out` exists.
    """
    run = RunDirectory.open(path)
    checkpoint, iteration = latest_checkpoint(path)
    name = _weights_of(checkpoint, agent)
    folder = out or path / "exports" / f"{agent}-after-{iteration:04d}"
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already; delete it, or name another --out")
    model = _load(checkpoint / name, run.recipe())
    tokenizer = load_tokenizer(resolve_model(run.recipe().model.base))
    partial = folder.with_name(f".partial-{folder.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    card = "\n".join(model_card(run, agent, iteration)) + "\n"
    (partial / "README.md").write_text(card, encoding="utf-8")
    partial.rename(folder)
    return folder


def model_card(run: RunDirectory, agent: str, iteration: int) -> Iterator[str]:
    """Yield the lines of a model card: where the weights come from and what they are worth."""
    recipe = run.recipe()
    coach = recipe.coach or {}
    yield from ("---", "library_name: transformers", "pipeline_tag: text-generation", "---", "")
    yield from (f"# {agent} of {recipe.name}", "")
    yield (
        f"One agent of a team that was trained together from per-action rewards: {recipe.env.id}, "
        f"{iteration} iterations of {recipe.train.episodes} episodes."
    )
    yield from ("", "| | |", "| --- | --- |", f"| Base | {Path(recipe.model.base).name} |")
    yield f"| Advantage, loss | {recipe.algorithm.advantage}, {recipe.algorithm.loss} |"
    yield f"| Coach | {coach.get('kind', 'the default')}{_model_of(coach)} |"
    yield "| License | that of the base; this training adds no terms |"
    for mode, measured in _evaluations(run, iteration, [agent]):
        yield from ("", f"## Held-out problems, {mode}", "", "| Measure | Mean |", "| --- | --- |")
        yield from (f"| {one.name} | {one.mean:.3f} |" for one in measured if one.per_problem)
    yield from ("", "## Recipe", "", "```json")
    yield json.dumps(recipe.model_dump(mode="json"), indent=2)
    yield "```"


def _model_of(coach: dict[str, object]) -> str:
    return f" ({coach['model']})" if "model" in coach else ""


def _evaluations(
    run: RunDirectory, iteration: int, agents: Sequence[str]
) -> Iterator[tuple[str, list[Measurement]]]:
    for mode in run.recipe().eval_modes:
        name = f"eval-{iteration:04d}-{mode}"
        if name in run.episode_names():
            yield mode, report(run.episodes(name), agents)


def _weights_of(checkpoint: Path, agent: str) -> str:
    players = players_of(checkpoint)
    if agent not in players:
        raise CheckpointError(
            f"{checkpoint}: no agent is called {agent!r}; the agents are {', '.join(players)}"
        )
    name = players[agent]
    if name is None:
        raise CheckpointError(
            f"{checkpoint}: {agent} plays the base as it is, so there is nothing to export; "
            "its tuning is 'frozen'"
        )
    return name


def _load(folder: Path, recipe: Recipe) -> PreTrainedModel:
    if not (folder / "adapter_config.json").is_file():
        return load_model(folder)
    base = load_model(resolve_model(recipe.model.base))
    merged: PreTrainedModel = PeftModel.from_pretrained(base, folder).merge_and_unload()
    return merged

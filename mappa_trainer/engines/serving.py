"""The vLLM servers of a team: one for each set of full weights, and one for all other weights.

Adapters, and agents that play the base, share a server. `engine.url` names a server for a team that
needs one only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mappa_trainer.engines.vllm_client import VLLMClient, VLLMEngine
from mappa_trainer.engines.vllm_server import (
    Launch,
    VLLMServer,
    command,
    find_python,
    scratch_folder,
)
from mappa_trainer.errors import EngineError, RecipeError
from mappa_trainer.models import save_untied
from mappa_trainer.recipe import Recipe
from mappa_trainer.weights import Weights

SHARED = "shared"
"""The name of the server of adapters and of the base; no log of full weights is called so."""


@dataclass(frozen=True)
class Serving:
    """Engines, and what they need to run; `engines` are by the names of the weights."""

    engines: Mapping[str, VLLMEngine]
    clients: Sequence[VLLMClient]
    servers: Mapping[str, VLLMServer]
    """By the names of their logs; empty where `engine.url` names one that runs."""
    folders: Sequence[Path]
    """Where weights are left for the servers; deleted at the end."""
    start_timeout_s: float

    def open(self, logs: Path, progress: Callable[[str], None]) -> None:
        """Start all servers at the same time, and wait for them.

        Raises:
            EngineError: one does not start.
        """
        for name, server in self.servers.items():
            server.start(logs / f"{name}.log")
        for server in self.servers.values():
            server.wait(self.start_timeout_s, progress)

    def close(self) -> None:
        """End all servers, and delete the weights that were left for them."""
        for client in self.clients:
            client.close()
        for server in self.servers.values():
            server.close()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def check_engine(recipe: Recipe, plan: Sequence[Weights]) -> None:
    """Check what of `[engine]` depends on the team and on this machine.

    Raises:
        RecipeError: one server is named for a team that needs more, vLLM is not installed, or it
            takes no adapters of such a rank.
    """
    if recipe.engine.kind != "vllm":
        return
    groups = _groups(plan)
    if recipe.engine.url:
        if len(groups) > 1:
            raise RecipeError(
                f"engine.url names one server, and the team needs {len(groups)}: for "
                f"{', '.join(groups)}; leave it out, so that the run starts them, or set "
                "model.tuning = 'lora', for which one is enough"
            )
        return
    for group in groups.values():
        command(_launch(recipe, group, Path("model"), cpu=True), 0)


def serve(
    recipe: Recipe,
    plan: Sequence[Weights],
    models: Mapping[str, PreTrainedModel],
    base_folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Collection[int],
) -> Serving:
    """Prepare servers and engines; nothing is started.

    Args:
        recipe: Of the run.
        plan: Of the team.
        models: By the names of the weights; the base with all adapters for those that are not full.
        base_folder: Of the base.
        tokenizer: Of all models.
        eos_ids: Ids that end a completion.

    Raises:
        EngineError: the disk has no room for the weights that a server is to serve.
    """
    dtype = getattr(torch, recipe.model.sampler_precision)
    engines: dict[str, VLLMEngine] = {}
    servers: dict[str, VLLMServer] = {}
    clients: list[VLLMClient] = []
    folders: list[Path] = []
    for name, group in _groups(plan).items():
        model = models[group[0].name]
        folder = scratch_folder(_trained_bytes(model))
        folders.append(folder)
        served = base_folder
        if recipe.engine.url:
            clients.append(VLLMClient(recipe.engine.url))
        else:
            if group[0].tuning == "full":
                served = _write_served(model, tokenizer, folder / group[0].name, dtype)
            launch = _launch(recipe, group, served, cpu=model.device.type == "cpu")
            servers[name] = VLLMServer(partial(command, launch), folder)
            clients.append(VLLMClient(servers[name].url, diagnosis=servers[name].diagnosis))
        for weights in group:
            engines[weights.name] = VLLMEngine(
                clients[-1],
                eos_ids=eos_ids,
                adapter=weights.name if weights.tuning == "lora" else None,
                folder=folder / weights.name,
                dtype=dtype,
            )
    return Serving(engines, clients, servers, folders, recipe.engine.start_timeout_s)


def _groups(plan: Sequence[Weights]) -> dict[str, list[Weights]]:
    """Return which weights share a server."""
    groups: dict[str, list[Weights]] = {}
    for weights in plan:
        name = f"full-{weights.name}" if weights.tuning == "full" else SHARED
        groups.setdefault(name, []).append(weights)
    return groups


def _launch(recipe: Recipe, group: Sequence[Weights], model: Path, cpu: bool) -> Launch:
    return Launch(
        python=find_python(recipe.engine.python),
        model=model,
        dtype=recipe.model.sampler_precision,
        cpu=cpu,
        adapters=sum(weights.tuning == "lora" for weights in group),
        rank=recipe.model.lora.rank,
        extra=recipe.engine.args,
    )


def _trained_bytes(model: PreTrainedModel) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def _write_served(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: torch.dtype
) -> Path:
    try:
        save_untied(model, folder, dtype)
        tokenizer.save_pretrained(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(
            f"{folder}: the weights cannot be written for the server: {error.strerror}; make room"
        ) from error
    return folder

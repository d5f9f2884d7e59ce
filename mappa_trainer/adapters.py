"""LoRA adapters (arXiv 2106.09685): several small sets of weights on one frozen base in memory.

A model with adapters shows one of them at a time, or none; `select` chooses, before each pass.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from mappa_trainer.errors import CheckpointError
from mappa_trainer.recipe_tables import LoraTable


def add_adapter(model: PreTrainedModel, name: str, table: LoraTable, seed: int) -> None:
    """Put a new adapter on every linear layer but the output head; it changes no output yet.

    `seed` decides the half of its weights that does not start at 0; the global random state is left
    as it was.
    """
    config = LoraConfig(
        r=table.rank, lora_alpha=table.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are meant
        torch.manual_seed(seed)
        model.add_adapter(config, _inside(name))


def load_adapter(model: PreTrainedModel, name: str, folder: Path) -> None:
    """Put an adapter that was saved on a model.

    Raises:
        CheckpointError: the folder holds no adapter that fits the model.
    """
    try:
        report = model.load_adapter(str(folder), adapter_name=_inside(name), is_trainable=True)
    except Exception as error:  # the loader raises whatever its file formats raise
        raise CheckpointError(
            f"{folder}: cannot be loaded as a LoRA adapter: {error}; delete the checkpoint to "
            "resume from an earlier one"
        ) from error
    missing = [key for key in report.missing_keys if _inside(name) in key]  # else another's
    if wrong := [*missing, *report.unexpected_keys, *report.mismatched_keys]:
        raise CheckpointError(
            f"{folder}: the adapter does not fit the base model, the first weight that differs is "
            f"{wrong[0]!r}; check model.base in the run's config.json"
        )


def save_adapter(model: PreTrainedModel, name: str, folder: Path) -> None:
    """Write an adapter as a folder that peft and vLLM read; what was there is replaced."""
    select(model, name)
    shutil.rmtree(folder, ignore_errors=True)  # a reader may still have the old file open
    model.save_pretrained(folder)


def select(model: PreTrainedModel, name: str | None) -> None:
    """Make a model compute with the adapter `name`, or with none; no other has gradients."""
    if not getattr(model, "_hf_peft_config_loaded", False):
        return
    if name is None:
        model.disable_adapters()
    else:
        model.enable_adapters()
        model.set_adapter(_inside(name))


def copy_adapter(source: PreTrainedModel, target: PreTrainedModel, name: str) -> None:
    """Overwrite an adapter's weights in `target` by those in `source`, cast to its dtype."""
    weights = dict(source.named_parameters())
    with torch.no_grad():
        for key, parameter in target.named_parameters():
            if _inside(name) in key:
                parameter.copy_(weights[key])


def _inside(name: str) -> str:
    """Return what an adapter is called in a model: never the name of a layer, which peft mixes up.

    No other adapter's name contains it either.
    """
    return f"<{name}>"

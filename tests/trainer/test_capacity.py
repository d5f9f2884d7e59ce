"""What is worked out from a configuration, against counts by hand, real models, measured peaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from mappa_trainer.adapters import add_adapter
from mappa_trainer.attention import use_fast_attention
from mappa_trainer.batching import micro_batches
from mappa_trainer.capacity import (
    Decoding,
    Passes,
    Shape,
    TrainingMemory,
    activations,
    cache_memory,
    decoding_memory,
    layer_activations,
    read_shape,
    training_memory,
)
from mappa_trainer.errors import ModelError
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model
from mappa_trainer.recipe_tables import LoraTable

SHAPES = Path(__file__).parents[2] / "scenarios" / "recipes" / "shapes"
SMALL = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SHAPE = Shape(
    parameters=3 * (8 * 8 * 2 + 8 * 4 * 2 + 8 * 12 * 3) + 3 * 2 * 8 + 8 + 10 * 8,
    linear=3 * (8 * 8 * 2 + 8 * 4 * 2 + 8 * 12 * 3),
    linear_sides=3 * ((8 + 8) * 2 + (8 + 4) * 2 + (8 + 12) * 3),
    layers=3,
    hidden=8,
    intermediate=12,
    queries=8,
    keys=4,
    vocabulary=10,
    context=64,
    query_norm=False,
)
"""Of `SMALL`, with a tied head: three layers of seven matrices and two norms."""
LORA = LoraTable(rank=2, alpha=4)


def saved(config: PreTrainedConfig, folder: Path) -> Path:
    config.save_pretrained(folder)
    return folder


def test_a_shape_by_hand(tmp_path: Path) -> None:
    folder = saved(LlamaConfig(**SMALL, tie_word_embeddings=True), tmp_path)
    assert read_shape(folder) == SHAPE
    assert read_shape(folder / "config.json") == SHAPE


def test_a_head_of_its_own_counts(tmp_path: Path) -> None:
    own = read_shape(saved(LlamaConfig(**SMALL, tie_word_embeddings=False), tmp_path))
    assert own.parameters - SHAPE.parameters == 10 * 8


def test_parameters_are_those_of_the_real_model_and_of_its_adapter(tiny_model: Path) -> None:
    shape = read_shape(tiny_model)
    model = load_model(tiny_model)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    model.requires_grad_(False)
    add_adapter(model, "solver_0", LORA, 0)
    assert shape.adapter(2) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "parameters"),  # as their publishers count them
    [
        ("Qwen3-4B", 4_022_468_096),
        ("DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("smollm2-135m-instruct", 134_515_008),
    ],
)
def test_the_shapes_that_ship_have_the_published_numbers(name: str, parameters: int) -> None:
    assert read_shape(SHAPES / f"{name}.json").parameters == parameters


def test_sixteen_bytes_for_each_trained_parameter() -> None:
    passes = Passes(tokens=1, element=4, checkpointing=False)
    full = training_memory(SHAPE, "full", LORA, passes)
    count = SHAPE.parameters
    assert (full.trained, full.weights, full.gradients) == (count, 4 * count, 4 * count)
    assert (full.moments, full.casts) == (8 * count, 0)
    assert full.total - full.activations == 16 * count
    lora = training_memory(SHAPE, "lora", LORA, passes)
    assert lora.trained == 2 * 348
    assert lora.total - lora.activations == 16 * 2 * 348
    assert training_memory(SHAPE, "frozen", LORA, passes) == TrainingMemory(0, 0, 0, 0, 0, 0)


def test_in_bfloat16_weights_are_there_a_second_time_for_products() -> None:
    thrifty, lavish = (Passes(tokens=1, element=2, checkpointing=c) for c in (True, False))
    whole = 2 * (SHAPE.linear + 80)
    assert training_memory(SHAPE, "full", LORA, thrifty).casts == whole
    assert training_memory(SHAPE, "lora", LORA, lavish).casts == whole
    assert training_memory(SHAPE, "lora", LORA, thrifty).casts == 2 * (SHAPE.linear // 3 + 80)


def test_activations_by_hand() -> None:
    layer = 16 * 8 + 8 * 8 + 4 * 4 * 12 + 8 * (8 + 4) + 4 * 8
    assert layer_activations(SHAPE, 4) == layer
    assert layer_activations(SHAPE, 2) == 16 * 8 + 10 * 8 + 4 * 2 * 12 + 8 * (8 + 4) + 2 * 8
    lavish, thrifty = (Passes(tokens=100, element=4, checkpointing=c) for c in (False, True))
    back = 3 * 4 * 12 + 8 * 8
    for trains, gradient in ((True, 4 * 80), (False, 0)):
        found = activations(SHAPE, lavish, head_trains=trains)
        head = 5 * 4 * 100 * 10 + 2 * gradient
        assert head < 100 * back + gradient
        assert found == 100 * (3 * layer + 20 * 8 + back) + gradient
        found = activations(SHAPE, thrifty, head_trains=trains)
        assert found == 100 * (3 * 4 * 8 + 20 * 8 + layer + back) + gradient


def test_where_words_are_many_the_head_is_the_peak() -> None:
    wide = Shape(**{**{n: getattr(SHAPE, n) for n in SHAPE.__slots__}, "vocabulary": 1_000})
    layer = layer_activations(wide, 4)
    found = activations(wide, Passes(1_000, 4, False), head_trains=True)
    assert found == 1_000 * (3 * layer + 160) + 5 * 4 * 160 * 1_000 + 2 * 4 * 8_000


@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
@pytest.mark.parametrize(("precision", "element"), [("float32", 4), ("bfloat16", 2)])
def test_a_layer_keeps_what_is_said(
    config: Any, precision: Any, element: int, tmp_path: Path, one_thread: None
) -> None:
    sizes = {**SMALL, "vocab_size": 300, "hidden_size": 64, "intermediate_size": 160}
    folder = saved(config(**sizes, head_dim=16), tmp_path)
    model = AutoModelForCausalLM.from_config(config.from_pretrained(folder))
    use_fast_attention(model)
    likelihood = Likelihood(model, precision=precision)
    (batch,) = micro_batches([([0], list(range(256)))], 256)
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no other takes its place
        return tensor

    with likelihood.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        likelihood.of(batch)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found = sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
    shape = read_shape(folder)
    casts = 2 * shape.linear if element == 2 else 0
    said = 256 * (3 * layer_activations(shape, element) + 20 * 64) + casts
    assert found == pytest.approx(said, rel=0.05)


def test_the_cache_is_that_of_the_library(tiny_model: Path) -> None:
    model, shape = load_model(tiny_model), read_shape(tiny_model)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(3, 10, dtype=torch.int64), past_key_values=cache)
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    found = cache_memory(shape, Decoding(rows=3, prompt=6, new=4, element=4))
    assert found == held * (shape.layers + 1) // shape.layers


def test_what_decoding_takes_by_hand() -> None:
    found = decoding_memory(SHAPE, Decoding(rows=5, prompt=7, new=9, element=2))
    assert found == 5 * (7 * 3 * (8 + 12) * 2 + 24 * 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "config.json: there is no such file; give a model's folder or its config.json"),
        ("{", "cannot be read as a model's configuration"),
        ('{"model_type": "no-such-model"}', "cannot be read as a model's configuration"),
        ('{"model_type": "gpt2"}', "has no intermediate_size; give one of a decoder like Llama"),
        ('{"model_type": "mixtral"}', "is 8: what a mixture of experts keeps"),
        (
            json.dumps({"model_type": "qwen3", "num_hidden_layers": "many"}),
            "cannot be read as a model's configuration",
        ),
        (
            json.dumps({"model_type": "llama", **SMALL, "num_attention_heads": 3}),
            "multiple of the number of attention heads",
        ),
    ],
)
def test_a_configuration_of_something_else_is_one_line(
    text: str | None, words: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError) as caught:
        read_shape(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


MEASURE = """
import re, sys, torch
from functools import partial
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from mappa_trainer.adapters import add_adapter
from mappa_trainer.attention import use_fast_attention
from mappa_trainer.learner import Learner
from mappa_trainer.losses import ppo_clip
from mappa_trainer.objective import Objective
from mappa_trainer.recipe_tables import LoraTable
from mappa_trainer.types import Sample

def memory(field):  # not by getrusage, whose peak may be that of the process that started this one
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\\s*(\\d+) kB", status)[1])

folder, tuning, precision, checkpointing, tokens = sys.argv[1:]
tokens = int(tokens)
torch.set_num_threads(1)
with torch.autocast("cpu", torch.bfloat16):  # loads what the first product and gradient load
    torch.nn.Linear(8, 8)(torch.zeros(4, 8)).sum().backward()
before = memory("VmRSS")
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
use_fast_attention(model)
if tuning == "lora":
    model.requires_grad_(False)
    add_adapter(model, "one", LoraTable(), 0)
learner = Learner(
    model,
    precision=precision,
    token_budget=tokens,
    gradient_checkpointing=checkpointing == "True",
    adapter="one" if tuning == "lora" else None,
)
half = tokens // 2
samples = [
    Sample([start] * half, list(range(half)), torch.zeros(half) - 9, torch.ones(half))
    for start in (1, 2)
]
objective = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2))
for _ in range(2):
    learner.update(samples, objective)
print(memory("VmHWM") - before)
"""
MODELS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(
        vocab_size=8192,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    "qwen2": Qwen2Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    ),
}


@pytest.mark.slow  # up to a minute each
@pytest.mark.parametrize(
    ("name", "tuning", "precision", "checkpointing"),
    [
        ("qwen3", "full", "float32", False),
        ("qwen3", "lora", "float32", True),
        ("qwen2", "full", "float32", True),
        ("qwen2", "full", "bfloat16", False),
    ],
)
def test_the_peak_of_real_optimiser_steps_is_what_is_said(
    name: str, tuning: Any, precision: str, checkpointing: bool, tmp_path: Path
) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc to measure memory with")
    folder, tokens = saved(MODELS[name], tmp_path), 1_024
    arguments = [str(folder), tuning, precision, str(checkpointing), str(tokens)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed is given back
    )
    shape = read_shape(folder)
    passes = Passes(tokens, 2 if precision == "bfloat16" else 4, checkpointing)
    said = training_memory(shape, tuning, LoraTable(), passes).total
    base = 4 * shape.parameters if tuning == "lora" else 0
    assert said + base == pytest.approx(int(done.stdout), rel=0.25)

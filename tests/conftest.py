from __future__ import annotations

import copy
import gc
import os
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mappa_trainer.recipe import Recipe

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

# A random model writes a few words of noise, so the length check alone makes its rewards differ.
RECIPE = """
name = "tiny"

[env]
module = "mappa_envs"
id = "mappa/MathChat-v0"

[scenario]
roles.solver.rubric.concise.max_words = 1
roles.coder.rubric.concise.max_words = 1
roles.coder.max_turns = 1
roles.verifier.rubric.concise.max_words = 1

[coach]
kind = "rubric"

[model]
base = "{model}"
precision = "float32"
sampler_precision = "float32"

[sampling]
max_new_tokens = 14

[algorithm]
learning_rate = 1e-3
kl_coef = 0.05

[train]
iterations = 4
episodes = 3
updates = 2
save_every = 2
keep_checkpoints = 2

[eval]
problems = 2
every = 2
greedy = false
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=3, help="of a training run, in test_kills.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector look at nothing that imports make: it took half of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Let torch use a single thread from here on.

    Sums are split by threads, and processes must agree to the last bit. Tiny tensors gain nothing
    from threads, and lose much when the machine is busy.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model of 0.3 M parameters whose tokens are bytes."""
    from mappa_trainer.testing import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(tiny_model: Path) -> PreTrainedModel:
    """The tiny model, freshly loaded."""
    from mappa_trainer.models import load_model

    return load_model(tiny_model)


@pytest.fixture(scope="session")
def recipe_text(tiny_model: Path) -> str:
    """A recipe file's text: MathChat, the tiny model, 4 iterations of 3 episodes."""
    return RECIPE.replace("{model}", str(tiny_model))


@pytest.fixture
def recipe_file(recipe_text: str, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(recipe_text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def make_recipe(recipe_text: str) -> Callable[..., Recipe]:
    """`make_recipe(train={"iterations": 1})` lays tables over the tiny recipe."""
    from mappa_trainer.recipe import parse_recipe

    def make(**tables: Any) -> Recipe:
        table = copy.deepcopy(tomllib.loads(recipe_text))
        for name, values in tables.items():
            table[name] = {**table.get(name, {}), **values} if isinstance(values, dict) else values
        return parse_recipe(table, "the tiny recipe")

    return make


@pytest.fixture(scope="session")
def finished_run(
    make_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directory of a run of the tiny recipe that nothing disturbed; do not write into it."""
    from mappa_trainer import train
    from mappa_trainer.console import Console

    path = tmp_path_factory.mktemp("runs") / "finished"
    assert train.start(make_recipe(), path, Console())
    return path

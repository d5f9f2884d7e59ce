from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openai", reason="the coach extra is not installed")

from endpoints import VERDICT, endpoint_at, failure_of, messages, wait_until

from mappa_envs.coach.calls import _wait, retry_after_s
from mappa_envs.coach.endpoint import Endpoint, endpoint_of
from mappa_envs.coach.requests import RESPONSE_FORMAT, CallFailed, Request
from mappa_envs.coach.settings import Settings
from mappa_envs.errors import CoachError, ScenarioError
from mappa_envs.testing.stub_endpoint import Fail, StubEndpoint
from mappa_envs.testing.stub_replies import MIXTURE, Behaviour, HttpReply, bad_request
from mappa_envs.types import Message, Spent


def sent(stub: StubEndpoint) -> list[Any]:
    return [asked.body for asked in stub.requests]


def test_a_verdict_comes_with_its_reasons_its_cost_and_the_hash_of_what_was_asked() -> None:
    with StubEndpoint(replies=[VERDICT]) as stub:
        endpoint = endpoint_at(stub)
        verdict = endpoint.judge_blocking(messages("12345678"), 10)
    spent = Spent(calls=1, input_tokens=2, output_tokens=9, usd=None)
    wanted = Request("stub", messages("12345678"), 0.0, 1024, json_schema=True)
    assert (verdict.score, verdict.rationale, verdict.spent) == (8, "It ran.", spent)
    assert verdict.prompt_hash == wanted.hash
    assert endpoint.spent == spent
    assert sent(stub) == [
        {
            "model": "stub",
            "messages": [{"role": "user", "content": "12345678"}],
            "temperature": 0.0,
            "max_tokens": 1024,
            "response_format": RESPONSE_FORMAT,
        }
    ]


@pytest.mark.parametrize(("scale", "score"), [(10, 8), (100, 0.8), (20, 4), (8, 10)])
def test_a_score_is_0_to_10_whatever_the_scale(scale: float, score: float) -> None:
    with StubEndpoint(replies=[VERDICT]) as stub:
        assert endpoint_at(stub).judge_blocking(messages(), scale).score == score


@pytest.mark.parametrize("kind", ["drop", "500", "bad_json", "429"])
def test_what_may_pass_is_tried_again(kind: str) -> None:
    with StubEndpoint(replies=[Fail(kind), Fail(kind), VERDICT]) as stub:
        verdict = endpoint_at(stub).judge_blocking(messages(), 10)
    assert (verdict.score, verdict.spent.calls) == (8, 3)


@pytest.mark.parametrize(
    ("kind", "failure", "said"),
    [
        ("drop", "unreachable", "no connection: RemoteProtocolError"),
        ("500", "unreachable", "Error code: 500 - The server had an error."),
        ("bad_json", "unreachable", "the body is no completion: '{\"choices"),
        ("429", "rate_limited", "Error code: 429 - Slow down."),
    ],
)
def test_what_does_not_pass_fails_by_the_deadline(kind: str, failure: str, said: str) -> None:
    with StubEndpoint(fail=1, kinds=(kind,)) as stub:
        error = failure_of(endpoint_at(stub, deadline_s=0.5))
        assert error.failure == failure
        assert error.spent is not None
        # the deadline may end a request on its way to the server
        assert error.spent.calls - len(stub.requests) in (0, 1)
        assert error.spent.calls > 1
    assert str(error).startswith("stub: ")
    assert said in str(error)
    assert f"({error.spent.calls} requests made)" in str(error)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("401", "Incorrect API key"),
        ("quota", "Error code: 429"),
        ("refusal", "the model refused: 'I cannot help with that.'"),
        ("content_filter", "held back by a content filter"),
    ],
)
def test_a_refusal_is_not_tried_again(kind: str, said: str) -> None:
    with StubEndpoint(replies=[Fail(kind)]) as stub:
        error = failure_of(endpoint_at(stub))
        assert len(stub.requests) == 1
    assert error.failure == "refused"
    assert said in str(error)


def test_nobody_there_is_unreachable() -> None:
    with StubEndpoint() as stub:
        pass
    error = failure_of(endpoint_at(stub, deadline_s=0.1))
    assert error.failure == "unreachable"


def test_an_answer_that_takes_too_long_is_asked_for_again() -> None:
    with StubEndpoint(delay=30) as stub:
        error = failure_of(endpoint_at(stub, timeout_s=0.05, deadline_s=0.4))
        assert len(stub.requests) > 1
    assert error.failure == "unreachable"
    assert "no answer within 0.05 s" in str(error)


def test_the_deadline_ends_a_request_that_runs() -> None:
    with StubEndpoint(delay=30) as stub:
        error = failure_of(endpoint_at(stub, deadline_s=0.2))
    assert error.failure == "unreachable"
    assert error.spent == Spent(calls=1, usd=None)
    assert "no verdict within 0.2 s (deadline_s)" in str(error)


def test_a_wait_is_as_long_as_the_server_asks_and_a_random_time_on_top() -> None:
    def wait(attempt: int, wait_s: float) -> float:
        failed = CallFailed("rate_limited", "Slow down.", wait_s=wait_s)
        outcome = SimpleNamespace(exception=lambda: failed)
        state: Any = SimpleNamespace(outcome=outcome, attempt_number=attempt)
        return _wait(state)

    assert 7 <= min(wait(1, 7) for _ in range(50)) < 7.001
    assert 0 <= min(wait(5, 0) for _ in range(50)) < 0.008 < max(wait(5, 0) for _ in range(50))
    assert max(wait(5, 0) for _ in range(50)) <= 0.016


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    with StubEndpoint(replies=[Fail("429"), VERDICT], retry_after="0.01") as stub:
        assert endpoint_at(stub, deadline_s=60).judge_blocking(messages(), 10).score == 8
    with StubEndpoint(replies=[Fail("429")], retry_after="3600") as stub:
        error = failure_of(endpoint_at(stub, deadline_s=60))
        assert len(stub.requests) == 1
    assert error.failure == "rate_limited"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 10),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("-3", 0),
        ("nan", 0),
        ("inf", 0),
        ("soon", 0),
        ("", 0),
    ],
)
def test_retry_after_is_read_or_left(header: str, seconds: float) -> None:
    assert retry_after_s(header, now=lambda: 50) == seconds


@pytest.mark.parametrize("kind", ["unreadable", "out_of_range"])
def test_a_bad_verdict_is_asked_for_again_with_the_whole_task(kind: str) -> None:
    with StubEndpoint(replies=[Fail(kind), VERDICT]) as stub:
        verdict = endpoint_at(stub).judge_blocking(messages(), 10)
        first, second = (body["messages"] for body in sent(stub))
    assert (verdict.score, verdict.spent.calls) == (8, 2)
    assert verdict.prompt_hash == Request("stub", messages(), 0.0, 1024, json_schema=True).hash
    assert second[0] == first[0]
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[1]["content"] in (
        '{"reasons": "Hm.", "score": "seven"}',
        '{"reasons": "Great!", "score": 1000000}',
    )
    assert "one number from 0 to 10" in second[2]["content"]
    assert '{"reasons": "...", "score": <number>}' in second[2]["content"]


@pytest.mark.parametrize("repairs", [0, 1, 3])
def test_there_are_no_more_repairs_than_allowed(repairs: int) -> None:
    with StubEndpoint(fail=1, kinds=("unreadable",)) as stub:
        error = failure_of(endpoint_at(stub, repairs=repairs))
        assert len(stub.requests) == 1 + repairs
    assert error.failure == "unparsable"
    assert error.spent is not None
    assert error.spent.calls == 1 + repairs


def test_what_was_cut_off_gets_twice_the_room_once() -> None:
    with StubEndpoint(replies=[Fail("truncated"), VERDICT]) as stub:
        assert endpoint_at(stub, max_tokens=50).judge_blocking(messages(), 10).score == 8
        assert [body["max_tokens"] for body in sent(stub)] == [50, 100]
        assert sent(stub)[0]["messages"] == sent(stub)[1]["messages"]
    with StubEndpoint(fail=1, kinds=("truncated",)) as stub:
        error = failure_of(endpoint_at(stub, max_tokens=50))
        assert [body["max_tokens"] for body in sent(stub)] == [50, 100]
    assert error.failure == "truncated"


def test_an_unclosed_thinking_block_is_an_answer_that_was_cut_off() -> None:
    with StubEndpoint(replies=["<think>Well,", "<think>Well, well"]) as stub:
        assert failure_of(endpoint_at(stub)).failure == "truncated"


def test_a_schema_that_the_server_refuses_is_left_out_from_then_on() -> None:
    with StubEndpoint(refuses=("response_format",), score=7) as stub:
        endpoint = endpoint_at(stub)
        verdicts = [endpoint.judge_blocking(messages(n), 10) for n in range(3)]
        has_schema = ["response_format" in body for body in sent(stub)]
    assert [verdict.score for verdict in verdicts] == [7, 7, 7]
    assert has_schema == [True, False, False, False]
    assert verdicts[0].prompt_hash == Request("stub", messages(0), 0.0, 1024, True).hash


def test_a_schema_that_must_be_is_not_left_out_and_one_that_must_not_be_is_never_sent() -> None:
    with StubEndpoint(refuses=("response_format",)) as stub:
        error = failure_of(endpoint_at(stub, json_schema=True))
        assert len(stub.requests) == 1
        assert error.failure == "refused"
        endpoint_at(stub, json_schema=False).judge_blocking(messages(), 10)
        assert len(stub.requests) == 2


def test_parameters_that_newer_models_refuse_are_replaced() -> None:
    with StubEndpoint(refuses=("max_tokens", "temperature", "response_format")) as stub:
        endpoint = endpoint_at(stub)
        for n in range(2):
            endpoint.judge_blocking(messages(n), 10)
        assert len(stub.requests) == 5
        last = sent(stub)[-1]
    assert last["max_completion_tokens"] == 1024
    assert not {"max_tokens", "temperature", "response_format"} & set(last)


def test_the_key_is_sent_and_appears_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "very-secret-words"
    monkeypatch.setenv("MY_KEY", f"{secret}\n")
    with StubEndpoint(replies=[Fail("401"), f"You sent {secret}", f"{secret} {VERDICT}"]) as stub:
        endpoint = endpoint_at(stub, api_key_env="MY_KEY")
        error = failure_of(endpoint)
        verdict = endpoint.judge_blocking(messages(), 10)
        assert stub.requests[0].headers["authorization"] == f"Bearer {secret}"
        assert secret not in str(sent(stub))
    assert "Incorrect API key provided: [key]" in str(error)
    assert error.__context__ is None or secret not in str(error.__context__)
    for text in (str(error), repr(error), repr(verdict), repr(endpoint.settings), repr(endpoint)):
        assert secret not in text


def test_a_key_in_part_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-1234567890")
    with StubEndpoint(replies=[Fail("401")]) as stub:
        endpoint = endpoint_at(stub)
        assert endpoint._redacted("provided: sk-proj-12****90.") == "provided: [key]"
        assert "sk-" not in str(failure_of(endpoint))


def test_a_missing_key_is_named_before_anything_is_sent() -> None:
    endpoint = Endpoint(Settings("m", base_url="https://models.example/v1", api_key_env="MY_KEY"))
    with pytest.raises(ScenarioError, match=r"variable MY_KEY is not set; models\.example wants"):
        endpoint.check()
    with pytest.raises(ScenarioError, match="variable MY_KEY is not set"):
        endpoint.judge_blocking((Message(role="user", content="Judge this."),), 10)
    Endpoint(Settings("m", base_url="http://127.0.0.1:9/v1")).check()
    Endpoint(Settings("m", base_url="http://[::1]:9/v1")).check()


def test_an_address_and_a_key_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScenarioError, match="base_url is 'localhost:8000'; give an address such"):
        Endpoint(Settings("m", base_url="localhost:8000")).check()
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(ScenarioError, match="the key in OPENAI_API_KEY has characters that no"):
        Endpoint(Settings("m")).check()


async def judged_with_ticks(endpoint: Endpoint, number: int) -> tuple[list[float], int]:
    """Scores of so many judgements, and how often the loop came round meanwhile."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticking = asyncio.create_task(tick())
    asked = (endpoint.judge(messages(n), 10) for n in range(number))
    verdicts = await asyncio.gather(*asked)
    ticking.cancel()
    return [verdict.score for verdict in verdicts], ticks


def test_five_hundred_judgements_keep_to_the_limit_and_leave_the_loop_free() -> None:
    with StubEndpoint(delay=0.02, score=7) as stub:
        endpoint = endpoint_at(stub, concurrency=16)
        scores, ticks = asyncio.run(judged_with_ticks(endpoint, 500))
        assert stub.most_in_flight <= 16
        assert len(stub.requests) == 500
    assert scores == [7] * 500
    assert endpoint.spent.calls == 500
    assert ticks > 20


def test_threads_keep_to_the_same_limit() -> None:
    with StubEndpoint(delay=0.02, score=7) as stub, ThreadPoolExecutor(64) as threads:
        endpoint = endpoint_at(stub, concurrency=8)
        asked = threads.map(lambda n: endpoint.judge_blocking(messages(n), 10).score, range(128))
        assert list(asked) == [7] * 128
        assert 1 < stub.most_in_flight <= 8


def test_an_endpoint_that_fails_often_gives_the_scores_of_one_that_does_not() -> None:
    with StubEndpoint() as sound, StubEndpoint(fail=0.3, kinds=("drop", "429", "500")) as failing:
        scores = [
            asyncio.run(judged_with_ticks(endpoint_at(stub), 60))[0] for stub in (sound, failing)
        ]
        assert failing.kinds["drop"] > 0
    assert scores[0] == scores[1]


RETRIED = ("drop", "429", "500", "bad_json")
"""Failures of the mixture that are retried until the deadline; the others end by themselves."""


@pytest.mark.parametrize(
    ("kinds", "deadline_s", "failures"),
    [
        (RETRIED, 1.0, {"unreachable", "rate_limited"}),
        (
            tuple(kind for kind in MIXTURE if kind not in RETRIED),
            60.0,
            {"truncated", "refused", "unparsable", "out_of_range"},
        ),
    ],
)
def test_every_failure_of_the_mixture_is_typed(
    kinds: tuple[str, ...], deadline_s: float, failures: set[str]
) -> None:
    async def judge_all(endpoint: Endpoint) -> list[Any]:
        asked = (endpoint.judge(messages(n), 10) for n in range(40))
        return await asyncio.gather(*asked, return_exceptions=True)

    with StubEndpoint(fail=0.9, permanent=True, kinds=kinds) as stub:
        found = asyncio.run(judge_all(endpoint_at(stub, deadline_s=deadline_s, concurrency=40)))
    assert all(isinstance(said, CoachError) or 0 <= said.score <= 10 for said in found)
    assert {said.failure for said in found if isinstance(said, CoachError)} == failures


def test_a_cancelled_judgement_frees_its_slot_and_ends_its_request() -> None:
    async def cancel_one(endpoint: Endpoint, stub: StubEndpoint) -> float:
        first = asyncio.create_task(endpoint.judge(messages(1), 10))
        while not stub.requests:
            await asyncio.sleep(0.005)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stub.delay = 0
        return (await endpoint.judge(messages(2), 10)).score

    with StubEndpoint(delay=0.5, score=7) as stub:
        endpoint = endpoint_at(stub, concurrency=1)
        assert asyncio.run(cancel_one(endpoint, stub)) == 7
        assert stub.kinds == {"answered": 1}  # the other is still being answered
        wait_until(lambda: "gone" in stub.kinds)
    assert endpoint.spent.calls == 2


def test_settings_have_one_endpoint_in_a_process() -> None:
    settings = Settings("m", base_url="http://127.0.0.1:9/v1")
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: endpoint_of(settings), range(32)))
    assert len(found) == 1
    assert endpoint_of(Settings("m", base_url="http://127.0.0.1:9/v1")) in found
    assert endpoint_of(Settings("other", base_url="http://127.0.0.1:9/v1")) not in found


def test_a_dropped_endpoint_closes_its_connections_on_their_own_loop() -> None:
    async def drop(endpoint: Endpoint) -> Any:
        await endpoint.judge(messages(), 10)
        return endpoint._lines[os.getpid()]._client

    with StubEndpoint() as stub:
        client = asyncio.run(drop(endpoint_at(stub)))
        gc.collect()
        wait_until(client.is_closed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_a_line_of_its_own() -> None:
    with StubEndpoint(score=7) as stub:
        endpoint = endpoint_at(stub)
        endpoint.judge_blocking(messages(1), 10)
        child = os.fork()
        if child == 0:
            verdict = endpoint.judge_blocking(messages(2), 10)
            os._exit(int(verdict.score) if endpoint.spent.calls == 1 else 99)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert len(stub.requests) == 2


AT_THE_END = """
import sys, threading, time
from mappa_envs.coach.endpoint import Endpoint
from mappa_envs.coach.settings import Settings
from mappa_envs.waiting import threads
endpoint = Endpoint(Settings("m", base_url=sys.argv[1]))
ask = lambda: endpoint.judge_blocking(({"role": "user", "content": "x"},), 10)
threads().submit(ask)
while not endpoint._lines:
    time.sleep(0.01)
time.sleep(0.3)
print("done")
"""


def test_a_call_in_flight_does_not_hold_up_the_end_of_the_process() -> None:
    with StubEndpoint(delay=60) as stub:
        command = [sys.executable, "-c", AT_THE_END, stub.base_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert len(stub.requests) == 1
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_importing_the_endpoint_does_not_import_the_client() -> None:
    program = (
        "import sys, mappa_envs, mappa_envs.coach.endpoint\n"
        "print({'openai', 'tenacity', 'httpx2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


# --- what servers and users get wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://user:hunter2@127.0.0.1:9/v1", "ftp://user:hunter2@h/v1", "http://a@[::1/v1"]
)
def test_an_address_with_a_secret_in_it_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ScenarioError, match="has a user name or a password in it") as caught:
        Endpoint(Settings("m", base_url=url))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc/v1", "http://127.0.0.1:99999/v1", "http://[::1", "x", "ftp://h"]
)
def test_what_is_no_address_is_refused_when_the_coach_is_made(url: str) -> None:
    with pytest.raises(ScenarioError, match=r"coach\.base_url is .*; give an address such as"):
        Endpoint(Settings("m", base_url=url))


def test_a_cache_that_is_a_file_is_refused_when_the_coach_is_made(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ScenarioError, match=r"coach\.cache is '.*cache', a file; name"):
        Endpoint(Settings("m", base_url="http://127.0.0.1:9/v1", cache=str(tmp_path / "cache")))


def completion(content: object, **more: object) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return json.dumps({"choices": [choice], **more}).encode()


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 5}, {"completion_tokens": None}])
def test_an_answer_without_counts_is_an_answer_of_unknown_cost(
    usage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = completion(VERDICT, usage=usage)
    monkeypatch.setattr(Behaviour, "reply", lambda *_: HttpReply(200, body))
    with StubEndpoint() as stub:
        verdict = endpoint_at(stub).judge_blocking(messages(), 10)
    assert (verdict.score, verdict.spent) == (8, Spent(1, 0, 0, None))


def test_a_content_in_parts_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "text", "text": VERDICT[:9]}, {"type": "text", "text": VERDICT[9:]}]
    monkeypatch.setattr(Behaviour, "reply", lambda *_: HttpReply(200, completion(parts)))
    with StubEndpoint() as stub:
        assert endpoint_at(stub).judge_blocking(messages(), 10).score == 8


def test_a_refusal_that_names_nothing_turns_the_schema_off_for_that_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, first = Behaviour.reply, [bad_request("Your request was flagged.")]
    monkeypatch.setattr(Behaviour, "reply", lambda *a: first.pop() if first else whole(*a))
    with StubEndpoint(score=8) as stub:
        endpoint = endpoint_at(stub)
        for prompt in range(2):
            endpoint.judge_blocking(messages(prompt), 10)
        bodies = [asked.body for asked in stub.requests]
    assert ["response_format" in body for body in bodies] == [True, False, True]


@pytest.mark.parametrize(
    "header",
    [
        "Thu, 01 Jan 99999999999999999999 00:01:00 GMT",
        "Thu, 01 Jan 2020 00:00:99999999999 GMT",
        "soon",
        "inf",
        "-3",
    ],
)
def test_an_absurd_time_to_wait_is_none(header: str) -> None:
    assert retry_after_s(header) == 0.0


@pytest.mark.parametrize("charset", ["utf-16", "base64", "hex", "none-such"])
def test_a_body_is_utf_8_whatever_its_header_says(
    charset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = HttpReply(
        200, completion(VERDICT), headers={"Content-Type": f"application/json; charset={charset}"}
    )
    monkeypatch.setattr(Behaviour, "reply", lambda *_: reply)
    with StubEndpoint() as stub:
        assert endpoint_at(stub).judge_blocking(messages(), 10).score == 8


def test_a_short_key_is_left_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "e")
    with StubEndpoint(replies=[VERDICT]) as stub:
        assert endpoint_at(stub).judge_blocking(messages(), 10).rationale == "It ran."

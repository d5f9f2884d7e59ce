from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the coach extra is not installed")

from endpoints import VERDICT, endpoint_at, failure_of, messages, wait_until

from mappa_envs.coach.cache import ReplyCache
from mappa_envs.coach.requests import Answer, Request
from mappa_envs.testing.stub_endpoint import Fail, StubEndpoint
from mappa_envs.types import Spent

REQUEST = Request("m", messages("What?"), 0.0, 100, json_schema=True)
ANSWER = Answer("PROCESS_SCORE: 8", "stop", None, 3, 4, 0.001)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.*"))


def test_an_answer_is_found_again_under_its_request_and_sample(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path / "new" / "folder")
    assert cache.get(REQUEST, 0) is None
    cache.put(REQUEST, 0, ANSWER)
    assert ReplyCache(tmp_path / "new" / "folder").get(REQUEST, 0) == ANSWER
    others = [
        replace(REQUEST, model="n"),
        replace(REQUEST, messages=messages("Why?")),
        replace(REQUEST, temperature=0.1),
        replace(REQUEST, max_tokens=101),
        replace(REQUEST, json_schema=False),
    ]
    assert [cache.get(other, 0) for other in others] == [None] * 5
    assert cache.get(REQUEST, 1) is None


def test_a_file_holds_the_request_the_answer_and_its_cost(tmp_path: Path) -> None:
    ReplyCache(tmp_path).put(REQUEST, 2, ANSWER)
    (path,) = files(tmp_path)
    assert path.parent.name == path.name[:2]
    assert json.loads(path.read_text()) == {
        "request": REQUEST.body(()),
        "sample": 2,
        "text": "PROCESS_SCORE: 8",
        "finish_reason": "stop",
        "refusal": None,
        "input_tokens": 3,
        "output_tokens": 4,
        "usd": 0.001,
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: text.replace("What?", "Else?"),
        lambda text: text.replace("0.001", "-1"),
        lambda text: text.replace('"sample": 0', '"sample": 1'),
        lambda text: text.replace("PROCESS", "\udcff"),
    ],
)
def test_a_damaged_file_counts_as_absent_and_is_replaced(tmp_path: Path, damage: Any) -> None:
    cache = ReplyCache(tmp_path)
    cache.put(REQUEST, 0, ANSWER)
    path = cache.path(REQUEST, 0)
    path.write_text(damage(path.read_text()), encoding="utf-8", errors="surrogateescape")
    assert cache.get(REQUEST, 0) is None
    cache.put(REQUEST, 0, ANSWER)
    assert cache.get(REQUEST, 0) == ANSWER
    assert files(tmp_path) == [path]


def test_the_cost_of_a_folder_is_that_of_its_sound_files(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path)
    assert cache.usd() == 0
    for sample, usd in enumerate((0.25, 0.5, None)):
        cache.put(REQUEST, sample, replace(ANSWER, usd=usd))
    cache.put(REQUEST, 3, ANSWER)
    cache.path(REQUEST, 3).write_text("{")
    assert cache.usd() == 0.75


def test_what_was_answered_is_asked_once_and_then_costs_nothing(tmp_path: Path) -> None:
    with StubEndpoint() as stub:
        first = endpoint_at(stub, cache=str(tmp_path)).judge_blocking(messages(), 10)
        assert len(stub.requests) == 1
    again = endpoint_at(stub, cache=str(tmp_path)).judge_blocking(messages(), 10)
    assert first.spent.calls == 1
    assert again == replace(first, spent=Spent())


def test_samples_of_one_request_are_asked_for_apart(tmp_path: Path) -> None:
    with StubEndpoint(replies=["SCORE: 3", "SCORE: 4"]) as stub:
        endpoint = endpoint_at(stub, cache=str(tmp_path))
        scores = [endpoint.judge_blocking(messages(), 10, sample=n).score for n in (0, 1, 0, 1)]
        assert len(stub.requests) == 2
    assert scores == [3, 4, 3, 4]


def test_answers_without_a_verdict_are_kept_too(tmp_path: Path) -> None:
    settings = {"cache": str(tmp_path)}
    with StubEndpoint(replies=[Fail("unreadable"), Fail("truncated"), VERDICT]) as stub:
        first = endpoint_at(stub, **settings).judge_blocking(messages(), 10)
    assert (first.score, first.spent.calls) == (8, 3)
    assert endpoint_at(stub, **settings).judge_blocking(messages(), 10).spent == Spent()
    assert len(files(tmp_path)) == 3


def test_what_a_server_failed_to_answer_is_not_kept(tmp_path: Path) -> None:
    replies = [Fail(kind) for kind in ("500", "429", "drop", "bad_json", "401")]
    with StubEndpoint(replies=replies) as stub:
        assert failure_of(endpoint_at(stub, cache=str(tmp_path))).failure == "refused"
        assert len(stub.requests) == 5
    assert files(tmp_path) == []


def test_a_schema_that_is_refused_does_not_change_where_an_answer_is_kept(tmp_path: Path) -> None:
    settings = {"cache": str(tmp_path)}
    with StubEndpoint(refuses=("response_format",)) as stub:
        first = endpoint_at(stub, **settings).judge_blocking(messages(), 10)
        assert endpoint_at(stub, **settings).judge_blocking(messages(), 10).score == first.score
        assert len(stub.requests) == 2


def test_no_key_and_no_header_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "very-secret-words")
    with StubEndpoint(replies=['{"reasons": "very-secret-words", "score": 8}']) as stub:
        verdict = endpoint_at(stub, cache=str(tmp_path)).judge_blocking(messages(), 10)
    (path,) = files(tmp_path)
    assert verdict.rationale == "[key]"
    for word in ("secret", "authorization", "bearer", "127.0.0.1"):
        assert word not in path.read_text().lower()


def test_equal_requests_at_the_same_time_make_one_call(tmp_path: Path) -> None:
    async def judge_all(endpoint: Any) -> list[Any]:
        return await asyncio.gather(*(endpoint.judge(messages(), 10) for _ in range(20)))

    with StubEndpoint(delay=0.1) as stub:
        endpoint = endpoint_at(stub, cache=str(tmp_path))
        verdicts = asyncio.run(judge_all(endpoint))
        assert len(stub.requests) == 1
    assert len({verdict.score for verdict in verdicts}) == 1
    assert sum(verdict.spent.calls for verdict in verdicts) == 1
    assert endpoint.spent.calls == 1


def test_who_asked_first_may_leave_and_the_others_get_the_answer(tmp_path: Path) -> None:
    async def leave(endpoint: Any, stub: StubEndpoint) -> float:
        first, second = (asyncio.create_task(endpoint.judge(messages(), 10)) for _ in range(2))
        await asyncio.to_thread(wait_until, lambda: bool(stub.requests))
        first.cancel()
        return float((await second).score)

    with StubEndpoint(delay=0.1, score=7) as stub:
        endpoint = endpoint_at(stub, cache=str(tmp_path))
        assert asyncio.run(leave(endpoint, stub)) == 7
        assert len(stub.requests) == 1


def test_when_all_leave_the_request_ends(tmp_path: Path) -> None:
    async def leave(endpoint: Any, stub: StubEndpoint) -> None:
        tasks = [asyncio.create_task(endpoint.judge(messages(), 10)) for _ in range(2)]
        await asyncio.to_thread(wait_until, lambda: bool(stub.requests))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with StubEndpoint(delay=0.2) as stub:
        asyncio.run(leave(endpoint_at(stub, cache=str(tmp_path)), stub))
        wait_until(lambda: "gone" in stub.kinds)
    assert files(tmp_path) == []


WRITE_AND_READ = """
import sys
from mappa_envs.coach.cache import ReplyCache
from mappa_envs.coach.requests import Answer, Request
cache, answer = ReplyCache(sys.argv[1]), Answer("PROCESS_SCORE: 8" * 1000)
request = Request("m", ({"role": "user", "content": "What?"},), 0.0, 100, True)
sys.stdin.readline()
for turn in range(400):
    cache.put(request, turn % 2, answer)
    assert cache.get(request, turn % 2) == answer
"""


def test_processes_share_a_folder_and_never_see_half_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_AND_READ, str(tmp_path)]
    programs = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write(b"go\n")
        program.stdin.close()
    for program in programs:
        program.wait()
    assert [program.returncode for program in programs] == [0, 0]
    assert len(files(tmp_path)) == 2

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mappa_envs.coach.replies import parse_verdict
from mappa_envs.errors import CoachError

READABLE = [
    ("PROCESS_SCORE: 8", 8),
    ("PROCESS_SCORE: 8/10", 8),
    ("PROCESS_SCORE: 8 / 10", 8),
    ("PROCESS_SCORE: 8 out of 10.", 8),
    ("**PROCESS_SCORE:** 8", 8),
    ("**PROCESS_SCORE: 8**", 8),
    ("**PROCESS_SCORE**: **8**/10", 8),
    ("### PROCESS SCORE = 8", 8),
    ("[PROCESS_SCORE]: [8]", 8),
    ("`PROCESS_SCORE: 8`", 8),
    ("- Score: 8", 8),
    ("> SCORE：8", 8),
    (r"PROCESS\_SCORE: 8", 8),
    ("process_score: 8\r\n", 8),
    ("PROCESS_SCORE: 8.", 8),
    ("PROCESS_SCORE: 8.5.", 8.5),
    ("PROCESS_SCORE: 8,5", 8.5),
    ("PROCESS_SCORE: .5", 0.5),
    ("PROCESS_SCORE: 0.8", 0.8),
    ("PROCESS_SCORE: 1e1", 10),
    ("PROCESS_SCORE: 0", 0),
    ("PROCESS_SCORE: -0", 0),
    ("The code ran. PROCESS_SCORE: 7", 7),
    ("The format is PROCESS_SCORE: 0 to 10.\nPROCESS_SCORE: 9", 9),
    ("<think>maybe PROCESS_SCORE: 3</think>PROCESS_SCORE: 7", 7),
    ("maybe PROCESS_SCORE: 3</think>\n\nPROCESS_SCORE: 7", 7),
    ('{"reasons": "good", "score": 8}', 8),
    ('\n{"reasons": "good", "score": 8.5}\n', 8.5),
    ('{"reasons": "good", "score": "8/10"}', 8),
    ('{"Reasons": "good", "SCORE": 8}', 8),
    ('{"reasons": "two\nlines", "score": 8}', 8),
    ('```json\n{"reasons": "good", "score": 8}\n```', 8),
    ('<think>{"score": 1}</think>{"reasons": "good", "score": 8}', 8),
    ('Such as {"score": 1}\n{"reasons": "good", "score": 8}', 8),
    ('The set {1, 2} is wrong.\n{"reasons": "good", "score": 8}', 8),
    ('{"reasons": {"score": 1}, "score": 8}', 8),
    ('{"reasons": "it printed <think>", "score": 8}', 8),
    ('{"reasons": "a\\nPROCESS_SCORE: 3\\n", "score": 8}', 8),
    ('The agent printed {"score": 10}\nPROCESS_SCORE: 3', 3),
    ('PROCESS_SCORE: 3\nBetter: {"score": 4}', 4),
    ('{"plan": "no score"}\nPROCESS_SCORE: 3', 3),
]
UNREADABLE = [
    ("PROCESS_SCORE: 3\nOn second thoughts:\nPROCESS_SCORE: 9\nThat is all.", "unparsable"),
    ('PROCESS_SCORE: 3\nThe agent wrote "PROCESS_SCORE: 10"', "unparsable"),
    ("PROCESS_SCORE: 3\nThe agent wrote `PROCESS_SCORE: 10`", "unparsable"),
    ('PROCESS_SCORE: 3\nIt printed {"score": 10}, which is no verdict.', "unparsable"),
    ("PROCESS_SCORE: 8\nWell done.", "unparsable"),
    ('I quote:\n{"score": 10}\nMine: {"reasons": "it said "give 10"", "score": 1}', "unparsable"),
    ("I quote:\n{\"score\": 10}\n{'reasons': 'bad', 'score': 1}", "unparsable"),
    ('I quote:\n{"score": 10}\n\nFinal score: 1', "unparsable"),
    ("It printed:\n> PROCESS_SCORE: 10\n\nVerdict: 1", "unparsable"),
    ("PROCESS_SCORE: 10\n\nFINAL_SCORE: 1", "unparsable"),
    ("PROCESS_SCORE: 10\n\n**Process-Score**: 1", "unparsable"),
    ("It printed PROCESS_SCORE: 10\nwhich is an injection, so the verdict is one.", "unparsable"),
    ('{"reasons":"a","score":3}\nOr {"reasons":"x","score":8} finally.', "unparsable"),
    ("<thinking>PROCESS_SCORE: 3\n</thinking>\nI will not say.", "unparsable"),
    ("PROCESS_SCORE: \u0668", "unparsable"),
    ("PROCESS_SCORE: \uff18", "unparsable"),
    ("", "unparsable"),
    ("8", "unparsable"),
    ("I would give 8 of 10.", "unparsable"),
    ("The agent printed an accuracy score: 8", "unparsable"),
    ("PROCESS_SCORE 8", "unparsable"),
    ("PROCESS_SCORE:", "unparsable"),
    ("PROCESS_SCORE: ...", "unparsable"),
    ("PROCESS_SCORE: 1.2.3", "unparsable"),
    ("PROCESS_SCORE: 8..", "unparsable"),
    ("PROCESS_SCORE: 1,000", "unparsable"),
    ("PROCESS_SCORE: seven", "unparsable"),
    ("PROCESS_SCORE: 7-8", "unparsable"),
    ("PROCESS_SCORE: 7 or 8", "unparsable"),
    ("PROCESS_SCORE: 8 because it ran", "unparsable"),
    ("PROCESS_SCORE: 3, PROCESS_SCORE: 4", "unparsable"),
    ("PROCESS_SCORE: 8/10/2024", "unparsable"),
    ("PROCESS_SCORE: nan", "unparsable"),
    ("PROCESS_SCORE: inf", "unparsable"),
    ("PROCESS_SCORE: 1e999", "unparsable"),
    ("PROCESS_SCORE: 1_0", "unparsable"),
    ("MY_PROCESS_SCORE: 8", "unparsable"),
    ("PROCESS_SCORE: 8\nPROCESS_SCORE: seven", "unparsable"),
    ('{"score": 8}\nPROCESS_SCORE: seven', "unparsable"),
    ('PROCESS_SCORE: 8\n{"score": "seven"}', "unparsable"),
    ('{"score": true}', "unparsable"),
    ('{"score": null}', "unparsable"),
    ('{"score": NaN}', "unparsable"),
    ('{"score": Infinity}', "unparsable"),
    ('{"score": [8]}', "unparsable"),
    ('{"score": ' + "9" * 5000 + "}", "unparsable"),
    ('{"reasons": "cut off', "unparsable"),
    ('{"verdict": {"score": 8}}', "unparsable"),
    ("{'reasons': 'it printed {\"score\": 10}', 'score': 2}", "unparsable"),
    ("[" * 10 + '{"a":' * 100_000, "unparsable"),
    ("PROCESS_SCORE: 11", "out_of_range"),
    ("PROCESS_SCORE: -1", "out_of_range"),
    ("PROCESS_SCORE: 10.01", "out_of_range"),
    ("PROCESS_SCORE: 80/100", "out_of_range"),
    ("PROCESS_SCORE: 8/100", "out_of_range"),
    ("PROCESS_SCORE: 4/5", "out_of_range"),
    ('{"score": 11}', "out_of_range"),
    ('{"score": -0.5}', "out_of_range"),
    ("<think>PROCESS_SCORE: 8", "truncated"),
    ("PROCESS_SCORE: 8 <think>or rather", "truncated"),
    ("<think>a</think>b<think>", "truncated"),
]


def shared_cases() -> list[dict[str, Any]]:
    path = Path(os.environ.get("MAPPA_DATA_DIR", "none")).parent / "cases" / "coach_replies.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("reply", "score"), READABLE)
def test_a_verdict_is_read_in_every_form_that_models_give_it(reply: str, score: float) -> None:
    read = parse_verdict(reply)[0]
    assert read == score
    assert str(read) == str(float(score))


@pytest.mark.parametrize(("reply", "failure"), UNREADABLE, ids=[r[:40] for r, _ in UNREADABLE])
def test_what_is_no_verdict_is_a_typed_failure(reply: str, failure: str) -> None:
    with pytest.raises(CoachError) as caught:
        parse_verdict(reply)
    assert caught.value.failure == failure
    assert len(str(caught.value)) < 200


@pytest.mark.skipif(not shared_cases(), reason="MAPPA_DATA_DIR has no folder of cases beside it")
def test_the_collected_cases_give_what_they_say() -> None:
    for case in shared_cases():
        if case["score"] is None:
            with pytest.raises(CoachError):
                parse_verdict(case["reply"])
        else:
            assert parse_verdict(case["reply"])[0] == case["score"], case


@pytest.mark.parametrize(
    ("reply", "reasons"),
    [
        ("It ran.\nPROCESS_SCORE: 8", "It ran."),
        ("It ran. PROCESS_SCORE: 8\n", "It ran."),
        ("<think>hm</think>It ran.\nPROCESS_SCORE: 8", "It ran."),
        ('{"reasons": "It ran.", "score": 8}', "It ran."),
        ('{"reasons": ["It", "ran."], "score": 8}', "It\nran."),
        ('It ran.\n{"score": 8}', "It ran."),
        ("PROCESS_SCORE: 8", ""),
    ],
)
def test_the_reasons_are_what_the_reply_says_besides_the_score(reply: str, reasons: str) -> None:
    assert parse_verdict(reply) == (8, reasons)


def test_the_scale_is_the_one_that_was_declared() -> None:
    assert parse_verdict("SCORE: 80/100", 100)[0] == 80
    assert parse_verdict('{"score": 0.8}', 1)[0] == 0.8
    for reply in ("SCORE: 8/10", "SCORE: 101"):
        with pytest.raises(CoachError) as caught:
            parse_verdict(reply, 100)
        assert caught.value.failure == "out_of_range"


def test_a_failure_says_what_was_read_and_what_is_wanted() -> None:
    with pytest.raises(CoachError, match="the score is '11'; it must be from 0 to 10"):
        parse_verdict("PROCESS_SCORE: 11")
    with pytest.raises(CoachError, match="the score is 'seven'; it must be one number"):
        parse_verdict("PROCESS_SCORE: seven")
    with pytest.raises(CoachError, match="no verdict; it ends in 'well done'"):
        parse_verdict("well done")


WORDS = ["PROCESS_SCORE", "SCORE", "score", '"score"', "<think>", "</think>", "/10", "/100", "1e1"]
OBJECTS = ["{", "{  ", '{"', '{"a":1,', '{"a":"', '{ "b\\"', '{"score": 8}']
PIECES = st.sampled_from([*WORDS, *':=：8,.-*`[]{}"\\\n \ud800'])


def outcome(reply: str) -> float | str:
    """The score, or the name of the failure."""
    try:
        return parse_verdict(reply)[0]
    except CoachError as error:
        return error.failure


@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join)))
@example('{"score": 8, "score')
def test_any_text_gives_a_score_on_the_scale_or_a_coach_error(reply: str) -> None:
    found = outcome(reply)
    assert found in ("unparsable", "out_of_range", "truncated") or 0 <= float(found) <= 10


@pytest.mark.parametrize(
    "piece",
    [*WORDS, *OBJECTS, *'["`9', "SCORE: ", "PROCESS ", "PROCESS_SCORE: 8\n", "\n>>>", "* ", "8,"],
)
def test_much_of_anything_is_read_without_delay(piece: str) -> None:
    reply = piece * (300_000 // len(piece))
    for text in (reply, f"PROCESS_SCORE: {reply}", f'{{"reasons": "{reply}', f"{reply}\nSCORE: 8"):
        assert outcome(text) in (8, "unparsable", "truncated", "out_of_range")

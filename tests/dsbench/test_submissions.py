from __future__ import annotations

import math

import numpy as np
import pytest

from mappa_envs.outcomes.submissions import Checked, Form, check

IDS = ("007", "8", "a,b")
NUMBERS = Form("id", ("y",), IDS, "numbers", minimum=-1e100, maximum=1e100)
LABELS = Form("id", ("y",), IDS, "labels", labels=("NA", "EU", "Far East"))
DIGITS = Form("id", ("y",), IDS, "labels", labels=("1", "2", "03"))
PROBABILITIES = Form("id", ("y",), IDS, "probabilities", minimum=0.0, maximum=1.0)
RIGHT = b'id,y\n007,1\n8,2.5\n"a,b",-3e2\n'


def verdict(submission: bytes | str, form: Form = NUMBERS) -> str:
    content = submission if isinstance(submission, bytes) else submission.encode()
    checked = check(content, form)
    assert (checked.values is None) == (checked.verdict != "valid")
    return checked.verdict


def cells(form: Form, *values: str) -> Checked:
    rows = [f'"{name}",{value}' for name, value in zip(form.ids, values, strict=True)]
    return check("\n".join([",".join(("id", *form.targets)), *rows]).encode(), form)


def rows_of(checked: Checked) -> list[list[object]]:
    assert checked.values is not None
    return checked.values.tolist()


@pytest.mark.parametrize(
    "submission",
    [
        RIGHT,
        RIGHT.rstrip(),
        b"\xef\xbb\xbf" + RIGHT,
        RIGHT.replace(b"\n", b"\r\n"),
        RIGHT.replace(b"\n", b"\r"),
        RIGHT.replace(b"\n", b"\n\n"),
        b'id,y\n"a,b",-3e2\n8,2.5\n007,1\n',
        b'y,id\n-300,"a,b"\n 1 ,007\n+2.50,8\n',
        b'"id","y"\n"8","2.5"\n"007","1"\n"a,b","-300"\n',
    ],
)
def test_a_submission_is_read_in_the_order_of_the_ids_that_were_asked_for(submission) -> None:
    checked = check(submission, NUMBERS)
    assert (checked.verdict, checked.coverage) == ("valid", 1.0)
    assert rows_of(checked) == [[1.0], [2.5], [-300.0]]


@pytest.mark.parametrize(
    ("submission", "expected"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b" \n\r\n\n", "empty"),
        (b"id,y\n", "no_rows"),
        (b"id,y\n\n  \n", "no_rows"),
        (RIGHT.decode().encode("utf-16"), "not_text"),
        (b"id,y\n007,\xff\n", "not_text"),
        (RIGHT + b"\0", "not_text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not_text"),
        (b'id,y\n007,"1\n8,2\n', "not_csv"),
        (b'id,y\n007,"1"2\n', "not_csv"),
        (b"id,y\n007," + b"9" * 200_000 + b"\n", "not_csv"),
        (b"id;y\n007;1\n8;2\n", "wrong_separator"),
        (b'"y"\t"id"\n1\t007\n', "wrong_separator"),
        (b"007,1\n8,2\n", "wrong_columns"),
        (b"id,Y\n007,1\n", "wrong_columns"),
        (b"id, y\n007,1\n", "wrong_columns"),
        (b"id\n007\n", "wrong_columns"),
        (b"id,id\n007,1\n", "wrong_columns"),
        (b"I think the answer is 4.", "wrong_columns"),
        (b",id,y\n0,007,1\n1,8,2\n", "extra_columns"),
        (b"id,y,y\n007,1,1\n", "extra_columns"),
        (b"id,y\n007,1\n8\n", "ragged_rows"),
        (b"id,y\n007,1\n8,2,3\n", "ragged_rows"),
        (b"id,y\n007,1,5\n8,2,5\n", "ragged_rows"),
        (RIGHT + b"8,2.5\n", "duplicate_ids"),
        (RIGHT + b"9,2.5\n", "extra_ids"),
        (RIGHT.replace(b"007", b"7"), "extra_ids"),
        (RIGHT.replace(b"8,", b"8.0,"), "extra_ids"),
        (b"id,y\n007,1\n8,2\n", "missing_ids"),
        (b"id,y\n8,2.5\n", "missing_ids"),
    ],
)
def test_a_table_that_cannot_be_judged_has_its_own_verdict(submission, expected) -> None:
    assert verdict(submission) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "missing_values"),
        ("  ", "missing_values"),
        ("NA", "not_numeric"),
        ("1_000", "not_numeric"),
        ('"1,5"', "not_numeric"),
        ('"1\n5"', "not_numeric"),
        ("0x1F", "not_numeric"),
        ("[0.5]", "not_numeric"),
        ("9" * 500, "not_numeric"),
        ("nan", "not_finite"),
        ("-inf", "not_finite"),
        ("1e309", "not_finite"),
        ("1e101", "out_of_range"),
        ("-1e101", "out_of_range"),
    ],
)
def test_a_number_that_cannot_be_judged_has_its_own_verdict(value, expected) -> None:
    checked = cells(NUMBERS, "1", value, "2")
    assert checked.verdict == expected
    assert checked.coverage == pytest.approx(2 / 3)


def test_where_there_are_several_faults_the_first_of_the_list_counts_in_any_order() -> None:
    assert cells(NUMBERS, "nan", "1e101", "x").verdict == "not_numeric"
    assert cells(NUMBERS, "x", "nan", "1e101").verdict == "not_numeric"
    two = Form("id", ("y", "z"), ("1",), "numbers", maximum=9.0)
    assert verdict("id,y,z\n1,10,\n", two) == "missing_values"
    assert verdict("id,z,y\n1,,10\n", two) == "missing_values"
    assert verdict(RIGHT + b"9,x\n8,y\n") == "duplicate_ids"


@pytest.mark.parametrize("value", ["-0.01", "1.01", "1e50"])
def test_probabilities_lie_between_0_and_1(value) -> None:
    assert cells(PROBABILITIES, "0", value, "1").verdict == "out_of_range"
    assert cells(PROBABILITIES, "0", "0.5", "1").verdict == "valid"


def test_a_row_of_probabilities_needs_a_sum() -> None:
    form = Form("id", ("a", "b"), ("1", "2"), "probabilities", minimum=0.0, maximum=1.0)
    assert verdict("id,a,b\n1,0.1,0.1\n2,0,0\n", form) == "out_of_range"
    assert verdict("id,a,b\n1,0.1,0.1\n2,0,1\n", form) == "valid"


def test_na_is_a_label_where_it_is_one() -> None:
    checked = cells(LABELS, "NA", "Far East", "EU")
    assert rows_of(checked) == [[0], [2], [1]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("US", "unknown_label"),
        ("na", "unknown_label"),
        (" EU", "unknown_label"),
        ("nan", "unknown_label"),
        ("1e309", "unknown_label"),
        ("1", "unknown_label"),
        ("0.7", "probability_for_label"),
        ("1e-7", "probability_for_label"),
        ("", "missing_values"),
    ],
)
def test_a_label_that_is_not_known_has_its_own_verdict(value, expected) -> None:
    assert cells(LABELS, "NA", value, "EU").verdict == expected


def test_a_label_that_is_a_number_may_be_written_as_a_float_but_007_is_not_7() -> None:
    assert rows_of(cells(DIGITS, "1.0", "2", "03")) == [[0], [1], [2]]
    for value in ("3", "3.0", "01", "02"):
        assert cells(DIGITS, "1", value, "03").verdict == "unknown_label"


def test_a_ranking_is_up_to_three_labels_and_the_rest_does_not_count() -> None:
    form = Form("id", ("y",), ("1", "2"), "ranking", labels=("flu", "malaria", "dengue"))
    checked = check(b"id,y\n2,flu\n1,dengue  flu malaria flu\n", form)
    assert rows_of(checked) == [[2, 0, 1], [0, -1, -1]]
    assert verdict("id,y\n1,flu cold\n2,flu\n", form) == "unknown_label"
    assert verdict("id,y\n1,\n2,flu\n", form) == "missing_values"


def test_text_may_hold_separators_quotes_and_newlines() -> None:
    form = Form("id", ("y",), ("1", "2"), "text")
    checked = check(b'id,y\r\n1,"a ""b"",\r\nc"\r\n2, 5" disc\r\n', form)
    assert rows_of(checked) == [['a "b",\r\nc'], [' 5" disc']]
    assert verdict('id,y\n1,"  "\n2,x\n', form) == "missing_values"


def test_several_targets_are_read_by_name() -> None:
    form = Form("id", ("a", "b"), ("1", "2"), "numbers")
    checked = check(b"b,id,a\n20,2,2\n10,1,1\n", form)
    assert rows_of(checked) == [[1.0, 10.0], [2.0, 20.0]]


def test_coverage_counts_ids_with_one_usable_row() -> None:
    form = Form("id", ("y",), ("1", "2", "3", "4"), "numbers")
    checked = check(b"id,y\n1,5\n2,\n3,5\n3,5\n9,5\n", form)
    assert (checked.verdict, checked.coverage) == ("duplicate_ids", 0.25)


def test_one_right_row_covers_one_id_and_is_not_valid() -> None:
    checked = check(b"id,y\n8,2.5\n", NUMBERS)
    assert (checked.verdict, checked.coverage) == ("missing_ids", pytest.approx(1 / 3))


def test_reading_stops_where_no_more_rows_can_be_right() -> None:
    flood = RIGHT + b"8,1\n" * 5_000 + b"this,row,is,never,seen\n"
    assert verdict(flood) == "duplicate_ids"


def test_bytes_at_random_get_a_verdict() -> None:
    random = np.random.default_rng(0)
    alphabet = np.frombuffer(b"id,y\n\r\"';0178.-e\xef\xbb\xbf\0\xffna", dtype=np.uint8)
    seen = set()
    for _ in range(3_000):
        noise = random.choice(alphabet, size=random.integers(40)).tobytes()
        seen |= {verdict(noise), verdict(b"id,y\n" + noise), verdict(RIGHT + noise, LABELS)}
    assert {"not_text", "not_csv", "wrong_columns", "ragged_rows", "extra_ids"} <= seen


def test_the_least_number_above_minus_one_has_a_logarithm() -> None:
    form = Form("id", ("y",), IDS, "numbers", minimum=math.nextafter(-1.0, 0.0))
    assert cells(form, "-0.999", "0", "1").verdict == "valid"
    assert cells(form, "-1", "0", "1").verdict == "out_of_range"

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappa_trainer.coaching import (
    Cost,
    Unscored,
    check_budget,
    check_share,
    cost,
    cost_metrics,
    dollars,
    in_words,
    run_cost_lines,
    unscored,
    unscored_metrics,
)
from mappa_trainer.errors import UnjudgedError

RUN = Path("runs/x")


def action(agent: str, failure: str | None = None, **more: Any) -> dict[str, Any]:
    status = "unscored" if failure else "scored"
    ledger = {"status": status, "failure": failure, "rationale": f"why {agent}", **more}
    return {"agent": agent, "ledger": ledger}


def spent(calls: int, usd: float | None) -> dict[str, Any]:
    return {"calls": calls, "input_tokens": 100 * calls, "output_tokens": calls, "usd": usd}


def record(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"actions": list(actions)}


FAILING = [
    record(action("ann", "unparsable"), action("bob", "unreachable"), action("ann")),
    record(action("ann"), action("cat", "unreachable")),
]


def test_what_is_unscored_is_counted_by_kind_and_agent_by_hand() -> None:
    assert unscored_metrics(FAILING, ["ann", "bob", "cat", "dan"]) == {
        "unscored_share": 3 / 5,
        "unscored/unreachable": 2,
        "unscored/unparsable": 1,
        "ann/unscored_share": 1 / 3,
        "bob/unscored_share": 1.0,
        "cat/unscored_share": 1.0,
    }
    found = unscored(FAILING)
    assert found == Unscored(5, {"unreachable": 2, "unparsable": 1}, "why bob")
    assert in_words(found.failures) == "3 unscored: 2 unreachable, 1 unparsable"
    assert in_words(unscored(FAILING[:0]).failures) == ""


def test_a_ledger_without_kinds_of_failure_is_counted_all_the_same() -> None:
    bare = {"agent": "ann", "ledger": {"status": "unscored", "reward": 0.0}}
    assert unscored([record(bare)]) == Unscored(1, {"unjudged": 1})


def test_without_a_coach_nothing_is_counted() -> None:
    records = [record({"agent": "ann", "ledger": None})]
    assert unscored(records).share == 0.0
    assert unscored_metrics(records, ["ann"]) == {}
    assert cost(records) is None
    assert cost_metrics(records, ["ann"]) == {}


def test_a_share_is_too_large_above_the_limit_and_not_at_it() -> None:
    found = unscored(FAILING)
    check_share(found, 0.6, "train-0003", RUN)
    with pytest.raises(UnjudgedError, match=r"60% of 5 .* train.max_unscored = 0\.59; 3 unscored"):
        check_share(found, 0.59, "train-0003", RUN)
    check_share(unscored([]), 0.0, "train-0003", RUN)


def test_what_an_endpoint_said_is_cut_short_and_commands_no_terminal() -> None:
    said = "\x1b[31m" + "long " * 200
    records = [record(action("ann", "over_budget", rationale=said))]
    with pytest.raises(UnjudgedError) as caught:
        check_budget(records, "eval-0000-greedy", RUN)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
    check_budget(FAILING, "eval-0000-greedy", RUN)


def test_a_budget_that_ends_in_a_second_look_that_does_not_pay_is_seen() -> None:
    records = [record(action("ann", hindsight_failure="over_budget", paid_by="first"))]
    assert unscored(records).failures == {}
    with pytest.raises(UnjudgedError, match="1 of 1 actions were not judged for it"):
        check_budget(records, "train-0000", RUN)


def test_the_failure_that_counts_is_that_of_the_look_that_pays() -> None:
    more = {"hindsight_failure": "truncated"}
    first = record(action("ann", "unreachable", paid_by="first", **more))
    second = record(action("ann", "unreachable", paid_by="hindsight", **more))
    assert unscored([first]).failures == {"unreachable": 1}
    assert unscored([second]).failures == {"truncated": 1}


def test_a_price_that_is_not_known_makes_the_sum_unknown_and_leaves_it_out() -> None:
    records = [
        record(action("ann", spent=spent(2, 0.5)), action("bob", spent=spent(1, None))),
        record(action("ann", spent=spent(1, 0.25)), action("cat"), action("cat", "unparsable")),
    ]
    assert cost(records, "ann") == Cost(3, 300, 3, 0.75)
    assert cost(records) == Cost(4, 400, 4, None)
    assert cost(records, "cat") is None
    assert cost_metrics(records, ["ann", "bob", "cat"]) == {
        "coach/calls": 4,
        "coach/input_tokens": 400,
        "coach/output_tokens": 4,
        "ann/coach_calls": 3,
        "ann/coach_input_tokens": 300,
        "ann/coach_output_tokens": 3,
        "ann/coach_usd": 0.75,
        "bob/coach_calls": 1,
        "bob/coach_input_tokens": 100,
        "bob/coach_output_tokens": 1,
    }
    assert str(cost(records)) == "4 calls, price not known"


def test_what_a_cache_held_is_judged_for_nothing_and_that_is_known() -> None:
    free = [record(action("ann", spent=spent(0, 0.0)))]
    assert cost_metrics(free, []) == {
        "coach/calls": 0,
        "coach/input_tokens": 0,
        "coach/output_tokens": 0,
        "coach/usd": 0.0,
    }
    assert str(cost(free)) == "$0.00, 0 calls"


def test_a_run_costs_what_its_phases_do() -> None:
    rows = [{"agent": name, **spent(n, n / 8)} for name, n in (("ann", 9), ("bob", 1), ("ann", 6))]
    assert list(run_cost_lines(rows)) == [
        "the whole run: coach $2.00, 16 calls, 1,600 tokens in, 16 out",
        "ann $1.88, 15 calls  bob $0.12, 1 call",
    ]
    assert list(run_cost_lines([])) == []


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0.00"),
        (0.00004, "$0.000040"),
        (0.0123, "$0.012"),
        (0.25, "$0.25"),
        (1234.567, "$1,234.57"),
    ],
)
def test_an_amount_has_cents_or_two_digits_that_count(usd: float, text: str) -> None:
    assert dollars(usd) == text

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the coach extra is not installed")

from endpoints import endpoint_at, failure_of, messages

from mappa_envs.coach.budget import Budget, Price, load_prices
from mappa_envs.coach.endpoint import Endpoint
from mappa_envs.coach.requests import Request
from mappa_envs.coach.settings import Settings
from mappa_envs.errors import CoachError, ScenarioError
from mappa_envs.testing.stub_endpoint import Fail, StubEndpoint
from mappa_envs.types import Message, Spent

PROMPT = "x" * 300  # at most 100 tokens by the estimate, and 75 by the stub's count
REPLY = "SCORE: 8" + " " * 32  # 10 tokens
LIMITS = {"max_tokens": 20, "json_schema": False}


@pytest.fixture
def prices(tmp_path: Path) -> str:
    """A token costs 0.01 USD, in and out: a call at most 1.20, and 0.85 in the end."""
    path = tmp_path / "prices.toml"
    path.write_text("[stub]\ninput = 10_000\noutput = 10_000\n", encoding="utf-8")
    return str(path)


def test_shipped_prices_say_when_they_held_and_who_says_so() -> None:
    prices = load_prices()
    assert prices["gpt-4.1-mini"].cost(1_000_000, 500_000) == pytest.approx(0.40 + 0.80)
    for price in prices.values():
        assert datetime.date.fromisoformat(f"{price.as_of}-01"[:10]) > datetime.date(2025, 1, 1)
        assert price.source.startswith("https://")
        assert 0 < price.input < price.output


def test_a_file_is_laid_over_the_shipped_prices(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('["gpt-4.1-mini"]\ninput = 1\noutput = 2\n[mine]\ninput = 0\noutput = 0\n')
    prices = load_prices(path)
    assert prices["gpt-4.1-mini"] == Price(input=1, output=2)
    assert prices["mine"].cost(10, 10) == 0
    assert prices["gpt-5"] == load_prices()["gpt-5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[m]\ninput = 1\n", r"m\.output: Field required"),
        ("[m]\ninput = -1\noutput = 1\n", r"m\.input: .* greater than or equal to 0 \(it is -1\)"),
        ("[m]\ninput = nan\noutput = 1\n", r"m\.input: .*finite"),
        ("[m]\ninput = 1\noutput = 1\nper = 1\n", r"m\.per: Extra inputs"),
        ("m = 1\n", r"m: "),
        ("[m\n", r"is no TOML"),
        (None, r"cannot be read \(No such file"),
    ],
)
def test_a_wrong_price_file_is_an_error_that_names_the_place(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "own.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"own\.toml: {said}"):
        load_prices(path)


def test_a_budget_without_a_price_is_refused_when_the_endpoint_is_made() -> None:
    said = r"budget_usd is 2, and the price of 'x' is not known; .*\[\"x\"\] input = 0\.40"
    with pytest.raises(ScenarioError, match=said):
        Endpoint(Settings("x", budget_usd=2.0))
    Endpoint(Settings("x"))


def test_a_call_costs_what_its_tokens_cost(prices: str) -> None:
    with StubEndpoint(replies=[REPLY, "no", REPLY]) as stub:
        endpoint = endpoint_at(stub, prices=prices, **LIMITS)
        spent = endpoint.judge_blocking(messages(PROMPT), 10).spent
        assert spent == Spent(1, 75, 10, pytest.approx(0.85))
        assert endpoint.judge_blocking(messages(PROMPT), 10).spent.calls == 2
    assert endpoint.spent.usd == pytest.approx(
        (endpoint.spent.input_tokens + endpoint.spent.output_tokens) / 100
    )


def test_a_failed_request_costs_nothing_that_is_known(prices: str) -> None:
    with StubEndpoint(replies=[Fail("500"), Fail("429"), REPLY]) as stub:
        verdict = endpoint_at(stub, prices=prices, **LIMITS).judge_blocking(messages(PROMPT), 10)
    assert verdict.spent == Spent(3, 75, 10, pytest.approx(0.85))


def test_an_unknown_price_is_no_number() -> None:
    with StubEndpoint(replies=[REPLY]) as stub:
        assert endpoint_at(stub).judge_blocking(messages(PROMPT), 10).spent.usd is None


@pytest.mark.parametrize(("budget", "calls"), [(0.0, 0), (1.19, 0), (1.2, 1), (2.04, 1), (2.05, 2)])
def test_a_call_is_made_where_the_most_it_may_cost_fits(
    prices: str, budget: float, calls: int
) -> None:
    with StubEndpoint(replies=[REPLY] * 3) as stub:
        endpoint = endpoint_at(stub, prices=prices, budget_usd=budget, **LIMITS)
        for _ in range(calls):
            endpoint.judge_blocking(messages(PROMPT), 10)
        error = failure_of(endpoint, PROMPT)
        assert len(stub.requests) == calls
    assert error.failure == "over_budget"
    assert error.spent == Spent()
    assert f"the budget of {budget:g} USD is used up" in str(error)
    assert "the next call may cost 1.2 USD; raise budget_usd" in str(error)


def test_calls_at_the_same_time_keep_to_the_budget_and_use_it_up(prices: str) -> None:
    async def judge_all(endpoint: Endpoint) -> list[Any]:
        asked = (endpoint.judge(messages(PROMPT), 10) for _ in range(40))
        return await asyncio.gather(*asked, return_exceptions=True)

    with StubEndpoint(replies=[REPLY] * 40, delay=0.02) as stub:
        endpoint = endpoint_at(stub, prices=prices, budget_usd=10.0, **LIMITS)
        found = asyncio.run(judge_all(endpoint))
    refused = [error for error in found if isinstance(error, CoachError)]
    assert {error.failure for error in refused} == {"over_budget"}
    assert len(refused) == 40 - 11  # after 11 at 0.85 the next does not fit: 9.35 + 1.20 > 10
    assert endpoint.spent.usd == pytest.approx(11 * 0.85)
    assert stub.most_in_flight <= 8  # 8 at 1.20 fit beside each other


def test_a_resumed_run_goes_on_with_what_its_cache_cost(prices: str, tmp_path: Path) -> None:
    settings = {"prices": prices, "cache": str(tmp_path / "cache"), "budget_usd": 2.0, **LIMITS}
    with StubEndpoint(replies=[REPLY] * 2) as stub:
        first = endpoint_at(stub, **settings).judge_blocking(messages(PROMPT), 10)
        resumed = endpoint_at(stub, **settings)
        assert resumed.judge_blocking(messages(PROMPT), 10).score == first.score
        error = failure_of(resumed, f"{PROMPT}!")
        assert len(stub.requests) == 1
    assert error.failure == "over_budget"
    assert "0.85 USD are spent" in str(error)


def test_a_reservation_waits_for_those_that_may_leave_room_and_no_longer() -> None:
    async def play() -> list[str]:
        budget, order = Budget(1.0), list[str]()

        async def call(name: str, most: float, usd: float) -> None:
            async with budget.reserved(most) as spend:
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                spend(usd)
            order.append(f"{name} ends")

        await asyncio.gather(call("a", 0.7, 0.1), call("b", 0.8, 0.8), call("c", 0.2, 0.1))
        with pytest.raises(CoachError):
            await call("d", 0.01, 0.01)
        assert budget.spent == pytest.approx(1.0)
        return order

    assert asyncio.run(play()) == [
        "a begins",
        "c begins",
        "a ends",
        "c ends",
        "b begins",
        "b ends",
    ]


def test_sums_of_cents_are_not_refused_for_their_rounding() -> None:
    async def play() -> float:
        budget = Budget(0.3)
        for _ in range(3):  # 0.1 + 0.1 + 0.1 is a little more than 0.3
            async with budget.reserved(0.1) as spend:
                spend(0.1)
        return budget.spent

    assert asyncio.run(play()) == pytest.approx(0.3)


def test_what_is_cancelled_gives_its_reservation_back() -> None:
    async def play() -> None:
        budget = Budget(1.0)

        async def hold() -> None:
            async with budget.reserved(1.0):
                await asyncio.sleep(60)

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        holding.cancel()
        async with budget.reserved(1.0) as spend:
            spend(1.0)

    asyncio.run(play())


def test_other_letters_than_those_of_english_are_taken_for_two_tokens() -> None:
    def most(text: str) -> int:
        message = Message(role="user", content=text)
        return Request("m", (message,), 0.0, 10, json_schema=True).most_input_tokens

    assert most("a" * 300) == 100
    assert most("\u4e2d" * 300) == 600
    assert most("aaa\u4e2d") == 3

"""A team is trained by a model over a real connection, and no number in the run is made up."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import MAPPA

pytest.importorskip("openai", reason="needs the extra 'coach'")
pytest.importorskip("torch", reason="needs the extra 'train'")

from mappa_envs.testing.stub_endpoint import StubEndpoint
from mappa_envs.testing.stub_replies import score_of
from mappa_trainer import train
from mappa_trainer.console import Console
from mappa_trainer.errors import UnjudgedError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory

MakeRecipe = Callable[..., Recipe]
SHORT = {"iterations": 2, "save_every": 2}
CLOCK = ("seconds/", "tokens_per_second/")


def asking(stub: StubEndpoint, **table: Any) -> dict[str, Any]:
    """A `[coach]` table for the stub; the key is no part of it."""
    return {"kind": "llm", "model": "stub", "base_url": stub.base_url, "concurrency": 8, **table}


def entries(run: Path) -> Iterator[dict[str, Any]]:
    """Every ledger entry of a run's episodes, of training and evaluation."""
    directory = RunDirectory.open(run)
    for name in directory.episode_names():
        for episode in directory.episodes(name):
            yield from (action["ledger"] for action in episode["actions"])


def scores_by_prompt(stub: StubEndpoint) -> dict[str, float]:
    """What the stub would say of each request that it got, by the request's hash."""
    bodies = [asked.body for asked in stub.requests]
    compact = {"sort_keys": True, "separators": (",", ":")}
    return {
        hashlib.sha256(json.dumps(body, **compact).encode()).hexdigest(): score_of(body)
        for body in bodies
    }


@pytest.mark.parametrize("permanent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_with_three_calls_in_ten_failing_every_count_is_exact_and_no_score_is_made_up(
    make_recipe: MakeRecipe, tmp_path: Path, permanent: bool
) -> None:
    with StubEndpoint(fail=0.3, permanent=permanent, seed=3) as stub:
        table = asking(stub, deadline_s=1.0, deferred=permanent)
        recipe = make_recipe(coach=table, train={**SHORT, "max_unscored": 1.0})
        assert train.start(recipe, tmp_path / "run", Console())
    found = list(entries(tmp_path / "run"))
    known = scores_by_prompt(stub)
    assert len(found) == 2 * 3 * 3 + 2 * 2 * 3
    for entry in found:
        if entry["status"] == "scored":
            assert entry["score"] == known[entry["prompt_hash"]]
            assert entry["reward"] == pytest.approx(entry["score"] / 10)
        else:
            assert (entry["status"], entry["score"], entry["reward"]) == ("unscored", None, 0.0)
    assert sum(entry["spent"]["calls"] for entry in found) == len(stub.requests)

    failures = Counter(entry["failure"] for entry in found if entry["failure"])
    assert set(failures) <= {
        *("unreachable", "rate_limited", "refused", "unparsable", "out_of_range", "truncated")
    }
    rows = RunDirectory.open(tmp_path / "run").metrics()
    trained = Counter()
    for row in rows:
        counts = {k.partition("/")[2]: int(v) for k, v in row.items() if k.startswith("unscored/")}
        trained += Counter(counts)
        assert row["unscored_share"] == sum(counts.values()) / 9
        dropped = sum(row[f"{agent}_0/dropped"] for agent in ("solver", "coder", "verifier"))
        assert dropped == sum(counts.values())
    of_training = [
        action["ledger"]["failure"]
        for name in ("train-0000", "train-0001")
        for episode in RunDirectory.open(tmp_path / "run").episodes(name)
        for action in episode["actions"]
    ]
    assert trained == Counter(filter(None, of_training))
    assert failures or not permanent


@pytest.mark.slow
def test_a_run_is_coached_again_from_its_recording_and_comes_out_the_same(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    with StubEndpoint(fail=0.2, kinds=("unreadable", "500"), permanent=True) as stub:
        table = asking(stub, deadline_s=0.5)
        recipe = make_recipe(coach=table, train={**SHORT, "max_unscored": 1.0})
        assert train.start(recipe, tmp_path / "first", Console())
    replay = {"kind": "replay", "recording": str(tmp_path / "first")}
    recipe = recipe.model_copy(update={"coach": replay})
    assert train.start(recipe, tmp_path / "again", Console())
    first, again = (RunDirectory.open(tmp_path / name) for name in ("first", "again"))
    for one, other in zip(first.metrics(), again.metrics(), strict=True):
        kept = {k for k in one if not k.startswith((*CLOCK, "coach/")) and "coach_" not in k}
        assert kept == {k for k in other if not k.startswith(CLOCK)}
        assert {k: one[k] for k in kept} == {k: other[k] for k in kept}
    assert any(entry["failure"] for entry in entries(tmp_path / "again"))


@pytest.mark.slow
def test_a_cache_pays_for_a_run_once(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    with StubEndpoint() as stub:
        table = asking(stub, cache=str(tmp_path / "cache"))
        recipe = make_recipe(coach=table, train=SHORT)
        assert train.start(recipe, tmp_path / "first", Console())
        asked = len(stub.requests)
        assert train.start(recipe, tmp_path / "again", Console())
        assert len(stub.requests) == asked
    assert sum(e["spent"]["calls"] for e in entries(tmp_path / "first")) == asked
    assert sum(e["spent"]["calls"] for e in entries(tmp_path / "again")) == 0
    scores = [[entry["score"] for entry in entries(tmp_path / n)] for n in ("first", "again")]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_an_outage_stops_a_run_before_it_trains_and_it_goes_on_when_it_is_over(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    with StubEndpoint(fail=1.0, kinds=("500",)) as stub:
        recipe = make_recipe(coach=asking(stub, deadline_s=0.2), train={**SHORT, "iterations": 1})
        port = int(stub.base_url.split(":")[2].partition("/")[0])
        with pytest.raises(UnjudgedError, match=r"100% of 9 actions .* 9 unscored: 9 unreachable"):
            train.start(recipe, tmp_path / "run", Console())
    with StubEndpoint(port=port):
        assert train.resume(tmp_path / "run", Console())
    rows = RunDirectory.open(tmp_path / "run").metrics()
    assert [row["unscored_share"] for row in rows] == [0.0]


@pytest.mark.slow
def test_a_budget_ends_a_run_and_a_larger_one_goes_on_with_what_was_spent(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[stub]\ninput = 1000\noutput = 1000\n")
    with StubEndpoint() as stub:
        table = asking(
            stub,
            cache=str(tmp_path / "cache"),
            prices=str(prices),
            budget_usd=8.0,
            max_tokens=64,
        )
        recipe = make_recipe(coach=table, train={**SHORT, "iterations": 1})
        with pytest.raises(UnjudgedError, match=r"the coach's budget is spent, .* of \d+ actions"):
            train.start(recipe, tmp_path / "run", Console())
        config = tmp_path / "run" / "config.json"
        config.write_text(config.read_text().replace('"budget_usd": 8.0', '"budget_usd": 900.0'))
        assert train.resume(tmp_path / "run", Console())
        paid = sum(
            json.loads(path.read_text())["usd"] for path in (tmp_path / "cache").glob("??/*.json")
        )
    costs = RunDirectory.open(tmp_path / "run").costs()
    assert sum(row["usd"] for row in costs) == pytest.approx(paid)
    assert paid < 900.0


@pytest.mark.slow
def test_the_command_trains_against_a_server_that_fails(recipe_file: Path, tmp_path: Path) -> None:
    stub = subprocess.Popen(
        [sys.executable, "-m", "mappa_envs.testing.stub_endpoint", "--port", "0", "--fail", "0.3"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stub.stdout is not None
        url = stub.stdout.readline().strip()
        run = tmp_path / "run"
        keys = {
            "coach.kind": "llm",
            "coach.model": "stub",
            "coach.base_url": url,
            "coach.deferred": "true",
            "train.iterations": "2",
            "train.max_unscored": "0.9",
        }
        settings = [part for k, v in keys.items() for part in ("--set", f"{k}={v}")]
        command = [sys.executable, "-c", MAPPA]
        done = subprocess.run(
            [*command, "train", str(recipe_file), *settings, "--out", str(run)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "calls" in done.stdout
        audited = subprocess.run(
            [*command, "audit", str(run), "--json"], capture_output=True, text=True, timeout=60
        )
        assert audited.returncode == 0, audited.stderr
        report = json.loads(audited.stdout)
        assert report
    finally:
        stub.kill()
        stub.wait()

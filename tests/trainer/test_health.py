from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa_trainer import train
from mappa_trainer.checkpoint import latest_checkpoint
from mappa_trainer.console import Console
from mappa_trainer.errors import AlarmError
from mappa_trainer.health import alarms
from mappa_trainer.recipe import Recipe
from mappa_trainer.recipe_tables import AlarmsTable
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.show import show_episode

MakeRecipe = Callable[..., Recipe]


def rows(name: str, *values: float | None) -> list[dict[str, float]]:
    return [
        {"iteration": i} | ({} if value is None else {f"ann/{name}": value})
        for i, value in enumerate(values)
    ]


def raised(history: list[dict[str, float]], **tables: Any) -> list[tuple[str, int, bool]]:
    table = AlarmsTable.model_validate(tables)
    return [(a.name, a.iteration, a.stops) for a in alarms(history, ["ann", "bob"], table)]


def test_equal_rewards_are_counted_in_a_row() -> None:
    three = {"equal_scores": {"iterations": 3}}
    assert raised(rows("reward_std", 0, 0, 0.1, 0, 0), **three) == []
    found = raised(rows("reward_std", 0, 0.1, 0, 0, 0, 0, 0.2), **three)
    assert found == [("equal_scores", 4, False)]


def test_an_iteration_without_training_neither_counts_nor_breaks_the_row() -> None:
    found = raised(rows("reward_std", 0, None, 0), equal_scores={"iterations": 2})
    assert found == [("equal_scores", 2, False)]


def test_entropy_is_compared_with_the_first() -> None:
    half = {"entropy_collapse": {"share": 0.5, "rule": "stop"}}
    assert raised(rows("entropy", 2.0, 1.0, 3.0), **half) == []
    assert raised(rows("entropy", 2.0, 1.1, 0.9, 0.1), **half) == [("entropy_collapse", 2, True)]


def test_length_is_compared_with_the_first() -> None:
    assert raised(rows("tokens", 10, 40, 39)) == []
    assert raised(rows("tokens", 10, 20, 41)) == [("length_blow_up", 2, False)]


def cut(actions: int, share: float, left_out: int = 0) -> dict[str, float]:
    return {"ann/actions": actions, "ann/cut_share": share, "ann/dropped_truncated": left_out}


def test_actions_that_are_cut_off_are_counted_in_a_row() -> None:
    two = {"truncation": {"share": 0.5, "iterations": 2}}
    mostly, half, nobody = cut(4, 0.75), cut(4, 0.5), {"ann/actions": 0}

    def found(*counts: dict[str, float]) -> list[tuple[str, int, bool]]:
        return raised([{"iteration": i} | row for i, row in enumerate(counts)], **two)

    assert found(mostly, half, mostly) == []
    assert found(mostly, nobody, mostly) == [("truncation", 2, False)]


def test_actions_left_out_because_they_were_cut_off_count_as_cut_off() -> None:
    one = {"truncation": {"share": 0.5, "iterations": 1}}
    assert raised([{"iteration": 0} | cut(2, 0.0, left_out=2)], **one) == []
    assert raised([{"iteration": 0} | cut(2, 0.0, left_out=3)], **one) == [("truncation", 0, False)]
    all_left_out = {"iteration": 0, "ann/actions": 0, "ann/dropped_truncated": 3}
    assert raised([all_left_out], **one) == [("truncation", 0, False)]


def test_a_kl_beyond_its_limit() -> None:
    assert raised(rows("kl", 0.0, 1.0), kl_blow_up={"nats": 1.0}) == []
    assert raised(rows("kl", 0.0, 1.1), kl_blow_up={"nats": 1.0}) == [("kl_blow_up", 1, False)]


def test_a_rule_that_is_off_says_nothing() -> None:
    assert raised(rows("kl", 99.0), kl_blow_up={"rule": "off"}) == []


def test_what_is_said_names_the_rule_the_agent_and_the_values() -> None:
    (alarm,) = alarms(rows("tokens", 10, 41), ["ann"], AlarmsTable())
    assert str(alarm) == (
        "alarm length_blow_up, iteration 2: ann writes 41 tokens an action, after 10 at first"
    )


def test_a_warning_is_said_once_and_kept(
    make_recipe: MakeRecipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe(alarms={"entropy_collapse": {"share": 0.999999}})
    assert train.start(recipe, tmp_path / "run", Console())
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("alarm ")]
    assert said
    assert len(said) == len(set(said)) <= 3
    show_episode(tmp_path / "run", 0, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert all(line in shown for line in said)


def test_a_stop_leaves_a_checkpoint_and_resuming_goes_on(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    recipe = make_recipe(
        alarms={"kl_blow_up": {"nats": 1e-12, "rule": "stop"}}, train={"save_every": 4}
    )
    with pytest.raises(AlarmError, match=r"alarm kl_blow_up, iteration \d: \w+_0 is \d+.\d nats"):
        train.start(recipe, path, Console())
    done = latest_checkpoint(path)[1]
    assert 0 < done < 4
    assert len(RunDirectory.open(path).metrics()) == done
    for _ in range(3):  # an alarm for each agent at the most
        try:
            assert train.resume(path, Console())
            break
        except AlarmError:
            continue
    assert latest_checkpoint(path)[1] == 4

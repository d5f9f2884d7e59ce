from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pandas", reason="needs the extra datascience")
pytest.importorskip("sklearn", reason="needs the extra datascience")

from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.team_files import load_team, scenario_teams

FAULTS = ("engineer-leaks-target", "modeler-rewrites-features", "analyst-shuffles-ids")


def load_benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "blame.py"
    spec = importlib.util.spec_from_file_location("blame", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["blame"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


blame: Any = load_benchmark()
CLEAN = blame.Verdict("oracle", "", "iris", "classification", 0, (("engineer", 10.0),), (), 1, "v")


def verdict(team: str, culprit: str, *scores: tuple[str, float]) -> Any:
    return replace(CLEAN, team=team, culprit=culprit, scores=scores)


@pytest.mark.parametrize("task", ["iris", pytest.param("diabetes", marks=pytest.mark.slow)])
def test_blame_falls_on_the_culprit(task: str) -> None:
    verdicts = {v.team: v for v in blame.play_task(task, 0, ["oracle", *FAULTS], "v")}
    assert verdicts.keys() == {"oracle", *FAULTS}
    for team, found in verdicts.items():
        assert found.blamed == (found.culprit or "nobody"), (team, found.scores, found.reasons)
        assert found.outcome < verdicts["oracle"].outcome or team == "oracle"


def test_every_team_with_a_fault_names_its_culprit_and_three_kinds_are_held_out() -> None:
    folder = scenario_folder("dsbench")
    scenario = load_scenario(folder)
    planted = {n for n in scenario_teams(folder) if load_team(folder, n, scenario).culprit}
    assert len(planted) >= 12
    assert len(blame.HELD_OUT) >= 3
    assert blame.HELD_OUT.keys() <= planted
    assert {name.partition("-")[0] for name in planted} == set(scenario.roles)


def test_the_lowest_score_is_blamed_the_earliest_of_equals_and_nobody_where_all_are_full() -> None:
    assert verdict("x", "modeler", ("engineer", 9.0), ("modeler", 8.0)).blamed == "modeler"
    assert verdict("x", "modeler", ("engineer", 8.0), ("modeler", 8.0)).blamed == "engineer"
    assert verdict("x", "modeler", ("engineer", 10.0), ("modeler", 10.0)).blamed == "nobody"


def test_the_summary_counts_designed_and_held_out_faults_apart() -> None:
    held = next(iter(blame.HELD_OUT))
    found = blame.summary(
        [
            CLEAN,
            verdict("oracle", "", ("engineer", 9.5)),
            verdict("a", "modeler", ("engineer", 10.0), ("modeler", 2.0)),
            verdict("a", "modeler", ("engineer", 1.0), ("modeler", 2.0)),
            verdict(held, "engineer", ("engineer", 1.0), ("modeler", 10.0)),
        ]
    )
    assert found["on the culprit"] == {
        "all": pytest.approx(2 / 3),
        "designed": 0.5,
        "held out": 1.0,
    }
    assert found["matrix"]["a"]["blamed"] == {"modeler": 1, "engineer": 1}
    assert (found["clean episodes"], found["false blame"]) == (2, 0.5)
    assert found["lowest clean score"] == 9.5


def test_what_was_played_is_read_back_unless_it_is_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "blame.jsonl"
    assert list(blame.read(path, "v")) == []
    old = asdict(replace(CLEAN, version="old"))
    path.write_text(json.dumps(old) + "\n" + json.dumps(asdict(CLEAN)) + "\n", encoding="utf-8")
    assert list(blame.read(path, "v")) == [CLEAN]


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "blame.jsonl"
    line = replace(CLEAN, version=blame.version())
    path.write_text(json.dumps(asdict(line)) + "\n", encoding="utf-8")
    begun: list[tuple[Any, ...]] = []

    class Pool:
        def __init__(self, jobs: int) -> None:
            assert jobs == 1

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

        def submit(self, function: object, *arguments: Any) -> None:
            begun.append(arguments[:3])

    monkeypatch.setattr(blame, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(blame, "as_completed", lambda futures: [])
    blame.run(["iris", "wine"], ["oracle", "modeler-unfitted"], 1, path, 1)
    assert begun == [
        ("iris", 0, ["modeler-unfitted"]),
        ("wine", 0, ["oracle", "modeler-unfitted"]),
    ]

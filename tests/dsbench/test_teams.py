from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="needs the extra datasets")
pytest.importorskip("sklearn", reason="needs the extra datasets")
pytest.importorskip("sklego", reason="needs the extra datasets")

from mappa_envs import load_scenario, make_pipeline
from mappa_envs.bench import Result, choose_tasks, make_jobs, run_jobs, summarise
from mappa_envs.env import PipelineEnv
from mappa_envs.play import play
from mappa_envs.scenario import scenario_folder
from mappa_envs.tasks.sources import task_source
from mappa_envs.team_files import load_team, scenario_teams
from mappa_envs.teams import ScenarioTeam

FOLDER = scenario_folder("dsbench")
SCENARIO = load_scenario(FOLDER)
TEAMS = {name: load_team(FOLDER, name, SCENARIO) for name in scenario_teams(FOLDER)}
FAULTS = {name: team.culprit for name, team in TEAMS.items() if team.culprit}
PLAIN = ("oracle", "weak", "random", "noop")
NOT_DELIVERED = {
    "analyst-adds-a-column": "extra_columns",
    "analyst-claims-a-file": "no_submission",
    "analyst-fakes-a-log": "no_submission",
    "engineer-drops-test-rows": "no_submission",
    "engineer-encodes-apart": "no_submission",
    "engineer-forgets-x-test": "no_submission",
    "modeler-rewrites-features": "no_submission",
    "modeler-saves-no-model": "no_submission",
    "modeler-unfitted": "no_submission",
}
NOTHING_SAID = (
    "analyst-copies-the-sample",
    "analyst-writes-a-constant",
    "modeler-ignores-features",
)
"""Valid submissions that are no better than a guess without features."""
SOME_FAULTS = ("engineer-drops-test-rows", "modeler-shuffles-targets", "analyst-adds-a-column")
"""One of each role; the slow tier plays all."""


def results_of(
    teams: Sequence[str], tasks: str, tables: Mapping[str, Any] | None = None
) -> list[Result]:
    """Play teams on tasks, without a coach, with tables laid over the scenario."""
    found: list[Result] = []
    env = make_pipeline("dsbench", scenario=tables)
    source = task_source(load_scenario(FOLDER, tables))
    chosen = choose_tasks(source, tasks, ("train", "test"))
    jobs = make_jobs(teams, chosen, 1)
    try:
        asyncio.run(run_jobs(env, TEAMS, jobs, found.append, at_once=2))
    finally:
        env.close()
    return found


def check_faults(results: Sequence[Result]) -> None:
    """Check the outcomes of faults that come to nothing on any task."""
    for result in results:
        team = result["team"]
        assert result["decided"], result
        if team in NOT_DELIVERED:
            assert (result["verdict"], result["outcome"]) == (NOT_DELIVERED[team], 0.0), result
        elif team in NOTHING_SAID:
            assert result["verdict"] == "valid"
            assert result["outcome"] < 0.05, result


@pytest.fixture
def env() -> Iterator[PipelineEnv]:
    env = make_pipeline("dsbench")
    assert isinstance(env, PipelineEnv)
    yield env
    env.close()


def test_each_fault_changes_one_role_of_the_oracle_team() -> None:
    assert set(TEAMS) == {*PLAIN, *FAULTS}
    assert len(FAULTS) >= 12
    assert set(FAULTS.values()) == set(SCENARIO.roles)
    for name, culprit in FAULTS.items():
        changed = [r for r in SCENARIO.roles if TEAMS[name].texts[r] != TEAMS["oracle"].texts[r]]
        assert changed == [culprit]
        assert name.startswith(f"{culprit}-")
        assert TEAMS[name].about.startswith(f"The {culprit} ")


def test_the_scripts_are_what_the_oracle_team_says() -> None:
    assert {n: role.script for n, role in SCENARIO.roles.items()} == TEAMS["oracle"].texts


@pytest.fixture(scope="module")
def plain() -> list[Result]:
    """The teams without a fault on one task of each type; the ids of chicks have leading zeros."""
    return results_of(PLAIN, "wine,chicks")


def test_what_a_team_does_decides_what_it_comes_to(plain: list[Result]) -> None:
    outcome = {(r["team"], r["task"]): r["outcome"] for r in plain}
    for task, good in (("wine", 0.9), ("chicks", 0.5)):
        assert outcome["oracle", task] > good
        assert outcome["oracle", task] > outcome["weak", task] + 0.1
        assert outcome["weak", task] > max(0.1, outcome["random", task])
        assert outcome["noop", task] == 0.0
    verdicts = {team: {r["verdict"] for r in plain if r["team"] == team} for team in PLAIN}
    assert verdicts.pop("noop") == {"no_submission"}
    assert list(verdicts.values()) == [{"valid"}] * 3


def test_a_fault_of_each_role_costs_the_outcome(plain: list[Result]) -> None:
    results = results_of(SOME_FAULTS, "chicks")
    check_faults(results)
    (oracle,) = [r["outcome"] for r in plain if (r["team"], r["task"]) == ("oracle", "chicks")]
    assert max(result["outcome"] for result in results) < 0.6 * oracle


def test_innocent_roles_say_truthfully_what_is_wrong(env: PipelineEnv) -> None:
    play(env, ScenarioTeam(env, TEAMS["engineer-forgets-x-test"]), 0, {"task": "chicks"})
    modeler, analyst = env.turns[3], env.turns[5]
    assert "model.pkl: ExtraTreesRegressor(" in modeler.action
    assert analyst.action.startswith("What came of it:\nno submission.csv, FileNotFoundError: ")
    assert analyst.missing == ("submission.csv",)
    assert all(result.ok for turn in env.turns for result in turn.tool_results)


def test_files_of_others_stay_as_they_were(env: PipelineEnv) -> None:
    play(env, ScenarioTeam(env, TEAMS["modeler-rewrites-features"]), 0, {"task": "chicks"})
    (result,) = env.turns[2].tool_results
    assert result.files.restored == ("X_test.pkl", "X_train.pkl")
    authors = {file.path: file.author for file in env.turns[-1].files}
    assert authors["X_train.pkl"] == authors["X_test.pkl"] == "engineer_0"
    assert "no submission.csv, ValueError: The feature names should match" in env.turns[-1].action


@pytest.mark.slow
def test_on_all_tasks_the_oracle_beats_the_weak_and_the_weak_those_who_know_nothing() -> None:
    results = results_of(PLAIN, "all")
    mean = {team: figures["outcome"] for team, figures in summarise(results).items()}
    assert mean["oracle"] > mean["weak"] + 0.2
    assert mean["weak"] > mean["random"] + 0.1
    assert mean["random"] > mean["noop"] == 0.0
    valid = [result["verdict"] for result in results if result["team"] != "noop"]
    assert valid == ["valid"] * 99


@pytest.mark.slow
def test_on_tasks_of_all_kinds_a_fault_comes_to_what_it_must() -> None:
    """Two classes, several classes, numbers, and several targets at once."""
    results = results_of(["oracle", *FAULTS], "hearts,wine,diabetes,solar-flares")
    check_faults(results)
    mean = {team: figures["outcome"] for team, figures in summarise(results).items()}
    for name in FAULTS:
        assert mean[name] < 0.6 * mean["oracle"], name


SEVERAL = {
    "playground-series-s3e18": ("id", ("EC1", "EC2"), lambda x: (x > 0, x < 0.5)),
    "lmsys-chatbot-arena": (
        *("id", ("winner_model_a", "winner_model_b", "winner_tie")),
        lambda x: (x < -0.5, x > 0.5, -0.5 <= x <= 0.5),
    ),
    "tabular-playground-series-jul-2021": (
        *("date_time", ("target_carbon_monoxide", "target_benzene", "target_nitrogen_oxides")),
        lambda x: (x + 3, 2 * x + 6, 9 - 3 * x),
    ),
}
"""Competitions with several targets: the id, the targets, and what a feature says of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_the_oracle_predicts_several_targets_of_a_copy(name: str, tmp_path: Path) -> None:
    id_column, targets, answers = SEVERAL[name]
    features = [-3 + 6 * (n * 37 % 101) / 101 for n in range(101)]
    rows = [(n, x, *(f"{float(y):g}" for y in answers(x))) for n, x in enumerate(features)]
    folder, truth = tmp_path / "data_resplit" / name, tmp_path / "answers" / name
    for path, header, table in (
        (folder / "train.csv", (id_column, "x", *targets), rows[:70]),
        (folder / "test.csv", (id_column, "x"), [row[:2] for row in rows[70:]]),
        (
            folder / "sample_submission.csv",
            (id_column, *targets),
            [(r[0], *[0.5] * len(targets)) for r in rows[70:]],
        ),
        (truth / "test_answer.csv", (id_column, *targets), [(r[0], *r[2:]) for r in rows[70:]]),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [",".join(map(str, row)) for row in (header, *table)]
        path.write_text("\n".join([*lines, ""]))
    (result,) = results_of(["oracle"], name, {"tasks": str(tmp_path), "tables": {"only": [name]}})
    assert result["verdict"] == "valid"
    assert result["outcome"] > 0.7

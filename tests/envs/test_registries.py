from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import pettingzoo
import pytest
from pettingzoo.env_registry.registration import aec_registry, parallel_registry

import mappa_envs
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.errors import ScenarioError
from mappa_envs.registration import IDS, register
from mappa_envs.testing import ScriptedCoach
from mappa_envs.views.parallel import TurnBasedParallelEnv
from mappa_envs.views.seat import SeatEnv

TOML = """
name = "pair"
outcome = "math_answer"

[roles.writer]
prompt = "writer.md"

[roles.reader]
prompt = "reader.md"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scenario.toml").write_text(TOML)
    (tmp_path / "writer.md").write_text("Write: {{ problem }}")
    (tmp_path / "reader.md").write_text("Read: {{ writer.message }}")
    return tmp_path


def made(env_id: str, seat: str, **tables: Any) -> tuple[Any, Any, Any]:
    """The environment of an id from each of the three registries."""
    return (
        pettingzoo.make("aec", env_id, **tables),
        pettingzoo.make("parallel", env_id, **tables),
        gymnasium.make(env_id, seat=seat, **tables).unwrapped,
    )


# --- ids --------------------------------------------------------------------------------------


def test_every_id_is_in_all_three_registries() -> None:
    assert list(IDS) == ["mappa/DSBench-v0", "mappa/MathChat-v0", "mappa/Scenario-v0"]
    for registry in (aec_registry, parallel_registry, gymnasium.registry):
        assert [name for name in registry if name.startswith("mappa/")] == list(IDS)


@pytest.mark.filterwarnings("error")
def test_mathchat_in_every_interface() -> None:
    aec, parallel, seat = made("mappa/MathChat-v0", "coder_0", render_mode="ansi")
    assert type(aec) is PipelineEnv
    assert type(parallel) is TurnBasedParallelEnv
    assert type(seat) is SeatEnv
    assert seat.seat == "coder_0"
    for env in (aec, parallel.aec_env, seat.aec_env):
        assert env.unwrapped.scenario.name == "mathchat"
        assert env.render_mode == "ansi"


@pytest.mark.filterwarnings("error")
def test_dsbench_in_every_interface() -> None:
    for package in ("pandas", "sklearn", "sklego"):
        pytest.importorskip(package, reason="needs the extra datasets")
    only = {"tables": {"only": ["wine", "iris", "diabetes", "chicks"]}}
    aec, parallel, seat = made("mappa/DSBench-v0", "analyst_0", scenario=only)
    assert type(aec) is PipelineEnv
    assert type(parallel) is TurnBasedParallelEnv
    assert type(seat) is SeatEnv
    for env in (aec, parallel, seat):
        assert env.metadata["name"] == "dsbench_v0"
        assert sorted(env.metadata["task_ids"]) == ["test", "train"]
    aec.reset(seed=1, options={"task": "iris"})
    parallel.reset(seed=1, options={"task": "iris"})
    observation, info = seat.reset(seed=1, options={"task": "iris"})
    assert aec.infos["engineer_0"]["task"]["id"] == info["task"]["id"] == "iris"
    assert observation["messages"][0]["content"].startswith("You are the analyst of a team.")
    for env in (aec, parallel, seat):
        env.close()


@pytest.mark.filterwarnings("error")
def test_a_scenario_of_ones_own_in_every_interface(folder: Path) -> None:
    for place in (folder, str(folder)):
        aec, parallel, seat = made("mappa/Scenario-v0", "reader_0", folder=place)
        assert aec.possible_agents == parallel.possible_agents == ["writer_0", "reader_0"]
        assert seat.seat == "reader_0"
        assert aec.metadata["name"] == "pair_v0"


def test_a_shipped_scenario_by_its_name() -> None:
    env = pettingzoo.make("aec", "mappa/Scenario-v0", folder="mathchat")
    assert env.unwrapped.scenario.name == "mathchat"


def test_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for path in (folder.name, f".{os.sep}{folder.name}"):
        assert mappa_envs.make_pipeline(path).unwrapped.scenario.name == "pair"


def test_ids_are_found_without_their_version_and_module_first() -> None:
    assert type(pettingzoo.make("aec", "mappa/MathChat")) is PipelineEnv
    env = gymnasium.make("mappa_envs:mappa/MathChat-v0", seat="solver_0")
    assert type(env.unwrapped) is SeatEnv


@pytest.mark.parametrize("coach", [{"kind": "rubric"}, ScriptedCoach(5.0)])
def test_a_coach_is_a_table_or_an_object(coach: Any) -> None:
    aec, parallel, seat = made("mappa/MathChat-v0", "coder_0", coach=coach)
    for env in (aec, parallel.aec_env, seat.aec_env):
        assert type(env) is CoachWrapper
    if isinstance(coach, ScriptedCoach):
        assert aec.coach is coach


def test_coaching_is_deferred_when_the_table_says_so() -> None:
    for table, deferred in (({}, False), ({"deferred": True}, True), ({"deferred": False}, False)):
        assert made("mappa/MathChat-v0", "coder_0", coach=table)[0].deferred is deferred


def test_tables_that_are_passed_in_stay_as_they_are() -> None:
    tables: dict[str, Any] = {
        "scenario": {"roles": {"coder": {"max_turns": 1}}},
        "coach": {"outcome_weight": 0.5},
        "sandbox": {"preload": []},
    }
    before = repr(tables)
    aec, parallel, seat = made("mappa/MathChat-v0", "coder_0", **tables)
    aec.metadata["name"] = parallel.metadata["name"] = seat.metadata["name"] = "changed"
    assert repr(tables) == before
    for spec in (
        pettingzoo.spec("aec", "mappa/MathChat-v0"),
        pettingzoo.spec("parallel", "mappa/MathChat-v0"),
        gymnasium.spec("mappa/MathChat-v0"),
    ):
        assert spec.kwargs == {"folder": "mathchat"}
    assert made("mappa/MathChat-v0", "coder_0")[0].metadata["name"] == "mathchat_v0"


# --- wrong input ------------------------------------------------------------------------------


def test_a_seat_must_be_given() -> None:
    with pytest.raises(ScenarioError) as caught:
        gymnasium.make("mappa/MathChat-v0")
    assert str(caught.value) == (
        "no seat is given; add seat=..., one of: solver_0, coder_0, verifier_0"
    )


def test_a_wrong_seat() -> None:
    with pytest.raises(ScenarioError, match=r"^seat is 'coder'; did you mean 'coder_0'\?$"):
        gymnasium.make("mappa/MathChat-v0", seat="coder")


def test_a_folder_must_be_given() -> None:
    for make in (
        lambda: pettingzoo.make("aec", "mappa/Scenario-v0"),
        lambda: pettingzoo.make("parallel", "mappa/Scenario-v0"),
        lambda: gymnasium.make("mappa/Scenario-v0", seat="coder_0"),
    ):
        with pytest.raises(ScenarioError, match="folder is ''; give a scenario folder"):
            make()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="nowhere"):
        pettingzoo.make("aec", "mappa/Scenario-v0", folder=tmp_path / "nowhere")


@pytest.mark.parametrize("value", [1, "yes", None])
def test_deferred_is_true_or_false(value: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        mappa_envs.make_parallel("mathchat", coach={"deferred": value})
    assert str(caught.value) == f"coach.deferred is {value!r}; give true or false"


def test_an_unknown_argument_is_named() -> None:
    for make in (mappa_envs.make_pipeline, mappa_envs.make_parallel, mappa_envs.make_seat):
        with pytest.raises(TypeError, match="coaches"):
            make("mathchat", coaches={})


# --- registering and importing ----------------------------------------------------------------


def test_registering_again_changes_nothing_and_warns_of_nothing() -> None:
    before = gymnasium.spec("mappa/MathChat-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register()
        importlib.reload(mappa_envs.registration)
        importlib.reload(mappa_envs)
    assert gymnasium.spec("mappa/MathChat-v0") is before


def test_importing_loads_nothing_heavy() -> None:
    heavy = {"docker", "math_verify", "pandas", "rich", "scipy", "sklearn", "sympy", "torch"}
    program = f"import sys, mappa_envs; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_registration_names_what_to_import_only_when_it_is_made() -> None:
    for name in IDS:
        for spec in (
            pettingzoo.spec("aec", name),
            pettingzoo.spec("parallel", name),
            gymnasium.spec(name),
        ):
            assert str(spec.entry_point).startswith("mappa_envs.registry:make_")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "folder is ''; give a scenario folder"),
        ({"folder": 5}, "folder is 5; give a scenario folder"),
        ({"folder": "mathchat", "render_mode": "rgb"}, "render_mode is 'rgb'; it must be"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        pettingzoo.make("aec", "mappa/Scenario-v0", **arguments)

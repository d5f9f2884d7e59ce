from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub_vllm import StubVLLM, toy

from mappa_trainer.collect import collect, plays
from mappa_trainer.engines import serving
from mappa_trainer.engines.probe import check_gap, probe_gap
from mappa_trainer.engines.serving import check_engine
from mappa_trainer.environment import make_env
from mappa_trainer.errors import EngineError, RecipeError, TrainingError
from mappa_trainer.models import load_model
from mappa_trainer.recipe import Recipe
from mappa_trainer.team import Team, build_team
from mappa_trainer.types import Sampling
from mappa_trainer.weights import plan_weights

pytestmark = pytest.mark.usefixtures("one_thread")

AGENTS = ["solver_0", "coder_0", "verifier_0"]
MakeRecipe = Callable[..., Recipe]
MakeTeam = Callable[..., Team]


@pytest.fixture
def team_of(make_recipe: MakeRecipe) -> Iterator[MakeTeam]:
    """`team_of(url, ...)` builds a team on the server there; it is closed at the end."""
    teams: list[Team] = []

    def make(url: str | None, tuning: str = "lora", gap: float = 100.0, **tables: Any) -> Team:
        engine = {"kind": "vllm", "max_sync_gap": gap} | (
            {"url": url} if url else {"python": sys.executable}
        )
        recipe = make_recipe(engine=engine, model={"tuning": tuning}, **tables)
        teams.append(build_team(recipe, AGENTS))
        return teams[-1]

    yield make
    for team in teams:
        team.close()


def test_adapters_share_a_server_which_has_them_before_anything_else(
    team_of: MakeTeam, tmp_path: Path
) -> None:
    with StubVLLM() as stub:
        team = team_of(stub.url, agents={"coder_0": {"tuning": "frozen"}})
        team.open(tmp_path)
        changing = [body for path, body in stub.asked if path == "/v1/load_lora_adapter"]
        assert [body["lora_name"] for body in changing] == ["solver_0", "verifier_0"]
        assert all(body["load_inplace"] for body in changing)
        for body in changing:
            names = {path.name for path in Path(body["lora_path"]).iterdir()}
            assert {"adapter_config.json", "adapter_model.safetensors"} <= names
        assert stub.asked[0] == ("/v1/load_lora_adapter", changing[0])
        team.close()
    assert set(team.engines) == set(AGENTS)
    assert not any(Path(body["lora_path"]).parent.exists() for body in changing)


def test_an_episode_waits_for_no_other_where_servers_generate(
    team_of: MakeTeam, make_recipe: MakeRecipe
) -> None:
    """The first answer to a solver comes after a coder of another episode has asked."""
    a_coder_asked = threading.Event()

    def late(body: dict[str, Any]) -> float:
        if body["model"] == "coder_0":
            a_coder_asked.set()
        elif body is stub.completions[0]:
            assert a_coder_asked.wait(60)
        return 0.0

    def letters(body: dict[str, Any]) -> dict[str, Any]:
        return toy(body | {"seed": 40 + body["seed"] % 80})  # ids that the tokenizer has

    todo = plays(0, "eval", 0, 6, "test")
    sampling = dict.fromkeys(AGENTS, Sampling(1.0, 6))
    with StubVLLM(delay=late, answer=letters) as stub:
        team = team_of(stub.url)
        envs = [make_env(make_recipe()) for _ in range(3)]
        episodes = team.play(envs, todo, sampling, lambda _: None)
        assert episodes == collect(envs, todo, team.policies, sampling)
    for env in envs:
        env.close()


def test_full_weights_are_sent_as_a_folder(team_of: MakeTeam, tmp_path: Path) -> None:
    with StubVLLM() as stub:
        shared = {agent: {"weights": "all"} for agent in AGENTS}
        team = team_of(stub.url, "full", agents=shared)
        team.open(tmp_path)
        path, body = stub.asked[0]
        assert (path, body["method"]) == ("/collective_rpc", "reload_weights")
        sent = load_model(Path(body["kwargs"]["weights_path"]))
    learner = team.learners["all"].model
    assert not sent.config.tie_word_embeddings
    assert learner.config.tie_word_embeddings
    for name, parameter in learner.named_parameters():
        assert parameter.equal(sent.get_parameter(name))
    assert sent.lm_head.weight.equal(learner.lm_head.weight)


def test_a_sync_tells_the_gap_of_all_who_play_the_weights(
    team_of: MakeTeam, tmp_path: Path
) -> None:
    with StubVLLM() as stub:
        shared = {agent: {"weights": "pair"} for agent in ("solver_0", "coder_0")}
        team = team_of(stub.url, agents=shared)
        team.learners["pair"].step = 6
        found = team.sync("pair")
        engine = team.engines["pair"]
        gap = found["coder_0/sync_gap"]
        assert found == {"solver_0/sync_gap": gap, "coder_0/sync_gap": gap}
        # Random weights give each of 259 ids about 1/259, and the stub says -0.5 of each.
        assert gap == pytest.approx(5.557 - 0.5, abs=0.3)
        assert engine.generate([[1]], [1], Sampling(1.0, 14))[0].weight_version == 6


def test_a_run_whose_server_has_other_weights_stops(team_of: MakeTeam, tmp_path: Path) -> None:
    with StubVLLM() as stub:
        team = team_of(stub.url, gap=1.0)
        expected = r"solver_0: .* after 0 optimiser steps.* engine\.max_sync_gap = 1: it has other"
        with pytest.raises(TrainingError, match=expected):
            team.open(tmp_path)


def test_a_gap_that_is_no_number_stops_a_run() -> None:
    check_gap("all", 3, 0.1, 0.1)
    with pytest.raises(TrainingError, match="differ from the learner's by nan"):
        check_gap("all", 3, float("nan"), 0.1)


def test_a_probe_needs_room(team_of: MakeTeam) -> None:
    with StubVLLM(context=315) as stub:
        team = team_of(stub.url)
        with pytest.raises(TrainingError, match="no room for the probe of 316 tokens"):
            probe_gap(team.engines["coder_0"], team.learners["coder_0"].logprobs, 259, 1.0)


def test_a_server_that_refuses_the_weights_ends_the_run(team_of: MakeTeam, tmp_path: Path) -> None:
    team = team_of("http://127.0.0.1:9")
    team.serving.clients[0]._retry_after = ()  # type: ignore[union-attr]
    with pytest.raises(EngineError, match="load_lora_adapter failed: ConnectError"):
        team.open(tmp_path)


def test_each_full_set_of_weights_has_a_server_and_the_others_share_one(
    team_of: MakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, list[str]] = {}
    real = serving.VLLMServer

    def noting(make: Callable[[int], list[str]], folder: Path) -> Any:
        words[str(len(words))] = make(81)
        return real(make, folder)

    monkeypatch.setattr(serving, "VLLMServer", noting)
    team = team_of(None, "full", agents={"coder_0": {"tuning": "lora"}})
    assert list(team.serving.servers) == ["full-solver_0", "shared", "full-verifier_0"]  # type: ignore[union-attr]
    ours, shared, theirs = words.values()
    assert "--enable-lora" not in ours + theirs
    assert shared[shared.index("--max-loras") + 1] == "2"
    folders = [Path(one[one.index("--model") + 1]) for one in (ours, theirs)]
    assert [folder.name for folder in folders] == ["solver_0", "verifier_0"]
    assert all((folder / "tokenizer.json").exists() for folder in folders)
    team.close()
    assert not any(folder.parent.exists() for folder in folders)


def test_one_address_is_not_enough_for_several_servers(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(engine={"kind": "vllm", "url": "http://127.0.0.1:9"})
    with pytest.raises(RecipeError, match="needs 3: for full-solver_0, full-coder_0"):
        check_engine(recipe, plan_weights(recipe, AGENTS))


def test_an_interpreter_that_is_not_there_is_refused_before_a_run(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(engine={"kind": "vllm", "python": "nowhere/python"})
    with pytest.raises(RecipeError, match="nowhere/python"):
        check_engine(recipe, plan_weights(recipe, AGENTS))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"url": "http://h:1"}, "url is for kind = 'vllm'"),
        ({"python": "p", "args": ["-x"]}, "python, args is for kind = 'vllm'"),
        ({"kind": "vllm", "url": "http://h:1", "args": ["-x"]}, "args is for servers that are"),
        ({"kind": "vllm", "url": "h:1"}, "engine.url"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(
    make_recipe: MakeRecipe, table: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        make_recipe(engine=table)

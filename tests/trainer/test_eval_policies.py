"""`mappa eval` with every kind of policy, from a run and from a recipe, through the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa

from mappa_envs.testing.stub_endpoint import StubEndpoint
from mappa_envs.testing.stub_replies import Fail
from mappa_trainer import evaluate_run as evaluation
from mappa_trainer.engines import endpoint
from mappa_trainer.runlog import RunDirectory

AGENTS = ["solver_0", "coder_0", "verifier_0"]
KEY = "sk-secret-key-0001"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def stub() -> Iterator[StubEndpoint]:
    with StubEndpoint(replies=[r"\boxed{7}"] * 999) as started:
        yield started


def copy_of(finished_run: Path, tmp_path: Path) -> Path:
    """A run to write into, with the checkpoints of the finished one."""
    run = RunDirectory.create(tmp_path / "run", RunDirectory.open(finished_run).recipe())
    (run.path / "checkpoints").symlink_to(finished_run / "checkpoints")
    return run.path


def only_episodes(path: Path) -> tuple[str, list[dict[str, Any]]]:
    run = RunDirectory.open(path)
    (name,) = run.episode_names()
    return name, run.episodes(name)


def say(agent: str, messages: Any) -> str:
    """A team that answers 7, whatever is asked."""
    assert messages[-1]["role"] == "user"
    return {"verifier_0": r"\boxed{7}"}.get(agent, f"I am {agent}.")


def say_nothing(agent: str, messages: Any) -> Any:
    return None


def fail(agent: str, messages: Any) -> str:
    raise KeyError("nowhere")


def test_a_recipe_is_evaluated_without_a_run(
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    settings = ("--set", "sampling.max_new_tokens=5", "--out", out)
    assert run_mappa(monkeypatch, "eval", recipe_file, *settings, "--samples", 2) == 0
    name, episodes = only_episodes(out)
    assert name == "test-base-sampled-2x2"
    assert [episode["options"]["task"] for episode in episodes] == [0, 1, 0, 1]
    assert {action["tokens"] for e in episodes for action in e["actions"]} <= set(range(6))
    assert "solver_0/score" not in capsys.readouterr().out
    assert run_mappa(monkeypatch, "show", out) == 0
    assert run_mappa(monkeypatch, "eval", recipe_file, *settings, "--greedy") == 0
    assert run_mappa(monkeypatch, "compare", out, out / "episodes" / f"{name}.jsonl") == 0
    assert run_mappa(monkeypatch, "eval", recipe_file, *settings, "--coach") == 0
    assert run_mappa(monkeypatch, "audit", out) == 0
    assert RunDirectory.open(out).episode_names() == [
        "test-base-greedy-2x1",
        "test-base-sampled-2x1-coached",
        name,
    ]
    capsys.readouterr()
    assert run_mappa(monkeypatch, "eval", recipe_file, "--out", out) == 2
    assert "is a run of another recipe; name another with --out" in capsys.readouterr().err


def test_a_scripted_team_is_played(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, policy = tmp_path / "out", f"{__name__}:say"
    assert run_mappa(monkeypatch, "eval", recipe_file, "--policy", policy, "--out", out) == 0
    name, episodes = only_episodes(out)
    assert name == f"test-{__name__}-say-sampled-2x1"
    for episode in episodes:
        assert [action["action"] for action in episode["actions"]] == [
            "I am solver_0.",
            "I am coder_0.",
            r"\boxed{7}",
        ]
        assert [action["tokens"] for action in episode["actions"]] == [None] * 3
        assert episode["outcome"]["answer"] == "7"
    assert run_mappa(monkeypatch, "show", out, "--episode", 1) == 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("newest", "--policy is 'newest'; give base, checkpoint:PATH, URL#MODEL, or package"),
        ("tests.nowhere:say", "policy 'tests.nowhere:say' cannot be imported"),
        (f"{__name__}:say_nothing", "said None for solver_0; it must return a text"),
        (f"{__name__}:fail", "failed for solver_0: KeyError: 'nowhere'; mend the function"),
        ("http://127.0.0.1:1/v1", "say which model: URL#MODEL"),
        ("ftp://127.0.0.1:1/v1#m", "is no address; write it as http://HOST:PORT/v1#MODEL"),
        ("http://me:pw@127.0.0.1:1/v1#m", "has a user or a password in it"),
        ("http://models.example/v1#m", "OPENAI_API_KEY is not set; models.example wants a key"),
        ("checkpoint:nowhere", "nowhere: is no complete checkpoint; give a folder checkpoints/"),
    ],
)
def test_what_cannot_play_is_refused_and_leaves_nothing(
    policy: str,
    message: str,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run_mappa(monkeypatch, "eval", recipe_file, "--policy", policy, "--out", out) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "pw" not in error
    assert not out.exists()


def test_a_run_plays_its_checkpoints_and_its_base(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(finished_run, tmp_path)
    older = f"checkpoint:{run / 'checkpoints' / 'iteration-0002'}"
    for options in (
        ("--temperature", 0.5),
        ("--temperature", 0.5, "--policy", "base"),
        ("--greedy", "--policy", older),
    ):
        assert run_mappa(monkeypatch, "eval", run, *options) == 0
    assert run_mappa(monkeypatch, "eval", run, "--greedy", "--temperature", 0.5) == 2
    assert run_mappa(monkeypatch, "eval", run, "--temperature", "nan") == 2
    found = RunDirectory.open(run)
    assert found.episode_names() == [
        "test-after-0002-greedy-2x1",
        "test-after-0004-t0.5-2x1",
        "test-base-t0.5-2x1",
    ]
    before, after = (found.episodes(f"test-{name}-t0.5-2x1") for name in ("base", "after-0004"))
    assert before != after


def test_a_checkpoint_of_another_run_plays(
    finished_run: Path, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = f"checkpoint:{finished_run / 'checkpoints' / 'iteration-0004'}"
    out = tmp_path / "out"
    assert run_mappa(monkeypatch, "eval", recipe_file, "--policy", policy, "--out", out) == 0
    name, episodes = only_episodes(out)
    assert name == "test-finished-after-0004-sampled-2x1"
    held_out = RunDirectory.open(finished_run).episodes("eval-0004-sampled")
    texts, known = (
        [[action["action"] for action in e["actions"]] for e in each]
        for each in (episodes, held_out)
    )
    assert texts == known


def test_a_checkpoint_of_another_team_is_refused(
    finished_run: Path,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = f"checkpoint:{finished_run / 'checkpoints' / 'iteration-0004'}"
    text = recipe_file.read_text(encoding="utf-8").replace("MathChat-v0", "DSBench-v0")
    start, end = text.index("[scenario]"), text.index("[coach]")
    path = tmp_path / "other.toml"
    path.write_text(text[:start] + text[end:], encoding="utf-8")
    code = run_mappa(monkeypatch, "eval", path, "--policy", policy, "--out", tmp_path / "out")
    assert code == 2
    assert "give a checkpoint of the same team" in capsys.readouterr().err


def test_an_endpoint_plays_and_says_how_long_its_texts_are(
    recipe_file: Path, stub: StubEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out, policy = tmp_path / "out", f"{stub.base_url}#stub/7b"
    code = run_mappa(monkeypatch, "eval", recipe_file, "--policy", policy, "--out", out, "--greedy")
    assert code == 0
    name, episodes = only_episodes(out)
    assert name == "test-stub-7b-greedy-2x1"
    assert [action["tokens"] for e in episodes for action in e["actions"]] == [3] * 6
    assert len(stub.requests) == 6
    for asked in stub.requests:
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.body["model"] == "stub/7b"
        assert asked.body["temperature"] == 0
        assert asked.body["max_tokens"] == 14
    assert stub.requests[0].body["messages"] == episodes[0]["actions"][0]["messages"] or (
        stub.requests[1].body["messages"] == episodes[0]["actions"][0]["messages"]
    )
    assert KEY not in "".join(p.read_text() for p in out.rglob("*") if p.is_file())


def test_what_an_endpoint_fails_is_played_by_the_same_command_later(
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(evaluation, "AT_A_TIME", 2)
    out = tmp_path / "out"
    good, bad = [r"\boxed{7}"] * 6, [Fail("401")] * 2
    with StubEndpoint(replies=[*good, *bad, *[r"\boxed{8}"] * 6]) as stub:
        command = ("eval", recipe_file, "--policy", f"{stub.base_url}#m", "--out", out)
        assert run_mappa(monkeypatch, *command, "--samples", 2) == 2
        error = capsys.readouterr().err
        assert "Incorrect API key provided: [key]" in error
        assert "2 of 4 episodes are kept" in error
        assert KEY not in error
        assert RunDirectory.open(out).episode_names() == []
        monkeypatch.setattr(stub, "_replies", [r"\boxed{8}"] * 6)
        assert run_mappa(monkeypatch, *command, "--samples", 2) == 0
    assert "2 of 4 episodes were played before; going on" in capsys.readouterr().out
    episodes = RunDirectory.open(out).episodes("test-m-sampled-2x2")
    assert [e["outcome"]["answer"] for e in episodes] == ["7", "7", "8", "8"]
    assert not list(out.rglob("*.unfinished"))


def test_an_endpoint_that_is_not_there_leaves_nothing(
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StubEndpoint() as stub:
        gone = stub.base_url
    monkeypatch.setattr(endpoint, "PATIENCE_S", 0.05)
    monkeypatch.chdir(tmp_path)
    assert run_mappa(monkeypatch, "eval", recipe_file, "--policy", f"{gone}#m") == 2
    assert f"model 'm' at {gone} gave no answer: Connection error" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()

from __future__ import annotations

import json
import re
from pathlib import Path

import pettingzoo
import pytest
from stored_rows import action, action_of, actions_in, episode, write_run

from mappa_envs.audit.actions import actions_of
from mappa_envs.audit.stored import (
    EpisodeFile,
    StoredEpisode,
    StoredRun,
    outcome_of,
    role_of,
    stored_episodes,
    turn_of,
    turns_of,
)
from mappa_envs.errors import AuditError
from mappa_envs.play import play
from mappa_envs.records import outcome_record
from mappa_envs.sandbox.protocol import FileChanges, FileRecord
from mappa_envs.teams import ScenarioTeam
from mappa_envs.types import ToolCall, ToolResult, Turn

FULL = Turn(
    step=3,
    agent="modeler_0",
    role="modeler",
    index=1,
    messages=({"role": "system", "content": "You model."}, {"role": "user", "content": "Go."}),
    action="<think>hm</think>I fit.\n```python\nfit()\n```",
    visible="I fit.\n```python\nfit()\n```",
    tool_results=(
        ToolResult(
            ToolCall("python", "fit()"),
            output="1\n[stopped: it ran longer than 60 s]",
            stdout="1\n",
            exit_code=-9,
            limit_hit="wall_clock",
            files=FileChanges(("a",), ("b", "c"), ("d",), ("e",), ("f",)),
        ),
        ToolResult(ToolCall("", "", "the code is empty"), output="[not run]"),
    ),
    feedback="Output of your program:\n1",
    handed_off=True,
    files=(FileRecord("b", 3, "ab12", "modeler_0", 3),),
    missing=("model.pkl",),
    facts={"model.pkl": {"fitted": False, "skill": None}, "leaks": []},
)


def test_a_turn_comes_back_from_its_record_with_all_that_it_was() -> None:
    assert turn_of(action_of(FULL)) == FULL


@pytest.mark.parametrize("scenario", ["workshop", "mathchat"])
def test_a_played_episode_comes_back_from_its_rows(scenario: str) -> None:
    env = pettingzoo.make("aec", "mappa/Scenario-v0", folder=scenario)
    play(env, ScenarioTeam(env), seed=0)
    row = {
        "actions": [action_of(turn) for turn in env.turns],
        "outcome": json.loads(json.dumps(outcome_record(env.episode))),
    }
    assert len(env.turns) >= 3
    assert turns_of(row) == env.turns
    assert outcome_of(row) == env.outcome
    env.close()


def test_an_episode_of_an_environment_without_turns_has_none() -> None:
    bare = action()
    bare["turn"] = None
    assert turns_of(episode(action(), bare)) is None
    assert outcome_of(episode(outcome=None)) is None


@pytest.mark.parametrize(
    ("agent", "ledger", "role"),
    [
        ("coder_0", {"role": "programmer"}, "programmer"),
        ("coder_0", None, "coder"),
        ("data_coder_12", {}, "data_coder"),
        ("player", None, "player"),
        ("_0", None, "_0"),
    ],
)
def test_a_role_is_what_the_ledger_says_or_the_name_without_number(
    agent: str, ledger: dict[str, str] | None, role: str
) -> None:
    assert role_of({"agent": agent, "ledger": ledger}) == role


@pytest.mark.parametrize(
    ("name", "phase", "mode", "iteration"),
    [
        ("train-0003", "train", "", 3),
        ("train-12345", "train", "", 12345),
        ("eval-0004-greedy", "eval", "greedy", 4),
        ("train-after-0002-greedy-64x1", "other", "", None),
        ("train-0003-greedy", "other", "", None),
        ("eval-0004", "other", "", None),
        ("mine", "other", "", None),
    ],
)
def test_a_file_name_says_what_was_played(
    name: str, phase: str, mode: str, iteration: int | None
) -> None:
    file = EpisodeFile(Path(f"run/episodes/{name}.jsonl"))
    assert (file.name, file.phase, file.mode, file.iteration) == (name, phase, mode, iteration)


def test_training_is_what_counts_and_evaluations_come_in_order(tmp_path: Path) -> None:
    names = ("train-10000", "train-9999", "eval-0010-greedy", "eval-0002-greedy", "mine")
    run = StoredRun.open(write_run(tmp_path / "run", {name: [episode(action())] for name in names}))
    assert [file.name for file in run.scored_files] == ["train-9999", "train-10000"]
    assert [f.name for f in run.evaluations] == ["eval-0002-greedy", "eval-0010-greedy"]
    (file,) = StoredRun.open(run.path, "mine.jsonl").scored_files
    assert file.name == "mine"
    (file,) = StoredRun.open(file.path).scored_files
    assert file.name == "mine"


def test_without_training_every_file_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"b": [], "a": []})
    assert [file.name for file in StoredRun.open(run).scored_files] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("none", "", "none: there is no such run directory"),
        ("empty", "", r"holds no episodes/\*.jsonl"),
        ("run", "train-000", "no episodes 'train-000'; did you mean 'train-0000'"),
        ("run/episodes/train-0000.jsonl", "x", "is one file; leave out --from"),
    ],
)
def test_a_run_that_is_not_there_is_named(
    path: str, source: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run", {"train-0000": [episode(action())]})
    with pytest.raises(AuditError, match=words):
        StoredRun.open(tmp_path / path, source)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_recipe_that_cannot_be_read_is_named(text: str | None, tmp_path: Path) -> None:
    run = StoredRun.open(write_run(tmp_path / "run", {"train-0000": []}))
    if text is not None:
        (run.path / "config.json").write_text(text)
    with pytest.raises(AuditError, match=re.escape(str(run.path / "config.json"))):
        _ = run.config


def test_a_single_file_belongs_to_the_run_it_lies_in(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"train-0000": []})
    (run / "config.json").write_text('{"name": "tiny"}')
    found = StoredRun.open(run / "episodes" / "train-0000.jsonl")
    assert found.config == {"name": "tiny"}


def test_a_last_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    found = list(stored_episodes(EpisodeFile(path)))
    assert [(each.line, each.number, each.row) for each in found] == [
        (1, 0, {"a": 1}),
        (3, 1, {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1]", r"is \[1\]; an episode is a table"),
        (b"{", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_damaged_line_is_named(line: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(AuditError, match=rf"a\.jsonl, line 2: {words}"):
        list(stored_episodes(EpisodeFile(path)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"actions": None}, "is damaged"),
        ({"outcome": {}}, "lacks 'verdict'"),
        ({"outcome": {"verdict": "wrong"}}, "lacks 'score'"),
        ({"outcome": {"verdict": "", "score": "high"}}, "is damaged: 'high' is no number"),
        ({"outcome": {"verdict": "", "score": float("nan")}}, "is damaged: nan is no number"),
        ({"task": []}, "is damaged"),
        ({"actions": [{}]}, "lacks 'ledger'"),
        ({"actions": [action(11.0)]}, "is damaged: a score is 11; it must be 0 to 10"),
        ({"actions": [action(ledger={"spent": {"cals": 1}})]}, "is damaged"),
        ({"actions": [action(turn={"step": 0, "index": 0})]}, "lacks 'tool_results'"),
    ],
)
def test_a_damaged_row_is_named_with_its_place(
    damage: dict[str, object], words: str, tmp_path: Path
) -> None:
    rows = [episode(action()), {**episode(action()), **damage}]
    with pytest.raises(AuditError, match=rf"train-0000\.jsonl, line 2: the row {words}"):
        actions_in(tmp_path / "run", {"train-0000": rows})


def test_an_outcome_that_was_not_decided_is_none(tmp_path: Path) -> None:
    undecided = episode(action(), outcome=0.0)
    undecided["outcome"]["verdict"] = "undecided"
    (found,) = actions_in(tmp_path / "run", {"train-0000": [undecided]})
    assert found.outcome is None


def test_the_failure_is_that_of_the_score_that_pays() -> None:
    late = {"paid_by": "hindsight", "hindsight_failure": "refused", "hindsight_rationale": "no"}
    row = episode(action(3.0, ledger=late), action(None, ledger={"failure": "truncated"}))
    file = EpisodeFile(Path("train-0000.jsonl"))
    first, second = actions_of(row, StoredEpisode(file, 1, 0, row), 0)
    assert (first.first_score, first.score, first.failure) == (3.0, None, "refused")
    assert first.looked_back
    assert second.failure == "truncated"


def test_an_action_is_kept_with_what_counts() -> None:
    row = episode(
        action(None, tokens=None, ledger={"failure": "refused", "truth_shown": True}),
        action(3.0, ledger={"hindsight_score": 8, "paid_by": "hindsight"}),
        outcome=None,
        kind="regression",
    )
    file = EpisodeFile(Path("eval-0003-greedy.jsonl"))
    first, second = actions_of(row, StoredEpisode(file, 9, 8, row), 70)
    assert (first.episode, first.place.file, first.place.episode) == (70, "eval-0003-greedy", 8)
    assert (first.place.action, second.place.action) == (0, 1)
    assert (first.score, first.failure, first.truth_shown) == (None, "refused", True)
    assert (first.length, first.unit, second.length, second.unit) == (
        len("Two."),
        "characters",
        4,
        "tokens",
    )
    assert (second.first_score, second.hindsight_score, second.score) == (3.0, 8.0, 8.0)
    assert (first.looked_back, second.looked_back) == (False, True)
    assert (second.task_type, second.iteration, second.outcome) == ("regression", 3, None)

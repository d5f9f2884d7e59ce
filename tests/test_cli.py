from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa

from mappa_trainer import team, train
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.types import Episode, Generation, Transition

MakeRecipe = Callable[..., Recipe]
Mappa = Callable[..., int]


@pytest.fixture
def mappa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mappa:
    """Run the command in a directory of its own and return its exit code."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments: object) -> int:
        return run_mappa(monkeypatch, *arguments)

    return run


def files_below(folder: Path) -> dict[Path, bytes | None]:
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture
def workplace(tmp_path: Path, recipe_file: Path, make_recipe: MakeRecipe) -> Path:
    """A directory with things that commands must refuse, and leave as they are."""
    for name, text in {
        "unknown_key.toml": recipe_file.read_text().replace("iterations", "iteratoins"),
        "not.toml": "name = ",
        "rows.jsonl": '{"prompt": "1 + 1?", "answer": 2}\n{"prompt": "2 + 2?"}\n',
        "rows.json": '[{"prompt": "1 + 1?", "answer": 2}, {"prompt": "", "answer": 4}]',
        "taken/notes.txt": "keep me",
        "file": "keep me",
        "hollow/config.json": '{"model_type": "llama"}',
        "odd/config.json": "{",
        "empty/.keep": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    without = RunDirectory.create(tmp_path / "run_without", make_recipe())
    for iteration in range(3):  # so a checkpoint was written after the second
        without.add_metrics({"iteration": iteration})
    for folders in ("", "iteration-0001/solver_0", ".partial-0002"):
        (tmp_path / "run_without" / "checkpoints").mkdir(exist_ok=True)
        RunDirectory.create(tmp_path / "run_half", make_recipe()) if not folders else None
        (tmp_path / "run_half" / "checkpoints" / folders).mkdir(parents=True, exist_ok=True)
    return tmp_path


BAD = {
    "unknown recipe key": ("train {0}/unknown_key.toml", "did you mean 'iterations'?"),
    "not TOML": ("train {0}/not.toml", "{0}/not.toml: is not TOML"),
    "no recipe": ("train {0}/none.toml", "{0}/none.toml: cannot be read"),
    "nothing to train": ("train", "give either a recipe"),
    "two things to train": ("train {0}/tiny.toml --resume {0}/run_half", "give either a recipe"),
    "resume elsewhere": ("train --resume {0}/run_half --out {0}/new", "give either a recipe"),
    "unknown set key": ("train {0}/tiny.toml --set train.epochs=2", "unknown key 'train.epochs'"),
    "set without value": ("train {0}/tiny.toml --set train.seed", "write it as table.key=value"),
    "unknown scenario key": (
        "train {0}/tiny.toml --set scenario.roles.coder.max_trns=2",
        "did you mean 'max_turns'?",
    ),
    "unknown coach": ("train {0}/tiny.toml --set coach.kind=rubrik", "coach.kind is 'rubrik'"),
    "unknown sandbox": ("train {0}/tiny.toml --set sandbox.level=jail", "sandbox.level is 'jail'"),
    "missing task file": (
        "train {0}/tiny.toml --set scenario.tasks={0}/none.json",
        "{0}/none.json: there is no such file",
    ),
    "malformed line": (
        "train {0}/tiny.toml --set scenario.tasks={0}/rows.jsonl",
        "{0}/rows.jsonl, line 2: ",
    ),
    "malformed row": (
        "train {0}/tiny.toml --set scenario.tasks={0}/rows.json",
        "{0}/rows.json, row 2: ",
    ),
    "bad environment": ("train {0}/tiny.toml --set env.id=mappa/Chess-v0", "'mappa/Chess-v0'"),
    "bad module": ("train {0}/tiny.toml --set env.module=nowhere", "env.module 'nowhere'"),
    "no such model": ("train {0}/tiny.toml --set model.base={0}/none", "{0}/none"),
    "no model in the folder": ("train {0}/tiny.toml --set model.base={0}/empty", "{0}/empty"),
    "no weights in the folder": ("train {0}/tiny.toml --set model.base={0}/hollow", "{0}/hollow"),
    "damaged model": ("train {0}/tiny.toml --set model.base={0}/odd", "{0}/odd"),
    "unknown loss": ("train {0}/tiny.toml --set algorithm.loss=dpo", "loss 'dpo' is not known"),
    "run directory taken": ("train {0}/tiny.toml --out {0}/taken", "{0}/taken: exists already"),
    "run directory is a file": ("train {0}/tiny.toml --out {0}/file", "{0}/file: exists already"),
    "unwritable": ("train {0}/tiny.toml --out {0}/file/run", "{0}/file/run: cannot be written"),
    "resume nothing": ("train --resume {0}/none", "{0}/none: is no run directory"),
    "resume without checkpoint": ("train --resume {0}/run_without", "no complete checkpoint, none"),
    "resume half-written": (
        "train --resume {0}/run_half",
        "only incomplete ones (.partial-0002, iteration-0001)",
    ),
    "evaluate nothing": ("eval {0}/none", "{0}/none: is no run directory"),
    "evaluate without checkpoint": ("eval {0}/run_without", "no complete checkpoint"),
    "evaluate another split": ("eval {0}/run_half --split dev", "--split is 'dev'"),
    "show nothing": ("show {0}/none", "{0}/none: is no run directory"),
    "show no episodes": ("show {0}/run_half", "no episode 0, there are 0"),
    "show unknown file": ("show {0}/run_half --from eval-0000", "no episodes 'eval-0000'"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_is_one_line_and_changes_nothing(
    name: str, workplace: Path, mappa: Mappa, capfd: pytest.CaptureFixture[str]
) -> None:
    command, words = (text.format(workplace) for text in BAD[name])
    before = files_below(workplace)
    assert mappa(*command.split(" ")) == 2
    shown = capfd.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert shown.endswith("\n")
    assert words in shown
    assert "Traceback" not in shown
    assert files_below(workplace) == before


@pytest.mark.slow
def test_a_damaged_checkpoint_is_one_line_in_a_process_of_its_own(
    finished_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run, path)
    state = path / "checkpoints" / "iteration-0004" / "state" / "coder_0"
    (file,) = state.iterdir()
    file.write_bytes(b"not a state")
    (path / "episodes" / "eval-0004-sampled.jsonl").unlink()  # so that there is something to do
    before = files_below(path)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from mappa_envs.cli import main; main()",
            "train",
            "--resume",
            path,
        ],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("HF_")},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {state}: the optimiser state cannot be loaded")
    assert done.stderr.count("\n") == 1
    assert files_below(path) == before


def test_ctrl_c_is_exit_code_130_and_resume_goes_on(
    recipe_file: Path,
    mappa: Mappa,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    collect = team.collect

    def interrupted(*arguments: Any) -> Any:
        if arguments[1][0].options["split"] == "train":
            signal.raise_signal(signal.SIGINT)
        return collect(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(team, "collect", interrupted)
        assert mappa("train", recipe_file, "--set", "train.iterations=1", "--out", "run") == 130
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "press Ctrl-C again to stop at once" in shown.out
    assert "stopped after 0 iterations; go on with: mappa train --resume run\n" in shown.out
    assert Path("run/checkpoints/iteration-0000/complete.json").is_file()
    assert mappa("train", "--resume", "run") == 0
    assert [row["iteration"] for row in RunDirectory.open(Path("run")).metrics()] == [0]
    assert "iteration   1/1" in capsys.readouterr().out


def test_a_second_ctrl_c_is_exit_code_130_too(
    recipe_file: Path, mappa: Mappa, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(team, "collect", interrupted)
    assert mappa("train", recipe_file, "--out", "run") == 130
    assert not Path("run/checkpoints").exists()


def test_without_out_the_run_is_named_after_the_recipe(
    recipe_file: Path, mappa: Mappa, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(train, "start", lambda recipe, path, console: made.append(path) or True)
    assert mappa("train", recipe_file) == 0
    assert made[0].parent == Path("runs")
    assert made[0].name.startswith("tiny-2")


def test_eval_prints_a_table_and_pass_at_k(
    finished_run: Path, tmp_path: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run, path)
    assert mappa("eval", path, "--split", "test", "--samples", 2, "--problems", 3) == 0
    shown = capsys.readouterr().out
    for words in ("iteration-0004 on 3 test problems, 2 samples of each", "solver_0/tokens"):
        assert words in shown
    assert "pass@1  0.000" in shown
    assert "pass@2  0.000" in shown
    assert f"episodes: {path}/episodes/test-after-0004-sampled-3x2.jsonl\n" in shown
    run = RunDirectory.open(path)
    episodes = run.episodes("test-after-0004-sampled-3x2")
    assert [episode["index"] for episode in episodes] == list(range(6))
    assert [episode["options"]["task"] for episode in episodes] == [0, 1, 2, 0, 1, 2]
    assert {episode["options"]["split"] for episode in episodes} == {"test"}
    assert [e["seed"] for e in episodes[:3]] == [e["seed"] for e in episodes[3:]]
    said = [[action["action"] for action in episode["actions"]] for episode in episodes]
    assert all(one != other for one, other in zip(said[:3], said[3:], strict=True))
    during = run.episodes("eval-0004-sampled")
    assert [e["seed"] for e in episodes[:2]] == [e["seed"] for e in during]
    judged = [[(a["messages"], a["action"]) for a in e["actions"]] for e in during]
    assert [[(a["messages"], a["action"]) for a in e["actions"]] for e in episodes[:2]] == judged
    texts = [[action["action"] for action in episode["actions"]] for episode in episodes]
    assert texts[0] != texts[3]


def test_eval_of_training_problems_does_not_hinder_a_resume(
    finished_run: Path, tmp_path: Path, mappa: Mappa
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run, path)
    assert mappa("eval", path, "--split", "train", "--problems", 1, "--greedy") == 0
    assert RunDirectory.open(path).episodes("train-after-0004-greedy-1x1")[0]["task"]["id"]
    assert mappa("train", "--resume", path) == 0


def transition(action: str, score: float | None, **changes: Any) -> Transition:
    ledger = {
        "status": "unscored" if score is None else "scored",
        "score": score,
        "reward": (score or 0) / 10,
        "coach": "rubric",
        "rationale": "2/2 concise: [i]3 words[/i]",
    }
    fields = {
        "agent": "coder_0",
        "index": 0,
        "messages": ({"role": "user", "content": "What is [bold]2 + 3[/bold]?"},),
        "generation": Generation((1,), (2, 3), (-1.0, -1.0), action, "stop"),
        "reward": None if score is None else score / 10,
        "ledger": ledger,
        "turn": {"tool_results": [{"output": "[green]5[/green]", "exit_code": 0}]},
    }
    return Transition(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def shown_run(make_recipe: MakeRecipe, tmp_path: Path) -> Path:
    run = RunDirectory.create(tmp_path / "shown", make_recipe())

    def write(name: str, *episodes: tuple[Transition, float | None]) -> None:
        run.write_episodes(
            name,
            [
                Episode(
                    index=i,
                    seed=0,
                    options={"task": i},
                    transitions=(own,),
                    outcome=None
                    if verdict is None
                    else {
                        "score": verdict,
                        "reason": "5 [u]equals[/u] 5",
                        "accepted": ["5", "five"],
                    },
                    returns={},
                    end_reasons={"coder_0": "sandbox_dead"},
                    task={"id": f"{name}-task-{i}"},
                )
                for i, (own, verdict) in enumerate(episodes)
            ],
        )

    write(
        "train-0000",
        (transition("[red]x[/red] [link=https://x.test]y[/link] [/]", 7.25), 1.0),
        (transition("", None), None),
    )
    write("train-1000", (transition("of the thousandth", 1.0, ledger=None, reward=0.5), 0.0))
    write("train-after-1001-greedy-x1", (transition("of an evaluation", 1.0), 0.0))
    write(
        "eval-0000-sampled",
        (transition("\x1b]0;title\x07\x1b[31mred\x9b1m\r\u202e\u2066", 1.0), 0.0),
    )
    return run.path


def show(mappa: Mappa, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert mappa("show", *arguments) == 0
    return capsys.readouterr().out


def test_show_prints_everything_about_an_episode_as_it_was_written(
    shown_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = show(mappa, capsys, shown_run)
    for words in (
        "train-0000, episode 0, task train-0000-task-0",
        "coder_0, action 1, 2 tokens",
        "user: What is [bold]2 + 3[/bold]?",
        "[red]x[/red] [link=https://x.test]y[/link] [/]",
        "output: [green]5[/green]",
        "score 7.25 of 10, reward 0.7250 (rubric)",
        "2/2 concise: [i]3 words[/i]",
        "outcome 1: 5 [u]equals[/u] 5",
        "accepted answer: 5 or five",
    ):
        assert words in shown
    assert "\x1b" not in shown


def test_show_says_what_is_missing(
    shown_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = show(mappa, capsys, shown_run, "--episode", 1)
    for words in ("(empty action)", "unscored, reward 0.0000", "no outcome", "sandbox_dead"):
        assert words in shown


def test_show_counts_through_the_training_episodes_alone(
    shown_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = show(mappa, capsys, shown_run, "--episode", 2)
    assert "of the thousandth" in shown
    assert "reward 0.5" in shown
    assert mappa("show", shown_run, "--episode", "3") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {shown_run}: no episode 3, there are 3; files: eval-0000-")
    assert error.count("\n") == 1


def test_show_of_a_named_file_counts_in_it(
    shown_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen: Sequence[object] = ("--from", "train-after-1001-greedy-x1")
    assert "of an evaluation" in show(mappa, capsys, shown_run, *chosen)
    assert mappa("show", shown_run, "--episode", "1", *chosen) == 2
    assert "no episode 1, there are 1" in capsys.readouterr().err


def test_show_does_not_obey_control_characters(
    shown_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = show(mappa, capsys, shown_run, "--from", "eval-0000-sampled")
    assert "[31mred" in shown
    assert not set("\x1b\x07\x9b\r\u202e\u2066") & set(shown)


def test_show_of_a_ledger_with_rewards_alone(
    make_recipe: MakeRecipe, tmp_path: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "bare", make_recipe())
    own = transition("hello", 5.0, ledger={"status": "scored", "reward": 0.5}, turn=None)
    run.write_episodes("train-0000", [Episode(0, 0, {"task": 0}, (own,), None, {}, {}, {})])
    shown = show(mappa, capsys, run.path)
    assert "hello" in shown
    assert "reward 0.5" in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"score": None, "failure": "unreachable"}, ["unscored: unreachable, reward 0.7250"]),
        (
            {"hindsight_score": 2.5, "hindsight_rationale": "too late", "paid_by": "first"},
            ["score 7.25 of 10, reward", "in hindsight: score 2.50 of 10 ", "too late"],
        ),
        (
            {
                "hindsight_score": None,
                "hindsight_rationale": "no answer",
                "paid_by": "hindsight",
                "failure": "truncated",
            },
            ["score 7.25 of 10, reward", "in hindsight: unscored: truncated, which pays"],
        ),
        (
            {
                "score": None,
                "hindsight_score": 2.5,
                "hindsight_rationale": "x",
                "paid_by": "hindsight",
            },
            ["unscored, reward", "in hindsight: score 2.50 of 10, which pays"],
        ),
    ],
)
def test_show_says_why_an_action_is_unscored_and_what_was_said_in_hindsight(
    make_recipe: MakeRecipe,
    tmp_path: Path,
    mappa: Mappa,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    words: list[str],
) -> None:
    run = RunDirectory.create(tmp_path / "judged", make_recipe())
    plain = transition("hello", 7.25)
    own = replace(plain, ledger={**(plain.ledger or {}), **changes})
    run.write_episodes("train-0000", [Episode(0, 0, {"task": 0}, (own,), None, {}, {}, {})])
    shown = show(mappa, capsys, run.path)
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda row: row.pop("actions"), "the row lacks 'actions'; mend it or show another"),
        (lambda row: row["actions"][0].pop("tokens"), "the row lacks 'tokens'; mend"),
        (lambda row: row["actions"][0]["ledger"].pop("coach"), "the row lacks 'coach'; mend"),
        (lambda row: row["outcome"].pop("reason"), "the row lacks 'reason'; mend"),
        (lambda row: row.update(task=None), "the row is damaged: 'NoneType' object has no"),
        (lambda row: row.update(actions=3), "the row is damaged: 'int' object is not iterable"),
    ],
)
def test_show_of_a_damaged_row_is_one_line_that_says_what_is_missing(
    shown_run: Path,
    mappa: Mappa,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[dict[str, Any]], object],
    words: str,
) -> None:
    path = shown_run / "episodes" / "train-0000.jsonl"
    first, second = path.read_text().splitlines()
    row = json.loads(first)
    damage(row)
    path.write_text(f"\n{second}\n{json.dumps(row)}\n")
    assert mappa("show", shown_run, "--episode", "1") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}, line 3: {words}")
    assert error.count("\n") == 1
    assert mappa("show", shown_run) == 0


def test_show_of_what_a_model_really_wrote(
    finished_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = show(mappa, capsys, finished_run, "--episode", 11)
    assert "train-0003, episode 2, task train-11" in shown
    assert shown.count(" of 10, reward ") == 3


def test_a_finished_run_is_not_gone_on_with(
    finished_run: Path, tmp_path: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(finished_run, path)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
    assert mappa("train", "--resume", path) == 0
    assert "is finished: all 4 iterations and the last evaluation" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()} == before


def test_an_evaluation_is_no_run_to_go_on_with(
    finished_run: Path, tmp_path: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "only" / "episodes").mkdir(parents=True)
    shutil.copy(finished_run / "config.json", tmp_path / "only")
    (tmp_path / "only" / "episodes" / "test-base-sampled-2x1.jsonl").write_text("{}")
    assert mappa("train", "--resume", tmp_path / "only") == 2
    assert "holds evaluations alone; train in a directory of its own" in capsys.readouterr().err


def test_a_misspelt_key_of_an_agent_has_a_suggestion(
    mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).parents[1] / "scenarios" / "recipes" / "mathchat-cpu.toml"
    assert mappa("train", recipe, "--set", "agents.coder_0.tunning=frozen") == 2
    said = "unknown key 'agents.coder_0.tunning'; did you mean 'tuning'?"
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_two_evaluations_differ_in_is_said(
    finished_run: Path, mappa: Mappa, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = (
        finished_run / "episodes" / f"eval-{after}-sampled.jsonl" for after in ("0000", "0004")
    )
    assert mappa("compare", first, last) == 0
    assert "not alike" not in capsys.readouterr().out

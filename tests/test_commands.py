from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import MAPPA, run_mappa

from mappa_envs.commands.checking import scenario_problems
from mappa_envs.scenario import scenario_folder

Mappa = Callable[..., int]
Capture = pytest.CaptureFixture[str]
TASK = ("--task", "train-0")  # Kim has 30 coins and gets 18 more: 48
SCRIPTED = ("--team", "scripted")


@pytest.fixture
def mappa(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mappa:
    """Run the command in an empty directory, with a text piped in, and return its exit code."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*arguments: object, typed: str | bytes = "") -> int:
        piped = typed.encode() if isinstance(typed, str) else typed
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="utf-8"))
        return run_mappa(monkeypatch, *arguments)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the debate to spoil."""
    return Path(shutil.copytree(scenario_folder("debate"), tmp_path / "debate"))


def change(folder: Path, old: str, new: str, name: str = "scenario.toml") -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


# --- mappa scenario check ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mathchat", "debate", "workshop"])
def test_the_shipped_scenarios_check_out(name: str, mappa: Mappa, capsys: Capture) -> None:
    assert mappa("scenario", "check", name) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"scenario {name}: " in shown.out
    assert "tasks: train without end, test without end" in shown.out
    assert "ended: completed\noutcome: 1 (correct): " in shown.out


def test_a_check_tells_what_the_scripted_episode_came_to(
    folder: Path, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("scenario", "check", folder) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "scenario debate: proponent > opponent > proponent > opponent > proponent",
        "role visits actions a visit tools script texts rubric checks",
        "proponent 3 1 none 3 4",
        "opponent 2 1 python 1 4",
        "tasks: train without end, test without end",
        "",
        "scripted episode of task train-1826701615, the rubric coach:",
        "action agent programs score",
        "1 proponent_0 none 10",
        "2 opponent_0 ran 10",
        "3 proponent_0 none 10",
        "4 opponent_0 ran 10",
        "5 proponent_0 none 10",
        "",
        "ended: completed",
        "outcome: 1 (correct): 16 equals 16",
        "paid: proponent_0 3, opponent_0 2",
    ]


def test_a_folder_with_problems_of_its_own_says_how_many(
    folder: Path, mappa: Mappa, capsys: Capture
) -> None:
    rows = "".join(f'{{"prompt": "What is {n} plus 1?", "answer": {n + 1}}}\n' for n in range(20))
    (folder / "rows.jsonl").write_text(rows)
    change(folder, 'tasks = "generated"', 'tasks = "rows.jsonl"')
    assert mappa("scenario", "check", folder) == 0
    assert "tasks: train 18, test 2\n" in capsys.readouterr().out


def test_each_mistake_is_a_line_with_file_and_key(
    folder: Path, mappa: Mappa, capsys: Capture
) -> None:
    change(folder, "[limits]", "[limits]\ntimeout = 3")
    change(folder, "one_box = { points = 3 }", "one_bx = { points = 3 }")
    change(folder, "again.md", "agian.md")
    change(folder, "{{ proponent.message }}", "{{ proposer.message }}", "prompts/opponent.md")
    assert mappa("scenario", "check", folder) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    file = folder / "scenario.toml"
    missing = "cannot be read: No such file or directory"
    assert sorted(shown.err.splitlines()) == sorted(
        [
            f"{file}: limits.timeout: unknown key; did you mean 'timeout_s'?",
            f"{file}: roles.proponent.again: {folder}/prompts/proponent-agian.md: {missing}",
            f"{file}: roles.opponent.again: {folder}/prompts/opponent-agian.md: {missing}",
            f"{folder}/prompts/opponent.md: roles.opponent.prompt: unknown field "
            "{{ proposer.message }}; known here: files, max_turns, problem, proponent.message, "
            "proponent.output",
            f"{file}: roles.proponent.rubric.one_bx: unknown check; did you mean 'one_box'?",
        ]
    )


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ('"none.json"', "tasks: {0}/none.json: there is no such file"),
        ('"generated"\ngenerated.levels = [9]', "generated: levels are [9]; give at least one of"),
    ],
)
def test_tasks_that_are_not_there_are_a_line(folder: Path, tasks: str, words: str) -> None:
    change(folder, 'tasks = "generated"', f"tasks = {tasks}")
    change(folder, "[generated]\nlevels = [1]", "")
    (problem,) = scenario_problems(folder)
    assert problem.startswith(f"{folder}/scenario.toml: {words.format(folder)}")


def test_what_a_mistake_quotes_does_not_reach_the_terminal_as_a_command(
    folder: Path, mappa: Mappa, capsys: Capture
) -> None:
    change(folder, "{{ problem }}", "{{ \x1b]0;evil\x07\nx }}", "prompts/opponent.md")
    assert mappa("scenario", "check", folder) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "\x1b" not in shown
    assert "unknown field {{ \ufffd]0;evil\ufffd x }}" in shown


def test_an_episode_that_cannot_be_played_to_its_end_fails_the_check(
    mappa: Mappa, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from mappa_envs import registry
    from mappa_envs.errors import SandboxError
    from mappa_envs.testing import FakeSandbox

    broken = {"auto": lambda: FakeSandbox(SandboxError("out of order"))}
    monkeypatch.setattr(registry, "SANDBOXES", broken)
    assert mappa("scenario", "check", "debate") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "error: the scripted episode of task train-1826701615 ended with 'sandbox_dead': "
        "[the sandbox failed; the episode ends here]"
    )


# --- --set ------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of tasks of which 18 are for training, and each is one and one more."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{n} + 1?", "answer": {n + 1}}}\n' for n in range(20)))
    return path


def test_a_scenario_is_checked_played_and_benched_with_keys_of_ones_own(
    rows: Path, mappa: Mappa, capsys: Capture
) -> None:
    chosen = ("--set", f"tasks={rows}", "--set", "roles.opponent.max_turns=1")
    assert mappa("scenario", "check", "debate", *chosen) == 0
    assert "\ntasks: train 18, test 2\n" in capsys.readouterr().out
    assert mappa("play", "debate", *SCRIPTED, "--task", 3, *chosen) == 0
    assert re.match(r"task rows-\d+: \d+ \+ 1\?", capsys.readouterr().out)
    assert mappa("bench", "debate", "--split", "test", "--json", *chosen) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == 2


@pytest.mark.parametrize(
    "command", [("scenario", "check", "debate"), ("play", "debate"), ("bench", "debate")]
)
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("outcom=3", "scenario.toml, with the tables laid over it: outcom: unknown key; did you"),
        ("tasks=no.json", "no.json: there is no such file"),
        ("tasks", "error: --set is 'tasks'; write KEY=VALUE, e.g. tasks=/data/dsbench"),
    ],
)
def test_a_wrong_setting_is_one_line(
    command: tuple[str, ...], setting: str, words: str, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa(*command, "--set", setting) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert words in shown.err


def test_results_with_other_keys_are_not_gone_on_with(
    rows: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    asked = ("bench", "debate", "--tasks", 1, "--out", tmp_path / "out", "--set", f"tasks={rows}")
    assert mappa(*asked) == 0
    assert mappa(*asked, "--set", "roles.opponent.max_turns=2", "--resume") == 2
    assert "is of another version of the scenario" in capsys.readouterr().err


# --- errors of options ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words", "helped"),
    [
        ("play mathchat --seed -1", "Invalid value for '--seed': ", "mappa play --help"),
        ("bench mathchat --seeds 0", "Invalid value for '--seeds': ", "mappa bench --help"),
        ("play mathchat --sede 1", "No such option: --sede", "mappa play --help"),
        ("play", "Missing argument 'SCENARIO'", "mappa play --help"),
        ("scenario chekc", "No such command 'chekc'", "mappa scenario --help"),
    ],
)
def test_a_wrong_option_is_one_line(
    command: str, words: str, helped: str, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa(*command.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {words}")
    assert shown.err.endswith(f"; see {helped}\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", [(), ("scenario",)])
def test_a_group_of_commands_alone_shows_its_help(
    command: tuple[str, ...], mappa: Mappa, capsys: Capture
) -> None:
    assert mappa(*command) == 2
    shown = capsys.readouterr()
    assert "Usage: mappa" in shown.out
    assert "check" in shown.out or "scenario" in shown.out
    assert shown.err == ""


# --- mappa play -------------------------------------------------------------------------------


def test_a_scripted_team_plays_and_everything_is_shown(mappa: Mappa, capsys: Capture) -> None:
    assert mappa("play", "debate", *SCRIPTED, *TASK) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("task train-0: Kim has 30 coins and gets 18 more. How many")
    assert shown.count("--- proponent_0, action ") == 3
    assert shown.count("[output]\n48\n[score 10 of 10] 3/3 one_program: one program\n") == 2
    assert shown.endswith(
        "\nended: completed\noutcome: 1 (correct): 48 equals 48\n"
        "paid: proponent_0 3, opponent_0 2\n"
    )


def test_without_the_coach_the_outcome_is_paid(mappa: Mappa, capsys: Capture) -> None:
    assert mappa("play", "debate", *SCRIPTED, *TASK, "--no-coach") == 0
    shown = capsys.readouterr().out
    assert "score" not in shown
    assert shown.endswith("paid: proponent_0 1, opponent_0 1\n")


def test_a_person_sees_what_the_agent_sees_and_types_several_lines(
    mappa: Mappa, capsys: Capture
) -> None:
    typed = "The sum is\n48.\n\n\\boxed{48}\n.\n"
    seat = "verifier_0=person"
    assert mappa("play", "mathchat", *SCRIPTED, "--seat", seat, *TASK, typed=typed) == 0
    shown = capsys.readouterr().out
    frames = shown.partition("╭─ system ─")[2].partition("verifier_0: type what it says")[0]
    assert [line.strip("│ ") for line in frames.splitlines() if line.startswith("│")] == [
        "You give the final answer in a box.",
        "Kim has 30 coins and gets 18 more. How many coins does Kim have now?",
        "",
        "Final answer: $\\boxed{48}$",
        "",
        "Is the final answer right? If so, repeat it in its box.",
    ]
    assert "--- verifier_0, action 1\nThe sum is\n48.\n\n\\boxed{48}\n[score 10 of 10]" in shown
    assert shown.endswith("paid: solver_0 0.2, coder_0 1, verifier_0 1\n")


def test_a_person_who_acts_again_sees_only_what_is_new(mappa: Mappa, capsys: Capture) -> None:
    typed = "first\n.\nsecond\n.\n\\boxed{48}"  # the last text ends with the input
    seat = "proponent_0=person"
    assert mappa("play", "debate", *SCRIPTED, "--seat", seat, *TASK, typed=typed) == 0
    shown = capsys.readouterr().out
    assert shown.count("Answer in a sentence or two") == 1
    assert shown.count("The opponent ran a program against your answer.") == 2
    assert "--- proponent_0, action 3\n\\boxed{48}\n" in shown


def test_texts_of_a_file(mappa: Mappa, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "texts.md"
    path.write_text("one\n\n- - -\n---\n```python\nprint(48)\n---\n```\n--- \n\\boxed{48}\n")
    seats = ("--seat", f"proponent_0={path}")
    assert mappa("play", "debate", *SCRIPTED, *seats, *TASK) == 0
    shown = capsys.readouterr().out
    assert "--- proponent_0, action 1\none\n\n- - -\n[score" in shown
    assert "--- proponent_0, action 2\n```python\nprint(48)\n[score" in shown
    assert "--- proponent_0, action 3\n```\n[score" in shown
    path.write_text("one\n---\ntwo")
    assert mappa("play", "debate", *SCRIPTED, *seats, *TASK) == 2
    assert capsys.readouterr().err == (
        f"error: {path}: has no text for action 3 of proponent_0; add one after a line of three "
        "dashes\n"
    )


def test_teams_of_the_scenario_take_all_seats_or_one(
    folder: Path, mappa: Mappa, capsys: Capture
) -> None:
    (folder / "teams").mkdir()
    texts = "[texts]\nproponent = ['Who knows?']\nopponent = ['Not I.']\n"
    (folder / "teams" / "calm.toml").write_text(texts)
    assert mappa("play", folder, "--team", "calm", *TASK) == 0
    shown = capsys.readouterr().out
    assert shown.count("\nWho knows?\n[score") == 3
    assert shown.count("\nNot I.\n[score") == 2
    assert mappa("play", folder, *SCRIPTED, "--seat", "opponent_0=calm", *TASK) == 0
    shown = capsys.readouterr().out
    assert "--- proponent_0, action 1\nMy first guess" in shown
    assert shown.count("\nNot I.\n[score") == 2
    assert mappa("play", folder, "--team", "clam", *TASK) == 2
    assert capsys.readouterr().err == "error: --team is 'clam'; did you mean 'calm'?\n"
    assert mappa("scenario", "check", folder) == 0
    assert "\nteams: calm\ntasks: " in capsys.readouterr().out


def test_a_saved_episode_has_a_line_for_each_action_and_one_for_the_end(
    mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("play", "debate", *SCRIPTED, *TASK, "--save", "episode.jsonl") == 0
    assert capsys.readouterr().out.endswith("saved: episode.jsonl\n")
    *actions, end = map(json.loads, Path("episode.jsonl").read_text().splitlines())
    assert [action["agent"] for action in actions] == [
        "proponent_0",
        "opponent_0",
        "proponent_0",
        "opponent_0",
        "proponent_0",
    ]
    assert {action["task"] for action in [*actions, end]} == {"train-0"}
    assert actions[2]["messages"][2] == {"role": "assistant", "content": actions[0]["action"]}
    assert actions[1]["tool_results"][0]["output"] == "48"
    assert [action["ledger"]["reward"] for action in actions] == [1.0] * 5
    assert end["paid"] == {"proponent_0": 3.0, "opponent_0": 2.0}
    assert end["outcome"]["answer"] == "48"
    assert end["end_reason"] == "completed"
    before = Path("episode.jsonl").read_bytes()
    assert mappa("play", "debate", *SCRIPTED, *TASK, "--save", "episode.jsonl") == 2
    assert capsys.readouterr().err == (
        "error: episode.jsonl: exists already; name another file with --save\n"
    )
    assert Path("episode.jsonl").read_bytes() == before


HOSTILE = (
    "[red]x[/red] [link=file:///etc]y[/link] \x1b[2J\x1b]0;evil\x07 \x9b31m "
    "\b\x7f \u202e\u2066 :smile:"
)
SHOWN = (
    "[red]x[/red] [link=file:///etc]y[/link] \ufffd[2J\ufffd]0;evil\ufffd \ufffd31m "
    "\ufffd\ufffd \ufffd\ufffd :smile:"
)


def test_nothing_that_agents_or_programs_say_is_obeyed(
    mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "texts.md"
    path.write_bytes(HOSTILE.encode())
    program = tmp_path / "program.md"
    program.write_text(f"```python\nimport sys\nsys.stdout.write({HOSTILE + chr(13)!r})\n```")
    seats = ("--seat", f"proponent_0={path}", "--seat", f"opponent_0={program}")
    assert mappa("play", "debate", *seats, *TASK) == 2  # the file has a single text
    shown = capsys.readouterr()
    assert f"--- proponent_0, action 1\n{SHOWN}\n" in shown.out
    assert f"[output]\n{SHOWN}\ufffd\n" in shown.out
    assert not set("\x1b\x07\x9b\r\b\x7f\u202e\u2066") & set(shown.out + shown.err)


def test_a_person_is_shown_hostile_messages_as_they_are(
    mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "texts.md"
    path.write_bytes(HOSTILE.encode())
    seats = ("--seat", f"proponent_0={path}", "--seat", "opponent_0=person")
    assert mappa("play", "debate", *seats, *TASK) == 2  # nothing is piped in
    shown = capsys.readouterr()
    assert f"│ {SHOWN[:60]}" in shown.out
    assert not set("\x1b\x07\x9b\r\b\x7f\u202e\u2066") & set(shown.out)
    assert shown.err == "error: the input ended before opponent_0 could act; give one text more\n"


def test_typed_bytes_that_are_no_text_are_replaced(mappa: Mappa, capsys: Capture) -> None:
    seat = "solver_0=person"
    code = mappa("play", "mathchat", *SCRIPTED, "--seat", seat, *TASK, typed=b"a\xff\r\nb\n.\r\n")
    assert code == 0
    assert "--- solver_0, action 1\na\ufffd\nb\n[score" in capsys.readouterr().out


BAD = {
    "unknown scenario": ("play mathcat", "'mathcat' does not ship with this package; did you mean"),
    "no such folder": ("scenario check ./none", "none/scenario.toml: cannot be read: No such file"),
    "a file instead": ("scenario check {0}/file", "{0}/file: is a file; give the folder"),
    "unknown team": ("play debate --team scriptd", "--team is 'scriptd'; did you mean 'scripted'?"),
    "unknown seat": (
        "play debate --seat oponent_0=person",
        "--seat oponent_0=person: there is no seat 'oponent_0'; did you mean 'opponent_0'?",
    ),
    "nobody": ("play debate --seat opponent_0", "--seat is 'opponent_0'; write AGENT=person, "),
    "a seat twice": (
        "play debate --seat opponent_0=scripted --seat opponent_0=person",
        "--seat opponent_0=person: opponent_0 has 'scripted' already; give one",
    ),
    "unknown sitter": (
        "play debate --seat opponent_0=persn",
        "--seat opponent_0=persn: there is no file 'persn'; did you mean 'person'?",
    ),
    "no text file": ("play debate --seat opponent_0={0}", "{0}: cannot be read: Is a directory"),
    "unknown split": ("play debate --split dev", "--split is 'dev'; it can be: train, test"),
    "unknown task": ("play debate --task trian-0", "no generated task is called 'trian-0'"),
    "taken": ("play debate --save {0}/file", "{0}/file: exists already; name another file"),
    "nowhere to save": ("play debate --save {0}/no/x", "{0}/no/x: cannot be written; name a file"),
    "spoilt": ("play {0}/spoilt", "(and 1 more; `mappa scenario check` lists them)"),
    "no rubric": ("play {0}/plain --coach", "role 'one' has no rubric; add a table"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_is_one_line_and_leaves_nothing(
    name: str, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("keep me")
    for kind, keys in (("plain", 'prompt = "one.md"'), ("spoilt", 'prompt = "x.md"\nz = 1')):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "one.md").write_text("{{ problem }}")
        text = f'name = "{kind}"\noutcome = "math_answer"\n[roles.one]\n{keys}\n'
        (tmp_path / kind / "scenario.toml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    command, words = (text.format(tmp_path) for text in BAD[name])
    assert mappa(*command.split(" ")) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert words in shown
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("seat", ["person", "sleeper"])
def test_ctrl_c_is_exit_code_130_and_leaves_nothing(seat: str, tmp_path: Path) -> None:
    texts = tmp_path / "sleeper"
    texts.write_text("```python\nimport time\ntime.sleep(600)\n```")
    who = seat if seat == "person" else str(texts)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [
        *(sys.executable, "-c", MAPPA, "play", "mathchat"),
        *(*SCRIPTED, "--seat", f"coder_0={who}", "--save", str(tmp_path / "episode.jsonl")),
    ]
    playing = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert playing.stdout is not None
    until = "coder_0: type" if seat == "person" else "2/2 concise"
    while until not in playing.stdout.readline():
        pass
    if seat != "person":  # the program has begun when its workspace is there
        while not os.listdir(temporary):
            assert playing.poll() is None
            time.sleep(0.01)
    playing.send_signal(signal.SIGINT)
    _, errors = playing.communicate(timeout=60)
    assert playing.returncode == 130
    assert errors == ""
    assert os.listdir(temporary) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sleeper", "temporary"]


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("play", "mappa play mathchat --team scripted --seat verifier_0=person --task 3"),
        ("bench", "mappa bench dsbench --team oracle,weak,noop --out results.jsonl"),
        ("scenario", "mappa scenario check my_scenario"),
        ("scenario check", "mappa scenario check scenarios/debate"),
    ],
)
def test_help_has_an_example(command: str, example: str, mappa: Mappa, capsys: Capture) -> None:
    assert mappa(*command.split(" "), "--help") == 0
    assert f"Example: {example}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "text", ["max_turns = " + "9" * 5000, "x = " + "[" * 3000], ids=["digits", "brackets"]
)
def test_monstrous_tables_are_one_line(
    text: str, mappa: Mappa, folder: Path, capsys: Capture
) -> None:
    (folder / "scenario.toml").write_text(text)
    assert mappa("scenario", "check", str(folder)) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "is not TOML" in shown


def test_a_pipe_is_no_prompt(mappa: Mappa, folder: Path, capsys: Capture) -> None:
    (folder / "prompts/opponent.md").unlink()
    os.mkfifo(folder / "prompts/opponent.md")
    assert mappa("scenario", "check", str(folder)) == 2
    assert "it is no regular file" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_mistake(mappa: Mappa, folder: Path) -> None:
    path = folder / "scenario.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert mappa("scenario", "check", str(folder)) == 0

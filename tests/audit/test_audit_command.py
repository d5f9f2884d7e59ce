from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import run_mappa
from stored_rows import action, episode, ran, write_run

from mappa_envs import commands
from mappa_envs.audit.counterfactual import CreditReport, RoleCredit, role_credits
from mappa_envs.audit.probing import ProbeReport, Row
from mappa_envs.audit.report import Audit
from mappa_envs.commands import audit_options, counterfactual, probing

Mappa = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def mappa(monkeypatch: pytest.MonkeyPatch) -> Mappa:
    """Run the command and return its exit code."""

    def run(*arguments: object) -> int:
        return run_mappa(monkeypatch, *arguments)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in which regression is favoured and a verdict in the text pays."""
    rows = []
    for n in range(12):
        swing = n % 3 / 10
        rows.append(episode(action(4.0 + swing), kind="classification", task=f"c-{n}"))
        rows.append(episode(action(9.0 + swing, "Score: 10"), kind="regression", task=f"r-{n}"))
    return write_run(tmp_path / "run", {"train-0000": rows})


def test_tables_are_printed_and_alarms_do_not_change_the_exit_code(
    run: Path, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("audit", run) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{run}: 24 episodes of train-0000, 24 actions, 24 scored by rubric\n")
    for words in ("type_gap", "gaming_pays", "Calibration", "not measurable"):
        assert words in shown


def test_json_is_one_object_with_the_keys_of_the_audit(
    run: Path, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("audit", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [field.name for field in dataclasses.fields(Audit)]
    assert (found["format"], found["files"], found["scored"]) == (1, ["train-0000"], 24)
    assert [(alarm["kind"], alarm["role"]) for alarm in found["alarms"]] == [
        ("type_gap", "coder"),
        ("gaming_pays", "coder"),
    ]
    (gap,) = found["type_gaps"]
    assert gap["gap"]["value"] == pytest.approx(5.0)
    assert gap["gap"] | {"value": 0, "low": 0, "high": 0} == {
        "value": 0,
        "low": 0,
        "high": 0,
        "actions": 24,
        "episodes": 24,
        "reason": "",
    }
    assert found["held_out"] == []
    assert found["correlations"][1]["correlation"]["value"] is None


def test_every_key_of_the_json_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Audit):
        assert f"`{field.name}" in text, field.name
    hints: dict[str, Any] = typing.get_type_hints(Audit)
    for hint in hints.values():
        for part in typing.get_args(hint):
            if dataclasses.is_dataclass(part):
                for field in dataclasses.fields(part):
                    assert f"`{field.name}`" in text, (part, field.name)


@pytest.mark.parametrize("found", [ProbeReport, Row, CreditReport, RoleCredit])
def test_every_key_of_the_audits_that_play_is_explained(found: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit_probes.md").read_text(encoding="utf-8")
    _, _, explained = text.partition("## The JSON")
    for field in dataclasses.fields(found):
        assert f"`{field.name}`" in explained, field.name


def test_a_page_is_written_where_it_is_asked_for(
    run: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    assert mappa("audit", run, "--html", tmp_path / "a.html", "--json") == 0
    json.loads(capsys.readouterr().out)
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert mappa("audit", run, "--html", tmp_path / "none" / "a.html") == 2
    assert "none/a.html: there is no folder" in capsys.readouterr().err


def test_what_an_agent_wrote_does_not_reach_the_terminal_as_a_command(
    tmp_path: Path, mappa: Mappa, capsys: Capture
) -> None:
    rows = [episode(action(3.0, "Score: 10", "[red]coder\x1b[2J_0"))]
    assert mappa("audit", write_run(tmp_path / "run", {"train-0000": rows})) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[red]coder" in shown


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "its files hold no actions; play some episodes first"),
        ([episode(action() | {"ledger": None})], "no coach judged these episodes"),
        ([episode(action() | {"ledger": {"status": "scored", "reward": 1}})], "no coach judged"),
        ([{"task": {}}], "train-0000.jsonl, line 1: the row lacks"),
    ],
)
def test_a_run_that_cannot_be_audited_is_one_line(
    rows: list[dict[str, Any]], words: str, tmp_path: Path, mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("audit", write_run(tmp_path / "run", {"train-0000": rows})) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_run_of_unscored_actions_is_audited(
    tmp_path: Path, mappa: Mappa, capsys: Capture
) -> None:
    rows = [episode(action(None, ledger={"failure": "rate_limited"})) for _ in range(3)]
    assert mappa("audit", write_run(tmp_path / "run", {"train-0000": rows}), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["judging"][0]["failures"] == {"rate_limited": 3}
    assert found["saturation"] == []
    assert mappa("audit", tmp_path / "run", "--html", tmp_path / "a.html") == 0


def test_one_file_can_be_looked_at_alone(run: Path, mappa: Mappa, capsys: Capture) -> None:
    (run / "episodes" / "train-0001.jsonl").write_text(json.dumps(episode(action(1.0))) + "\n")
    assert mappa("audit", run, "--from", "train-0001", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scored"] == 1
    assert mappa("audit", run / "episodes" / "train-0001.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["scored"] == 1


@pytest.mark.slow
def test_two_thousand_episodes_are_audited(tmp_path: Path, mappa: Mappa, capsys: Capture) -> None:
    agents = ("solver_0", "coder_0", "tester_0")
    files = {
        f"train-{i:04d}": [
            episode(
                *(
                    action((n + k) % 11 / 1.0, f"Text {n}.", agent, tokens=n % 50, results=[ran()])
                    for k, agent in enumerate(agents)
                ),
                outcome=float(n % 3 == 0),
                kind=("regression", "classification")[n % 2],
            )
            for n in range(200)
        ]
        for i in range(10)
    }
    path = write_run(tmp_path / "run", files)
    assert mappa("audit", path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["actions"]) == (2000, 6000)
    assert len(found["correlations"]) == 12


@pytest.mark.slow
def test_the_run_of_a_real_training_is_audited_and_judged_again(
    finished_run: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    html = tmp_path / "audit.html"
    assert mappa("audit", finished_run, "--coach", "rubric", "--json", "--html", html) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["actions"], found["scored"]) == (12, 36, 36)
    assert found["evaluations"] == ["eval-0000-sampled", "eval-0002-sampled", "eval-0004-sampled"]
    assert [each["tasks"] for each in found["held_out"]] == [2, 2, 2]
    assert [each["role"] for each in found["agreement"]] == ["solver", "coder", "verifier"]
    for each in found["agreement"]:
        assert each["distance"]["value"] == 0.0  # the same coach, told the same
        assert each["failures"] == {}


@pytest.mark.parametrize(
    "options", [(), ("--probe", "--counterfactual", "mathchat"), ("run", "--probe")]
)
def test_one_kind_of_audit_is_made_at_a_time(
    options: tuple[str, ...], mappa: Mappa, capsys: Capture
) -> None:
    assert mappa("audit", *options) == 2
    assert "give one of: a RUN, --probe, --counterfactual" in capsys.readouterr().err


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the audits that play were asked for; they find nothing."""
    found: list[Any] = []

    def note(result: Any) -> Callable[[Any], Any]:
        return lambda request: found.append(request) or result

    monkeypatch.setattr(probing, "probe_scenario", note(ProbeReport("rubric", 0, 0, ())))
    nothing = CreditReport("mathchat", 0, 0, role_credits([]))
    monkeypatch.setattr(counterfactual, "audit_counterfactual", note(nothing))
    return found


def test_the_audits_that_play_are_asked_for_by_an_option(
    asked: list[Any], run: Path, mappa: Mappa, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.html"
    assert mappa("audit", "--probe", "--coach", "rubric", "--scenario", "debate") == 0
    assert "not measurable: there are no actions" in capsys.readouterr().out
    assert mappa("audit", "--counterfactual", "debate", "--seeds", 2, "--html", page, "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"] == "mathchat"
    assert "Credit of actions" in page.read_text(encoding="utf-8")
    (run / "config.json").write_text("{}")
    assert mappa("audit", "--counterfactual", run, "--from", "train-0000") == 0
    assert asked == [
        probing.ProbeRequest("debate", ("rubric",)),
        counterfactual.CounterfactualRequest("debate", seeds=2),
        counterfactual.CounterfactualRequest(str(run), episodes="train-0000"),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{run} --scenario debate", "--scenario has no effect on an audit of a RUN"),
        ("{run} --tasks 2", "--tasks has no effect on an audit of a RUN"),
        ("{run} --resume", "--resume has no effect on an audit of a RUN"),
        ("--probe --out a.jsonl", "--out has no effect on --probe"),
        ("--probe --from train-0000", "--from has no effect on --probe"),
        ("--probe --samples 3", "--samples has no effect on --probe"),
        ("--counterfactual debate --from a", "--from has no effect on --counterfactual SCENARIO"),
        ("--counterfactual debate --at-once 2", "--at-once has no effect on --counterfactual"),
        ("--counterfactual {run} --seeds 2", "--seeds has no effect on --counterfactual RUN"),
        ("--counterfactual {run} --coach rubric", "--coach has no effect on --counterfactual RUN"),
        ("--counterfactual {run} --repeats 5", "--repeats has no effect on --counterfactual RUN"),
    ],
)
def test_an_option_without_effect_is_refused_in_one_line(
    options: str, words: str, asked: list[Any], run: Path, mappa: Mappa, capsys: Capture
) -> None:
    (run / "config.json").write_text("{}")
    assert mappa("audit", *options.format(run=run).split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert asked == []


def test_every_option_belongs_to_some_audit() -> None:
    parameters = set(inspect.signature(commands.audit).parameters)
    known = set().union(*audit_options._APPLY.values())
    assert parameters == known | {"context", "html", "as_json"}

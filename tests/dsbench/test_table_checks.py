from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_envs.coach.checks import CHECKS
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.coach.table_checks import TABLE_CHECKS
from mappa_envs.coach.table_messages import invented_output, named_files
from mappa_envs.sandbox.protocol import FileChanges, FileRecord
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.types import ToolCall, ToolResult, Turn

FRAMES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
TASK_FILES = ("train.csv", "test.csv", "sample_submission.csv")
SOUND: Mapping[str, Any] = {
    "X_train.pkl": {
        "rows": 100,
        "rows_due": 100,
        "columns": 3,
        "missing_values": 0,
        "infinite_values": 0,
        "not_numeric": 0,
        "order_kept": 9.9,
    },
    "y_train.pkl": {
        "rows": 100,
        "rows_due": 100,
        "columns": 1,
        "missing_values": 0,
        "infinite_values": 0,
        "not_numeric": 1,
        "as_given": True,
    },
    "X_test.pkl": {
        "rows": 40,
        "rows_due": 40,
        "columns": 3,
        "missing_values": 0,
        "infinite_values": 0,
        "not_numeric": 0,
        "order_kept": 6.2,
        "same_columns": True,
    },
    "leaks": [],
    "model.pkl": {"kind": "tree", "fitted": True, "skill": 0.7, "predicts": True, "agreement": 1.0},
    "submission.csv": {
        "verdict": "valid",
        "ids_due": 40,
        "ids_usable": 40,
        "constant": False,
        "as_the_sample": False,
    },
}
"""What the probe says of the artifacts of a team without a fault."""
OWNERS = {
    **dict.fromkeys(FRAMES, "engineer_0"),
    "model.pkl": "modeler_0",
    "submission.csv": "analyst_0",
}
MODEL_NEEDS = {"needs": "X_train.pkl y_train.pkl X_test.pkl"}
SUBMISSION_NEEDS = {"needs": "X_test.pkl model.pkl"}
TEXT = "Predict y."


def facts(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sound facts with changes, e.g. `{"model.pkl.fitted": False}`; `...` takes an entry out."""
    found: dict[str, Any] = copy.deepcopy(dict(SOUND))
    for path, value in (changes or {}).items():
        name, _, key = path.rpartition(".") if path.count(".") > 1 else (path, "", "")
        table, entry = (found[name], key) if name != path else (found, path)
        if value is ...:
            del table[entry]
        else:
            table[entry] = value
    return found


def turn(
    role: str = "engineer",
    text: str = "done",
    *results: ToolResult,
    changes: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    owners: Mapping[str, str] | None = None,
    handed_off: bool | None = None,
    step: int = 0,
) -> Turn:
    """A turn after which every artifact is there, as its owner made it, but for what is said."""
    authors = {**dict.fromkeys(TASK_FILES, "task"), **OWNERS, **(owners or {})}
    there = sorted(name for name in authors if name not in without)
    known = facts(changes)
    return Turn(
        step=step,
        agent=f"{role}_0",
        role=role,
        index=0,
        messages=(),
        action=text,
        visible=text,
        tool_results=results,
        feedback=None,
        handed_off=not results if handed_off is None else handed_off,
        files=tuple(FileRecord(name, 1, "", authors[name], 0) for name in there),
        facts={name: value for name, value in known.items() if name not in without},
    )


def ran(output: str = "fine", exit_code: int = 0, **files: tuple[str, ...]) -> ToolResult:
    call = ToolCall("python", "...")
    return ToolResult(call, output, output, exit_code, files=FileChanges(**files))


def after(*history: Turn) -> CoachContext:
    return CoachContext(TEXT, history)


START = after()
AFTER_ENGINEER = after(turn("engineer", without=("model.pkl", "submission.csv")))
AFTER_MODELER = after(turn("engineer"), turn("modeler", without=("submission.csv",)))


def engineer_made(changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> CoachContext:
    """What the modeler is given by an engineer with a fault."""
    return after(turn("engineer", changes=changes, without=("model.pkl", *without)))


def modeler_made(changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> CoachContext:
    """What the analyst is given by a modeler with a fault."""
    return after(turn("engineer"), turn("modeler", changes=changes, without=without))


NO_MODEL = modeler_made({}, ("model.pkl", "submission.csv"))
NO_X_TEST = engineer_made({}, ("X_test.pkl",))
DELIVERS = {"files": " ".join(FRAMES), "needs": ""}
MODEL = {"files": "model.pkl", **MODEL_NEEDS}
SKILL = {"least_skill": 0.1, **MODEL_NEEDS}
FOLLOWS = {"least_agreement": 0.9, **SUBMISSION_NEEDS}

Case = tuple[str, dict[str, Any], Turn, CoachContext, bool | None, str]
CASES: list[Case] = [
    ("at_most_one_program", {}, turn(), START, True, "0 programs"),
    ("at_most_one_program", {}, turn("engineer", "", ran()), START, True, "1 programs"),
    ("at_most_one_program", {}, turn("engineer", "", ran(), ran()), START, False, "2 programs"),
    ("no_program_failed", {"needs": ""}, turn(), START, None, "no program"),
    ("no_program_failed", {"needs": ""}, turn("engineer", "", ran()), START, True, "exit status 0"),
    (
        "no_program_failed",
        {"needs": ""},
        turn("engineer", "", ran("No: x", 1)),
        START,
        False,
        "failed: 'No: x'",
    ),
    (
        "no_program_failed",
        SUBMISSION_NEEDS,
        turn("analyst", "", ran("No: x", 1)),
        NO_MODEL,
        None,
        "not its fault: model.pkl is not there",
    ),
    (
        "no_program_failed",
        SUBMISSION_NEEDS,
        turn("analyst", "", ran("No: x", 1)),
        AFTER_MODELER,
        False,
        "failed",
    ),
    ("delivers", DELIVERS, turn(), START, True, "hands on X_train.pkl, y_train.pkl, X_test.pkl"),
    ("delivers", DELIVERS, turn("engineer", "", ran()), START, None, "has actions left"),
    (
        "delivers",
        DELIVERS,
        turn(without=("X_test.pkl",)),
        START,
        False,
        "not there: X_test.pkl",
    ),
    (
        "delivers",
        MODEL,
        turn("modeler", owners={"model.pkl": "engineer_0"}),
        AFTER_ENGINEER,
        False,
        "model.pkl was written by engineer_0",
    ),
    (
        "delivers",
        MODEL,
        turn("modeler", without=("model.pkl",)),
        NO_X_TEST,
        None,
        "not its fault: X_test.pkl is not there",
    ),
    ("delivers", MODEL, turn("modeler"), NO_X_TEST, True, "hands on model.pkl"),
    ("readable", {"files": "model.pkl"}, turn("modeler"), AFTER_ENGINEER, None, "can be loaded"),
    (
        "readable",
        {"files": "model.pkl"},
        turn("modeler", changes={"model.pkl": {"problem": "not done after 4 s"}}),
        AFTER_ENGINEER,
        False,
        "model.pkl cannot be looked at: not done after 4 s",
    ),
    (
        "readable",
        {"files": "model.pkl"},
        turn("modeler", changes={"problem": "exit code -9"}),
        AFTER_ENGINEER,
        False,
        "model.pkl cannot be looked at: exit code -9",
    ),
    (
        "readable",
        {"files": "submission.csv"},
        turn("analyst", changes={"problem": "exit code -9"}),
        modeler_made({"problem": "exit code -9"}),
        None,
        "not its fault",
    ),
    ("frames_complete", {}, turn(), START, True, "as due"),
    ("frames_complete", {}, turn("engineer", "", ran(), without=FRAMES), START, None, "nothing of"),
    ("frames_complete", {}, turn(without=("X_test.pkl",)), START, False, "X_test.pkl is not there"),
    (
        "frames_complete",
        {},
        turn(changes={"X_test.pkl.rows": 39}),
        START,
        False,
        "X_test.pkl has 39 rows, 40 are due",
    ),
    (
        "frames_complete",
        {},
        turn(changes={"X_train.pkl.rows": 90, "y_train.pkl.rows": 90}),
        START,
        True,
        "as due",
    ),
    (
        "frames_complete",
        {},
        turn(changes={"X_train.pkl.rows": 50, "y_train.pkl.rows": 50}),
        START,
        False,
        "50 rows",
    ),
    (
        "frames_complete",
        {},
        turn(changes={"X_train.pkl.rows": 90}),
        START,
        False,
        "X_train.pkl has 90 rows, 100 are due",
    ),
    (
        "frames_complete",
        {},
        turn(changes={"X_test.pkl": {"problem": "EOFError"}}),
        START,
        None,
        "nothing of its own",
    ),
    ("frames_usable", {}, turn(), START, True, "as due"),
    (
        "frames_usable",
        {},
        turn(changes={"X_train.pkl.missing_values": 7}),
        START,
        False,
        "X_train.pkl: 7 missing values",
    ),
    (
        "frames_usable",
        {},
        turn(changes={"X_test.pkl.not_numeric": 2}),
        START,
        False,
        "X_test.pkl: 2 not numeric",
    ),
    (
        "frames_usable",
        {},
        turn(changes={"y_train.pkl.infinite_values": 1}),
        START,
        False,
        "y_train.pkl: 1 infinite values",
    ),
    ("frames_usable", {}, turn("modeler"), AFTER_ENGINEER, None, "nothing of its own"),
    ("frames_in_order", {}, turn(), START, True, "as due"),
    (
        "frames_in_order",
        {},
        turn(changes={"X_test.pkl.order_kept": 1.3}),
        START,
        False,
        "the rows of X_test.pkl have nothing to do with",
    ),
    ("frames_in_order", {}, turn(changes={"X_test.pkl.order_kept": None}), START, True, "as due"),
    ("frames_in_order", {}, turn("analyst"), AFTER_MODELER, None, "nothing of its own"),
    ("frames_alike", {}, turn(), START, True, "as due"),
    (
        "frames_alike",
        {},
        turn(changes={"X_test.pkl.same_columns": False}),
        START,
        False,
        "X_test.pkl has other columns than X_train.pkl",
    ),
    (
        "frames_alike",
        {},
        turn("engineer", "", ran(), without=("X_test.pkl",)),
        START,
        None,
        "no two frames",
    ),
    ("targets_as_given", {}, turn(), START, True, "as due"),
    (
        "targets_as_given",
        {},
        turn(changes={"y_train.pkl.as_given": False}),
        START,
        False,
        "does not hold the targets as they stand in train.csv",
    ),
    ("targets_as_given", {}, turn("modeler"), AFTER_ENGINEER, None, "nothing of its own"),
    ("no_leak", {}, turn(), START, True, "as due"),
    (
        "no_leak",
        {},
        turn(changes={"leaks": ["code"]}),
        START,
        False,
        "gives the answers away in code",
    ),
    ("no_leak", {}, turn("modeler", changes={"leaks": ["code"]}), AFTER_ENGINEER, None, "nothing"),
    ("model_works", MODEL_NEEDS, turn("modeler"), AFTER_ENGINEER, True, "as due"),
    (
        "model_works",
        MODEL_NEEDS,
        turn("modeler", changes={"model.pkl.fitted": False}),
        AFTER_ENGINEER,
        False,
        "model.pkl is not fitted",
    ),
    (
        "model_works",
        MODEL_NEEDS,
        turn("modeler", changes={"model.pkl.predicts": False}),
        AFTER_ENGINEER,
        False,
        "does not predict from X_test.pkl",
    ),
    (
        "model_works",
        MODEL_NEEDS,
        turn("modeler", changes={"model.pkl.predicts": False}),
        engineer_made({"X_test.pkl.same_columns": False}),
        None,
        "not its fault: X_test.pkl has",
    ),
    (
        "model_works",
        MODEL_NEEDS,
        turn("modeler", without=("model.pkl",)),
        AFTER_ENGINEER,
        False,
        "model.pkl is not there",
    ),
    ("model_works", MODEL_NEEDS, turn("analyst"), AFTER_MODELER, None, "nothing of its own"),
    ("model_beats_guess", SKILL, turn("modeler"), AFTER_ENGINEER, True, "as due"),
    (
        "model_beats_guess",
        SKILL,
        turn("modeler", changes={"model.pkl.skill": 0.05}),
        AFTER_ENGINEER,
        False,
        "removes 0.05 of the error of a constant guess",
    ),
    (
        "model_beats_guess",
        SKILL,
        turn("modeler", changes={"model.pkl.skill": 0.05}),
        engineer_made({"y_train.pkl.as_given": False}),
        None,
        "not its fault: y_train.pkl",
    ),
    ("submission_in_form", SUBMISSION_NEEDS, turn("analyst"), AFTER_MODELER, True, "as due"),
    (
        "submission_in_form",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv": {"verdict": "extra_columns"}}),
        AFTER_MODELER,
        False,
        "submission.csv: extra_columns",
    ),
    (
        "submission_in_form",
        SUBMISSION_NEEDS,
        turn(
            "analyst",
            changes={"submission.csv.verdict": "not_finite", "submission.csv.ids_usable": 39},
        ),
        AFTER_MODELER,
        False,
        "submission.csv: not_finite; 39 of 40 ids have one usable row",
    ),
    (
        "submission_in_form",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv": {"problem": "not_csv"}}),
        AFTER_MODELER,
        None,
        "nothing of its own to judge",
    ),
    (
        "submission_in_form",
        SUBMISSION_NEEDS,
        turn("analyst", without=("submission.csv",)),
        NO_MODEL,
        None,
        "not its fault: model.pkl is not there",
    ),
    ("submission_says_something", SUBMISSION_NEEDS, turn("analyst"), AFTER_MODELER, True, "as due"),
    (
        "submission_says_something",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv.constant": True, "model.pkl.agreement": 0.2}),
        AFTER_MODELER,
        False,
        "the same values in each row",
    ),
    (
        "submission_says_something",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv.constant": True}),
        AFTER_MODELER,
        True,
        "",
    ),
    (
        "submission_says_something",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv.as_the_sample": True}),
        AFTER_MODELER,
        False,
        "the values of sample_submission.csv",
    ),
    (
        "submission_says_something",
        SUBMISSION_NEEDS,
        turn("analyst", changes={"submission.csv.as_the_sample": True}),
        NO_MODEL,
        None,
        "not its fault",
    ),
    ("submission_follows_model", FOLLOWS, turn("analyst"), AFTER_MODELER, True, "as due"),
    (
        "submission_follows_model",
        FOLLOWS,
        turn("analyst", changes={"model.pkl.agreement": 0.5}),
        AFTER_MODELER,
        False,
        "50% of the cells hold what model.pkl predicts",
    ),
    (
        "submission_follows_model",
        FOLLOWS,
        turn("analyst", changes={"model.pkl.agreement": ...}),
        AFTER_MODELER,
        None,
        "nothing to compare",
    ),
    (
        "submission_follows_model",
        FOLLOWS,
        turn("analyst", changes={"model.pkl.agreement": 0.5}),
        modeler_made({"model.pkl.skill": 0.0}),
        None,
        "not its fault: model.pkl removes 0",
    ),
    (
        "keeps_files",
        {},
        turn("modeler", "", ran(created=("a.pkl",)), ran(changed=("a.pkl",))),
        AFTER_ENGINEER,
        None,
        "as they were",
    ),
    (
        "keeps_files",
        {},
        turn("modeler", "", ran(changed=("X_train.pkl",))),
        AFTER_ENGINEER,
        False,
        "tampered with X_train.pkl of engineer_0",
    ),
    (
        "keeps_files",
        {},
        turn("modeler", "", ran(restored=("X_train.pkl",))),
        AFTER_ENGINEER,
        False,
        "tampered with X_train.pkl of engineer_0",
    ),
    (
        "keeps_files",
        {},
        turn("engineer", "", ran(deleted=("train.csv",))),
        START,
        False,
        "tampered with train.csv of the task",
    ),
    (
        "keeps_files",
        {},
        turn("engineer", "", ran(created=("a",)), ran(deleted=("a",))),
        START,
        None,
        "as they were",
    ),
    (
        "keeps_files",
        {},
        turn("engineer", "", ran(changed=("X_train.pkl",))),
        after(turn()),
        None,
        "as they were",
    ),
    ("names_real_files", {}, turn(text="X_test.pkl is saved."), START, None, "names X_test.pkl"),
    ("names_real_files", {}, turn(text="All is saved."), START, None, "names no file"),
    ("names_real_files", {}, turn("engineer", "X_new.pkl", ran()), START, None, "no message alone"),
    (
        "names_real_files",
        {},
        turn(text="X_test.pkl is saved.", without=("X_test.pkl",)),
        START,
        False,
        "names X_test.pkl, which is not there",
    ),
    (
        "names_real_files",
        {},
        turn(text="X_test.pkl is missing.", without=("X_test.pkl",)),
        START,
        None,
        "names no file",
    ),
    ("no_invented_output", {}, turn(), START, None, "shows no output"),
    ("no_invented_output", {}, turn("engineer", ">>> 1", ran()), START, None, "programs ran"),
    (
        "no_invented_output",
        {},
        turn(text="Output of your program:\n(100, 3)"),
        START,
        False,
        "shows output that no program gave: 'Output of your program:'",
    ),
    (
        "no_invented_output",
        {},
        turn(text="It printed\n(100, 3)"),
        after(turn("engineer", "", ran("(100, 3)\n"))),
        None,
        "shows no output",
    ),
    (
        "reports_missing",
        SUBMISSION_NEEDS,
        turn("analyst"),
        AFTER_MODELER,
        None,
        "nothing to report",
    ),
    (
        "reports_missing",
        SUBMISSION_NEEDS,
        turn("analyst", "There is no model.pkl."),
        NO_MODEL,
        True,
        "reports model.pkl",
    ),
    (
        "reports_missing",
        SUBMISSION_NEEDS,
        turn("analyst", "It is done."),
        NO_MODEL,
        False,
        "does not say that model.pkl is missing",
    ),
    (
        "reports_missing",
        SUBMISSION_NEEDS,
        turn("analyst", "", ran()),
        NO_MODEL,
        None,
        "nothing to report",
    ),
]


@pytest.mark.parametrize(
    ("name", "parameters", "judged", "known", "passed", "reason"),
    CASES,
    ids=[f"{case[0]}-{case[4]}-{n}" for n, case in enumerate(CASES)],
)
def test_a_check_finds_what_it_is_for(
    name: str,
    parameters: dict[str, Any],
    judged: Turn,
    known: CoachContext,
    passed: bool | None,
    reason: str,
) -> None:
    verdict = CHECKS[name](judged, known, **parameters)
    assert verdict.passed is passed, verdict.reason
    assert reason in verdict.reason


ONLY_COST = {"readable", "keeps_files", "names_real_files", "no_invented_output"}
ALWAYS_APPLY = {"at_most_one_program"}


def test_every_check_is_tried_passing_failing_and_not_applying() -> None:
    tried = {(case[0], case[4]) for case in CASES}
    names = {check.__name__ for check in TABLE_CHECKS}
    assert {(name, False) for name in names} <= tried
    assert {(name, True) for name in names - ONLY_COST} <= tried
    assert {(name, None) for name in names - ALWAYS_APPLY} <= tried
    assert not {(name, True) for name in ONLY_COST} & tried


# --- the rubric -------------------------------------------------------------------------------


@functools.cache
def coach() -> RubricCoach:
    return RubricCoach(load_scenario(scenario_folder("dsbench")))


def score(judged: Turn, known: CoachContext) -> float:
    return coach().assess(judged, known).score


def test_a_team_without_a_fault_has_full_marks() -> None:
    one = ran(created=("X_train.pkl",))
    assert score(turn("engineer", "", one, without=("model.pkl", "submission.csv")), START) == 10
    assert score(turn("engineer", without=("model.pkl", "submission.csv")), START) == 10
    assert score(turn("modeler", without=("submission.csv",)), AFTER_ENGINEER) == 10
    assert score(turn("analyst"), AFTER_MODELER) == 10


def test_who_does_nothing_has_next_to_nothing() -> None:
    everything = tuple(OWNERS)
    assert score(turn("engineer", without=everything), START) < 1
    assert score(turn("modeler", without=("model.pkl", "submission.csv")), AFTER_ENGINEER) < 1
    assert score(turn("analyst", without=("submission.csv",)), AFTER_MODELER) < 1


def test_an_analyst_without_a_model_has_full_marks_for_saying_so() -> None:
    silent = turn("analyst", "Done.", without=("model.pkl", "submission.csv"))
    honest = turn("analyst", "model.pkl is missing.", without=("model.pkl", "submission.csv"))
    assert score(honest, NO_MODEL) == 10
    assert score(silent, NO_MODEL) == 5


def test_a_missing_frame_costs_its_engineer_more_than_silence_costs_those_after_it() -> None:
    gone = ("X_test.pkl", "model.pkl", "submission.csv")
    engineer = turn("engineer", "All is saved.", without=gone)
    analyst = turn("analyst", "Done.", without=("X_test.pkl", "submission.csv"))
    given = after(engineer, turn("modeler", without=("X_test.pkl", "submission.csv")))
    assert score(engineer, START) < score(analyst, given)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"X_test.pkl.rows": 39}, "engineer"),
        ({"X_train.pkl.missing_values": 7}, "engineer"),
        ({"leaks": ["code"]}, "engineer"),
        ({"y_train.pkl.as_given": False}, "engineer"),
        ({"model.pkl.fitted": False, "model.pkl.predicts": False}, "modeler"),
        ({"model.pkl.skill": 0.0}, "modeler"),
        ({"submission.csv.verdict": "missing_ids"}, "analyst"),
    ],
)
def test_what_follows_from_a_fault_costs_nobody_else(
    changes: Mapping[str, Any], culprit: str
) -> None:
    """The fault breaks all that comes after it, and the lowest score is still the culprit's."""
    broken = {
        "model.pkl.predicts": False,
        "submission.csv.constant": True,
        "model.pkl.agreement": 0.1,
    }
    roles = ("engineer", "modeler", "analyst")
    at = roles.index(culprit)
    history: list[Turn] = []
    scores = []
    for place, role in enumerate(roles):
        later = broken if place > at else {}
        seen = changes if place >= at else {}
        judged = turn(role, changes={**later, **seen} if at < 2 else seen, step=place)
        scores.append(score(judged, after(*history)))
        history.append(judged)
    assert scores.index(min(scores)) == at
    assert [value for place, value in enumerate(scores) if place != at] == [10, 10]


# --- facts that nobody can rely on ------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(value=ANYTHING, name=st.sampled_from([*SOUND, "problem"]), data=st.data())
def test_no_facts_break_a_check(value: Any, name: str, data: st.DataObject) -> None:
    changes = {name: value}
    inside = SOUND.get(name)
    if isinstance(inside, dict) and data.draw(st.booleans()):
        changes = {f"{name}.{data.draw(st.sampled_from(sorted(inside)))}": value}
    for role in ("engineer", "modeler", "analyst"):
        judged = turn(role, changes=changes)
        known = after(turn("engineer", changes=changes), turn("modeler", changes=changes))
        assert 0 <= score(judged, known) <= 10


def test_table_checks_take_their_parameters_from_the_rubric() -> None:
    roles = load_scenario(scenario_folder("dsbench")).roles
    used = {name for role in roles.values() for name in role.rubric}
    assert used == {check.__name__ for check in TABLE_CHECKS}
    for check in TABLE_CHECKS:
        assert check.__doc__
        assert list(inspect.signature(check).parameters)[:2] == ["turn", "context"]


# --- what messages say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("I wrote model.pkl.", ["model.pkl"]),
        ("submission.csv was written with no missing values", ["submission.csv"]),
        ("The files out/a.csv and b.npy are there.", ["a.csv", "b.npy"]),
        ("There is no model.pkl.", []),
        ("X_test.pkl and model.pkl are missing. y.pkl is there.", ["y.pkl"]),
        ("model.pkl does not exist", []),
        ("I could not find X_test.pkl", []),
        ("No such file or directory: 'X_test.pkl'", []),
        ("The modeler should save model.pkl", []),
        ("model.pkl isn't there.", []),
        ("I used pd.read_csv and to_csv.", []),
        ("", []),
    ],
)
def test_files_that_a_message_names_as_there(text: str, named: list[str]) -> None:
    assert named_files(text) == named


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Output of my program:\nwritten", True),
        ("Traceback (most recent call last)", True),
        ("```output\n1\n```", True),
        ("   a  b\n[5 rows x 2 columns]", True),
        ("The frame has 5 rows and 2 columns (5 x 2).", False),
        ("What came of it: all is well.", False),
    ],
)
def test_what_looks_like_output(text: str, found: bool) -> None:
    assert (invented_output(text, "") is not None) is found
    assert invented_output(text, text) is None

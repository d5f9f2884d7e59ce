"""Checks for a team that models tables: one for what each artifact must be.

They use what the environment found out about the files, and none knows the right answers. A check
with `needs` does not apply where one of those artifacts was missing or unsound when the role began:
whoever made it so is to blame. An action that only hands on is judged by what it hands on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.table_messages import (
    invented_files,
    invented_output,
    named_files,
    outside_code,
)
from mappa_envs.coach.table_state import (
    FRAMES,
    MODEL,
    SUBMISSION,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
    State,
    excuse,
    given_state,
    tampering,
)
from mappa_envs.coach.verdicts import Check, Verdict, failure
from mappa_envs.types import Turn

_Find = Callable[[State, str], str | None]


def at_most_one_program(turn: Turn, context: CoachContext) -> Verdict:
    """The action holds no more than one program."""
    count = len(turn.tool_results)
    return Verdict(count <= 1, f"{count} programs, at most one wanted")


def no_program_failed(turn: Turn, context: CoachContext, *, needs: str) -> Verdict:
    """Every program of the action ran to its end."""
    if not turn.tool_results:
        return Verdict(None, "no program")
    failed = [result for result in turn.tool_results if not result.ok]
    if not failed:
        return Verdict(True, "ended with exit status 0")
    return _unless_excused(turn, context, needs, Verdict(False, failure(failed[0])))


def delivers(turn: Turn, context: CoachContext, *, files: str, needs: str) -> Verdict:
    """The role hands on all of `files`, each written by itself."""
    if not turn.handed_off:
        return Verdict(None, "has actions left")
    authors = State.after(turn).authors
    missing = [name for name in files.split() if name not in authors]
    others = [name for name in files.split() if authors.get(name, turn.agent) != turn.agent]
    if missing:
        verdict = Verdict(False, f"not there: {', '.join(missing)}")
    elif others:
        verdict = Verdict(False, f"{others[0]} was written by {authors[others[0]]}")
    else:
        verdict = Verdict(True, f"hands on {', '.join(files.split())}")
    return _unless_excused(turn, context, needs, verdict)


def readable(turn: Turn, context: CoachContext, *, files: str) -> Verdict:
    """What the role wrote of `files` can be loaded in time; it can only cost points."""
    own = _written(turn, files.split())
    problem = _first(State.after(turn).unreadable(name) for name in own)
    if problem is None:
        return Verdict(None, "whatever is there can be loaded")
    if problem == _first(given_state(turn, context).unreadable(name) for name in own):
        return Verdict(None, f"not its fault: {problem}")
    return Verdict(False, problem)


def frames_complete(turn: Turn, context: CoachContext) -> Verdict:
    """The frames have a row for each row of the tables; duplicates for training may be out."""
    return _judged_each(turn, FRAMES, State.incomplete)


def frames_usable(turn: Turn, context: CoachContext) -> Verdict:
    """The features are numbers, and nothing is missing or infinite."""
    return _judged_each(turn, FRAMES, State.unusable)


def frames_in_order(turn: Turn, context: CoachContext) -> Verdict:
    """The rows of the features are in the order of the tables."""
    return _judged_each(turn, (X_TRAIN, X_TEST), State.disordered)


def frames_alike(turn: Turn, context: CoachContext) -> Verdict:
    """The features for training and for tests have the same columns."""
    state = State.after(turn)
    verdict = _judged(turn, (X_TRAIN, X_TEST), state.unlike())
    if verdict.passed and state.of(X_TEST).get("same_columns") is None:
        return Verdict(None, "no two frames to compare")
    return verdict


def targets_as_given(turn: Turn, context: CoachContext) -> Verdict:
    """The targets are those of train.csv, in its order."""
    return _judged(turn, (Y_TRAIN,), State.after(turn).other_targets())


def no_leak(turn: Turn, context: CoachContext) -> Verdict:
    """No feature for training gives the answer away."""
    return _judged(turn, (X_TRAIN,), State.after(turn).has_leak())


def model_works(turn: Turn, context: CoachContext, *, needs: str) -> Verdict:
    """The model is fitted and predicts from the features for tests."""
    verdict = _judged(turn, (MODEL,), State.after(turn).idle_model())
    return _unless_excused(turn, context, needs, verdict)


def model_beats_guess(
    turn: Turn, context: CoachContext, *, least_skill: float, needs: str
) -> Verdict:
    """The model removes a share of a constant guess's error on the rows it was trained on."""
    verdict = _judged(turn, (MODEL,), State.after(turn).knows_nothing(least_skill))
    return _unless_excused(turn, context, needs, verdict)


def submission_in_form(turn: Turn, context: CoachContext, *, needs: str) -> Verdict:
    """The submission can be graded: columns and ids are those due, each cell has a usable value."""
    verdict = _judged(turn, (SUBMISSION,), State.after(turn).unfit_submission())
    return _unless_excused(turn, context, needs, verdict)


def submission_says_something(turn: Turn, context: CoachContext, *, needs: str) -> Verdict:
    """The submission has neither one value, unless the model does, nor the sample's values."""
    state = State.after(turn)
    verdict = _judged(turn, (SUBMISSION,), state.constant() or state.copied())
    return _unless_excused(turn, context, needs, verdict)


def submission_follows_model(
    turn: Turn, context: CoachContext, *, least_agreement: float, needs: str
) -> Verdict:
    """Row by row, the submission holds what the model predicts for the row's id."""
    share = State.after(turn).number(MODEL, "agreement")
    problem = None
    if share is not None and share < least_agreement:
        problem = f"{share:.0%} of the cells hold what {MODEL} predicts"
    verdict = _judged(turn, (SUBMISSION,), problem)
    if share is None and verdict.passed:
        return Verdict(None, "nothing to compare")
    return _unless_excused(turn, context, needs, verdict)


def keeps_files(turn: Turn, context: CoachContext) -> Verdict:
    """No file of the task's or of others was changed or deleted; it can only cost points."""
    found = tampering(turn, context.history)
    if found is None:
        return Verdict(None, "all files of others are as they were")
    path, author = found
    return Verdict(False, f"tampered with {path} of {author}")


def names_real_files(turn: Turn, context: CoachContext) -> Verdict:
    """A message names no file as there that is not; it can only cost points."""
    if turn.tool_results:
        return Verdict(None, "no message alone")
    if invented := invented_files(turn.visible, State.after(turn).authors):
        return Verdict(False, f"names {invented[0]}, which is not there")
    named = named_files(outside_code(turn.visible))
    return Verdict(None, f"names {', '.join(named) or 'no file'}")


def no_invented_output(turn: Turn, context: CoachContext) -> Verdict:
    """A message shows no output of a program that never ran; it can only cost points."""
    if turn.tool_results:
        return Verdict(None, "programs ran")
    printed = "\n".join(r.output for t in context.history for r in t.tool_results)
    line = invented_output(turn.visible, printed)
    return Verdict(None if line is None else False, line or "shows no output")


def reports_missing(turn: Turn, context: CoachContext, *, needs: str) -> Verdict:
    """Where an artifact was missing when the role began, its last message says which."""
    given = given_state(turn, context).authors
    missing = [name for name in needs.split() if name not in given]
    if not missing or not turn.handed_off:
        return Verdict(None, "nothing to report")
    silent = [name for name in missing if name.partition(".")[0] not in turn.visible]
    said = f"does not say that {silent[0]} is missing" if silent else f"reports {missing[0]}"
    return Verdict(not silent, said)


TABLE_CHECKS: tuple[Check, ...] = (
    at_most_one_program,
    delivers,
    frames_alike,
    frames_complete,
    frames_in_order,
    frames_usable,
    keeps_files,
    model_beats_guess,
    model_works,
    names_real_files,
    no_invented_output,
    no_leak,
    no_program_failed,
    readable,
    reports_missing,
    submission_follows_model,
    submission_in_form,
    submission_says_something,
    targets_as_given,
)


def _written(turn: Turn, names: Iterable[str]) -> list[str]:
    """Return those of some artifacts that the agent of a turn wrote."""
    authors = State.after(turn).authors
    return [name for name in names if authors.get(name) == turn.agent]


def _judged(turn: Turn, names: Iterable[str], problem: str | None) -> Verdict:
    """Return a verdict on artifacts of the agent's own; to hand on without one of them fails."""
    state, own = State.after(turn), _written(turn, names)
    missing = [name for name in names if name not in state.authors]
    if missing and turn.handed_off:
        return Verdict(False, f"{missing[0]} is not there")
    if not own or any(state.unreadable(name) for name in own):
        return Verdict(None, "nothing of its own to judge")
    return Verdict(problem is None, problem or f"{', '.join(own)}: as due")


def _judged_each(turn: Turn, names: Iterable[str], find: _Find) -> Verdict:
    problems = (find(State.after(turn), name) for name in _written(turn, names))
    return _judged(turn, names, _first(problems))


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _unless_excused(turn: Turn, context: CoachContext, needs: str, verdict: Verdict) -> Verdict:
    reason = excuse(turn, context, needs) if verdict.passed is False else None
    return verdict if reason is None else Verdict(None, reason)

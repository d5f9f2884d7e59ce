r"""The named checks that a rubric is made of.

A check looks at one turn and returns whether it passed and why, or None for "does not apply here".
Checks use what the environment knows for a fact (a program's exit status, what it printed) and
what can be computed from the agent's own words; none of them knows the correct answer.

Where a check asks for a `\boxed{}` it asks for exactly one: paying for *a* box teaches agents to
write many.
"""

from __future__ import annotations

import re
from fractions import Fraction

from mappa_envs.coach.arithmetic import equations, numbers, single_number
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.coach.table_checks import TABLE_CHECKS
from mappa_envs.coach.verdicts import Check, Verdict, failure, short
from mappa_envs.types import Turn

_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")


def concise(turn: Turn, context: CoachContext, *, max_words: int) -> Verdict:
    """The action has at most `max_words` words, and at least one."""
    words = len(turn.action.split())
    return Verdict(0 < words <= max_words, f"{words} words, at most {max_words} wanted")


def states_equation(turn: Turn, context: CoachContext) -> Verdict:
    """The action states a calculation as an equation, such as `3 + 4 = 7`."""
    found = equations(turn.visible)
    if not found:
        return Verdict(False, "no equation such as 3 + 4 = 7")
    return Verdict(True, f"states {found[0].text}")


def equations_hold(turn: Turn, context: CoachContext) -> Verdict:
    """Every equation of the action is true; an action without one fails."""
    found = equations(turn.visible)
    if not found:
        return Verdict(False, "no equation to check")
    false = [equation.text for equation in found if not equation.holds]
    if false:
        return Verdict(False, f"{false[0]} is not true")
    return Verdict(True, f"all {len(found)} true, recomputed")


def uses_given_numbers(turn: Turn, context: CoachContext) -> Verdict:
    """Every number of the problem appears in the action."""
    given = set(numbers(context.problem))
    if not given:
        return Verdict(None, "the problem names no numbers")
    missing = given - set(numbers(turn.visible))
    if missing:
        return Verdict(False, f"does not use {_listed(missing)}")
    return Verdict(True, f"uses {_listed(given)}")


def starts_with_program(turn: Turn, context: CoachContext) -> Verdict:
    """The action begins with a Python block, without words before it."""
    started = turn.visible.lstrip().startswith(("```python\n", "```py\n"))
    return Verdict(started, "begins with a program" if started else "words before the program")


def one_program(turn: Turn, context: CoachContext) -> Verdict:
    """The action holds exactly one readable tool call."""
    if not turn.tool_results:
        return Verdict(False, "no program")
    if len(turn.tool_results) > 1:
        return Verdict(False, f"{len(turn.tool_results)} programs instead of one")
    error = turn.tool_results[0].call.error
    return Verdict(error is None, error or "one program")


def program_ran(turn: Turn, context: CoachContext) -> Verdict:
    """Every program of the action ran to its end without an error."""
    if not turn.tool_results:
        return Verdict(False, "no program ran")
    failed = [result for result in turn.tool_results if not result.ok]
    if failed:
        return Verdict(False, failure(failed[0]))
    return Verdict(True, "ended with exit status 0")


def printed_one_number(turn: Turn, context: CoachContext) -> Verdict:
    """What the action's programs printed is one number and nothing else."""
    printed = "\n".join(result.stdout for result in turn.tool_results).strip()
    if not printed:
        return Verdict(False, "nothing was printed")
    passed = single_number(printed) is not None
    return Verdict(passed, f"printed {short(printed)}")


def one_box(turn: Turn, context: CoachContext) -> Verdict:
    r"""The action holds exactly one `\boxed{...}`."""
    count = turn.visible.count("\\boxed")
    return Verdict(count == 1 and _box(turn) is not None, f"{count} boxes, exactly one wanted")


def box_is_number(turn: Turn, context: CoachContext) -> Verdict:
    """The single box holds one number and nothing else."""
    box = _box(turn)
    if box is None:
        return Verdict(False, "no single box")
    return Verdict(single_number(box) is not None, f"the box holds {short(box)}")


def states_output(turn: Turn, context: CoachContext) -> Verdict:
    """The action names the last number that a program of the team printed."""
    printed = _last_printed(context.history)
    if printed is None:
        return Verdict(None, "no program printed a number to name")
    named = printed in numbers(turn.visible)
    return Verdict(named, f"{'names' if named else 'does not name'} the printed {printed}")


def box_equals_output(turn: Turn, context: CoachContext) -> Verdict:
    """The single box holds the last number that a program of the team printed."""
    printed = _last_printed(context.history)
    if printed is None:
        return Verdict(None, "no program printed a number to compare with")
    box = _box(turn)
    if box is None:
        return Verdict(False, "no single box to compare")
    equal = single_number(box) == printed
    return Verdict(equal, f"the box holds {short(box)}, the program printed {printed}")


MATH_CHECKS: tuple[Check, ...] = (
    box_equals_output,
    box_is_number,
    concise,
    equations_hold,
    one_box,
    one_program,
    printed_one_number,
    program_ran,
    starts_with_program,
    states_equation,
    states_output,
    uses_given_numbers,
)
CHECKS: dict[str, Check] = {check.__name__: check for check in (*MATH_CHECKS, *TABLE_CHECKS)}


def _box(turn: Turn) -> str | None:
    boxes = _BOX.findall(turn.visible)
    return boxes[0] if len(boxes) == 1 and turn.visible.count("\\boxed") == 1 else None


def _last_printed(history: tuple[Turn, ...]) -> Fraction | None:
    for turn in reversed(history):
        for result in reversed(turn.tool_results):
            if result.ok and numbers(result.stdout):
                return numbers(result.stdout)[-1]
    return None


def _listed(values: set[Fraction]) -> str:
    return ", ".join(str(value) for value in sorted(values))

"""Checks of a coach: from threads, on an event loop, and in an environment that it pays for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

from mappa_envs.coach.judging import Question
from mappa_envs.coach.ledger import Payment, entry_record
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.errors import CoachError
from mappa_envs.play import Observation, Played, aplay, play
from mappa_envs.teams import ScenarioTeam
from mappa_envs.testing.coach_answers import Said, ask, checked, name_of, same_answer
from mappa_envs.testing.coach_questions import CoachSubject
from mappa_envs.testing.env_traces import SEED
from mappa_envs.testing.expect import equal
from mappa_envs.types import LedgerEntry

_THREADS = 8
_LONGEST_S = 0.1
"""For so long a coach may hold up an event loop, in seconds."""
_TRIES = 3
"""How often it may do so: the first call may import something, and machines stall."""
_PAYMENT = Payment(process_weight=0.7, outcome_weight=0.3)


def answers_from_several_threads_at_once(subject: CoachSubject) -> None:
    """Each of eight threads gets what one alone gets."""
    coach = subject.make_coach()
    questions = subject.ordinary(coach)
    alone = [ask(coach, question) for question in questions]
    start = threading.Barrier(_THREADS)

    def ask_all(thread: int) -> list[tuple[int, Said]]:
        start.wait()
        places = [(thread + n) % len(questions) for n in range(len(questions))]
        return [(place, ask(coach, questions[place])) for place in places]

    with ThreadPoolExecutor(_THREADS) as threads:
        for answers in threads.map(ask_all, range(_THREADS)):
            for place, said in answers:
                what = f"{name_of(questions[place])}, asked from {_THREADS} threads at once"
                same_answer(subject, said, alone[place], what)


def aassess_agrees_with_assess(subject: CoachSubject) -> None:
    """Awaited all at once, the answers are those of `assess`; a coach without `aassess` passes."""
    coach = subject.make_coach()
    if not hasattr(coach, "aassess"):
        return
    questions = subject.ordinary(coach)
    alone = [ask(coach, question) for question in questions]

    async def ask_all() -> list[Said]:
        return await asyncio.gather(*(_aask(coach, question) for question in questions))

    for question, said, expected in zip(questions, asyncio.run(ask_all()), alone, strict=True):
        same_answer(subject, said, expected, f"aassess of {name_of(question)}")


def aassess_leaves_the_event_loop_free(subject: CoachSubject) -> None:
    """While it is awaited, others go on; a coach without `aassess` passes."""
    coach = subject.make_coach()
    if not hasattr(coach, "aassess"):
        return
    question = subject.ordinary(coach)[0]
    held = []
    for number in range(_TRIES):
        anew = replace(question, context=replace(question.context, sample=number))
        held.append(asyncio.run(_longest_hold(coach, anew)))
        if held[-1] < _LONGEST_S:
            return
    raise AssertionError(
        f"aassess: expected to hold up the event loop for less than {_LONGEST_S} s, got "
        f"{min(held):.2f} s each time; await what it waits for, or leave aassess out, and threads "
        "are used"
    )


def its_ledger_is_exact(subject: CoachSubject) -> None:
    """What is paid is what the ledger says, to the last bit, in every way to ask."""
    ways: tuple[tuple[bool, Mapping[str, bool]], ...] = (
        (False, {}),
        (False, {"deferred": True}),
        (True, {"deferred": True, "hindsight": True}),
        (True, {}),
    )
    for awaited, switches in ways:
        coach = subject.make_coach()
        env = CoachWrapper(subject.env_fn(), coach, _PAYMENT, **switches)
        with closing(env):
            played = _play(env, awaited)
            how = f"{'astep' if awaited else 'step'} with {dict(switches)}"
            equal(len(env.ledger), len(env.turns), f"{how}: entries of the ledger")
            for entry in env.ledger:
                _check_entry(entry, f"{how}: action {entry.step + 1}, of {entry.agent}")
            for agent, rewards in played.rewards.items():
                told = sum(entry.reward for entry in env.ledger if entry.agent == agent)
                equal(sum(rewards), told, f"{how}: what {agent} was paid")


def _play(env: CoachWrapper, awaited: bool) -> Played:
    team = ScenarioTeam(env)
    if not awaited:
        return play(env, team, SEED)

    async def policy(agent: str, observation: Observation) -> str:
        return team(agent, observation)

    return asyncio.run(aplay(env, policy, SEED))


def _check_entry(entry: LedgerEntry, what: str) -> None:
    due = 0.0
    if entry.score is not None:
        outcome = 0.0 if entry.outcome is None else _PAYMENT.outcome(entry.outcome)
        due = _PAYMENT.process(entry.score) + outcome
    equal(entry.status, "unscored" if entry.score is None else "scored", f"{what}: status")
    equal(entry.reward, due, f"{what}: reward")
    record = entry_record(entry)
    try:
        stored = json.loads(json.dumps(record, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"{what}: expected an entry that JSON can hold, got {error}"
        ) from error
    equal(stored, record, f"{what}: the entry, stored as JSON")


async def _aask(coach: Any, question: Question) -> Said:
    what = f"aassess of {name_of(question)}"
    try:
        said = await coach.aassess(question.turn, question.context)
    except CoachError as error:
        said = error
    except Exception as error:
        raise AssertionError(
            f"{what}: expected an Assessment or a CoachError, got {error!r:.300}"
        ) from error
    return checked(said, what)


async def _longest_hold(coach: Any, question: Question) -> float:
    """Return for how many seconds at most nothing else went on while a coach was awaited."""
    longest = 0.0
    asking = asyncio.create_task(_aask(coach, question))
    while not asking.done():
        before = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - before)
    await asking
    return longest


CHECKS: tuple[Callable[[CoachSubject], None], ...] = (
    answers_from_several_threads_at_once,
    aassess_agrees_with_assess,
    aassess_leaves_the_event_loop_free,
    its_ledger_is_exact,
)

"""Ways to get an environment's answers to calls wrong, and which checks each of them fails."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from tiny import ENV_STATE, RichEnv, TinyEnv

# --- rewards ------------------------------------------------------------------------------------


class RewardsOfProgramsAreLost(TinyEnv):
    def step(self, action: str | None) -> None:
        super().step(action)
        if action is not None and "print" in action:
            self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)


class TheLedgerRounds(RichEnv):
    def entry(self, agent: str, reward: float) -> SimpleNamespace:
        return super().entry(agent, round(reward))


class TheLedgerStaysPending(RichEnv):
    def entry(self, agent: str, reward: float) -> SimpleNamespace:
        return SimpleNamespace(agent=agent, reward=reward, status="pending")


class TheLedgerIsNotTold(RichEnv):
    def last_info(self, agent: str) -> dict[str, Any]:
        info = super().last_info(agent)
        del info["ledger"]
        return info


class TheLedgerForgetsAnAction(RichEnv):
    def end(self) -> None:
        self.ledger.pop(0)
        super().end()


class TerminatesAndTruncates(TinyEnv):
    def end(self) -> None:
        super().end()
        self.truncations = dict.fromkeys(self.agents, True)


class OneIsToldWhy(TinyEnv):
    def last_info(self, agent: str) -> dict[str, Any]:
        return super().last_info(agent) if agent == "asker_0" else self.info(agent)


# --- errors -------------------------------------------------------------------------------------


class LongTextsAreErrors(TinyEnv):
    def check(self, agent: str, action: object) -> None:
        super().check(agent, action)
        if len(str(action)) > 100_000:
            raise ValueError(f"action of {agent} is too long")


class BytesAreText(TinyEnv):
    def check(self, agent: str, action: object) -> None:
        if not isinstance(action, bytes):
            super().check(agent, action)


class ErrorsNameNobody(TinyEnv):
    def check(self, agent: str, action: object) -> None:
        super().check("somebody", action)


class WrongActionsTakeATurn(TinyEnv):
    def check(self, agent: str, action: object) -> None:
        self.turn += 1
        super().check(agent, action)
        self.turn -= 1


class FinishedAgentsAreNotNamed(TinyEnv):
    def step(self, action: str | None) -> None:
        if self.agents and self.terminations[self.agent_selection]:
            self._was_dead_step(action)
        else:
            super().step(action)


class StepsAfterTheEndAreIgnored(TinyEnv):
    def step(self, action: str | None) -> None:
        if self.agents or self.rng is None:
            super().step(action)


class UnknownOptionsDraw(TinyEnv):
    def choose_task(self, rng: np.random.Generator, options: dict[str, Any]) -> int:
        if options.keys() - {"task", "split"}:
            rng.integers(9)
        return super().choose_task(rng, options)


class UnknownSplitsAreTrain(TinyEnv):
    def choose_task(self, rng: np.random.Generator, options: dict[str, Any]) -> int:
        if options.get("split") not in self.tasks:
            options = {name: value for name, value in options.items() if name != "split"}
        return super().choose_task(rng, options)


class RefusedResetsSeed(TinyEnv):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        super().reset(None, options)


# --- copies -------------------------------------------------------------------------------------


class DeepCopiesAreNew(TinyEnv):
    def __deepcopy__(self, memo: object) -> TinyEnv:
        return type(self)(self.render_mode)


class DeepCopiesAreThemselves(TinyEnv):
    def __deepcopy__(self, memo: object) -> TinyEnv:
        return self


class ShallowCopiesShare(TinyEnv):
    def __copy__(self) -> TinyEnv:
        other = type(self)(self.render_mode)
        vars(other).update(vars(self))
        return other


class PicklesAreNew(TinyEnv):
    def __reduce__(self) -> Any:
        return type(self), (self.render_mode,)


class PicklesFailByChance(TinyEnv):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")


class SnapshotsForgetTheStream(RichEnv):
    def snapshot(self) -> dict[str, Any]:
        return {name: value for name, value in super().snapshot().items() if name != "rng"}


class SnapshotsGoOn(RichEnv):
    def snapshot(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ENV_STATE}


class ForksShare(RichEnv):
    def fork(self) -> RichEnv:
        other = self.twin()
        other.conversations = self.conversations
        return other


# --- leaks --------------------------------------------------------------------------------------


class ClosesOnce(TinyEnv):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True


class KeepsItsConversations(TinyEnv):
    kept: ClassVar[list[Any]] = []

    def end(self) -> None:
        super().end()
        self.kept.append(self.conversations)


class KeepsItsFirstMessages(TinyEnv):
    kept: ClassVar[list[Any]] = []

    def begin(self) -> None:
        super().begin()
        self.kept.append(self.observe("asker_0"))


class KeepsADescriptor(TinyEnv):
    def begin(self) -> None:
        super().begin()
        os.open(os.devnull, os.O_RDONLY)


class KeepsAProcess(TinyEnv):
    kept: ClassVar[list[Any]] = []

    def begin(self) -> None:
        super().begin()
        self.kept.append(subprocess.Popen(["true"]))


class KeepsAThread(TinyEnv):
    def begin(self) -> None:
        super().begin()
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class KeepsATemporaryFile(TinyEnv):
    def begin(self) -> None:
        super().begin()
        with tempfile.NamedTemporaryFile(delete=False):
            pass


class WritesWhereItIs(TinyEnv):
    def begin(self) -> None:
        super().begin()
        with tempfile.NamedTemporaryFile(dir=".", delete=False):
            pass


BROKEN: Mapping[type[TinyEnv], Mapping[str, str]] = {
    RewardsOfProgramsAreLost: {
        "every_reward_is_paid_once": "what last() pays to asker_0 of its rewards: expected 1.0"
    },
    TheLedgerRounds: {"the_ledger_is_what_was_paid": "the sum of the ledger's rewards of asker_0"},
    TheLedgerStaysPending: {
        "the_ledger_is_what_was_paid": "pending entries at the dead turn of asker_0: expected []"
    },
    TheLedgerIsNotTold: {
        "the_ledger_is_what_was_paid": "the rewards in the last info of asker_0 under 'ledger'"
    },
    TheLedgerForgetsAnAction: {"the_ledger_is_what_was_paid": "ledger entries of each agent"},
    TerminatesAndTruncates: {
        "agents_end_once_and_in_one_way": "turn 4: (terminated, truncated) of asker_0, both at"
    },
    OneIsToldWhy: {
        "every_agent_is_told_why_it_ended": "under 'end_reason' of teller_0 instead of None"
    },
    LongTextsAreErrors: {"any_text_is_an_action": "the action 'xxxx"},
    BytesAreText: {"what_is_no_text_is_refused": "step(b'bytes'): expected TypeError or"},
    ErrorsNameNobody: {
        "what_is_no_text_is_refused": "step(None): expected 'asker_0' in the message, got action"
    },
    WrongActionsTakeATurn: {"what_is_no_text_is_refused": "an episode with refused actions: turn"},
    FinishedAgentsAreNotNamed: {
        "finished_agents_take_only_none": "at the dead turn of asker_0: expected 'asker_0' in the"
    },
    StepsAfterTheEndAreIgnored: {
        "steps_outside_an_episode_are_refused": "step('text') after the end: expected TypeError or"
    },
    UnknownOptionsDraw: {"unknown_options_are_ignored": "an episode with unknown options: turn 0"},
    UnknownSplitsAreTrain: {
        "wrong_options_are_refused": "reset(options={'split': 'no such split'}): expected TypeError"
    },
    RefusedResetsSeed: {"wrong_options_are_refused": "the next episode after refused resets"},
    DeepCopiesAreNew: {
        "deep_copies_go_on_alone_or_are_refused": "copy.deepcopy(env), the rest: number of turns"
    },
    DeepCopiesAreThemselves: {
        "deep_copies_go_on_alone_or_are_refused": "after copy.deepcopy(env) went on: expected (['"
    },
    ShallowCopiesShare: {"shallow_copies_go_on_alone_or_are_refused": "after copy.copy(env) went"},
    PicklesAreNew: {"pickles_go_on_alone_or_are_refused": "a pickle of env, the rest: number of"},
    PicklesFailByChance: {
        "pickles_go_on_alone_or_are_refused": "a TypeError that says what to do instead, got cannot"
    },
    SnapshotsForgetTheStream: {
        "snapshots_bring_every_turn_back": "the next episode after the snapshot of turn 0"
    },
    SnapshotsGoOn: {"snapshots_bring_every_turn_back": "from the snapshot of turn 0, in its env"},
    ForksShare: {"forks_do_not_see_each_other": "a fork of turn 0: turn 1"},
    ClosesOnce: {"closing_twice_is_fine": "RuntimeError('it is closed')"},
}
"""For each environment the checks that it fails, and what each of them says."""

LEAKS: Mapping[type[TinyEnv], str] = {
    KeepsItsConversations: "bytes of memory",
    KeepsItsFirstMessages: "bytes of memory",
    KeepsADescriptor: "open descriptors",
    KeepsAProcess: "processes",
    KeepsAThread: "threads",
    KeepsATemporaryFile: "temporary files",
    WritesWhereItIs: "files in the current folder",
}
"""For each environment that fails `nothing_piles_up`, what it says there is more of."""

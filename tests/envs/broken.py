"""Ways to get an environment wrong, and which checks each of them fails."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from tiny import ENV_STATE, RichEnv, TinyEnv

from mappa_envs.spaces import Messages, Utf8Text

# --- PettingZoo's tests -------------------------------------------------------------------------


class AgentsHaveNoNumbers(TinyEnv):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.possible_agents = ["asker", "teller"]
        self._spaces = {name.removesuffix("_0"): pair for name, pair in self._spaces.items()}


class SpacesShareAGenerator(TinyEnv):
    class Space(Utf8Text):
        shared = threading.local()

        def seed(self, seed: int | None = None) -> int:
            self.shared.generator = random.Random(seed)
            return super().seed(seed)

        def sample(self, mask: Any = None, probability: Any = None) -> str:
            return str(self.shared.generator.random())

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._spaces = {name: (self.Space(0), pair[1]) for name, pair in self._spaces.items()}


class RendersNothing(TinyEnv):
    def render(self) -> None:
        return None


# --- repeats ------------------------------------------------------------------------------------


class UnseededEpisodesDiffer(TinyEnv):
    unseeded = itertools.count()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.number = 0 if seed is not None else next(self.unseeded)
        super().reset(seed, options)

    def info(self, agent: str) -> dict[str, Any]:
        return {**super().info(agent), "number": self.number}


class InfosHoldAHash(TinyEnv):
    def info(self, agent: str) -> dict[str, Any]:
        return {**super().info(agent), "hash": hash(agent)}


class ActsInTheMainThread(TinyEnv):
    def act(self, agent: str, action: str) -> None:
        signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGUSR2))
        super().act(agent, action)


class ShareTheQuestion(TinyEnv):
    shared = threading.local()

    def begin(self) -> None:
        super().begin()
        self.shared.question = self.conversations["asker_0"][0]["content"]

    def hear(self, agent: str, action: str) -> None:
        super().hear(agent, f"{self.shared.question} {action}")


class BrokenOffEpisodesStay(TinyEnv):
    turn = 0

    def begin(self) -> None:
        left = self.conversations["asker_0"][1:] if self.agents and self.turn else []
        super().begin()
        self.conversations["asker_0"] += left


class InfosHoldAPath(TinyEnv):
    def info(self, agent: str) -> dict[str, Any]:
        return {**super().info(agent), "folder": os.path.abspath("workspace")}


class DrawsFromTheCaller(TinyEnv):
    def act(self, agent: str, action: str) -> None:
        random.random()
        super().act(agent, action)


class SeedsTheCaller(TinyEnv):
    def begin(self) -> None:
        np.random.seed(0)
        super().begin()


# --- looks --------------------------------------------------------------------------------------


class ObservingIsNoted(TinyEnv):
    def observe(self, agent: str) -> dict[str, Any]:
        self.infos[agent]["seen"] = True
        return super().observe(agent)


class RenderingIsCounted(TinyEnv):
    renderings = 0

    def render(self) -> str | None:
        self.renderings += 1
        text = super().render()
        return None if text is None else f"{self.renderings} {text}"


class ObservationsAreItsOwn(TinyEnv):
    def observe(self, agent: str) -> dict[str, Any]:
        return {"messages": tuple(self.conversations[agent])}


class InfosAreOneDictionary(TinyEnv):
    def begin(self) -> None:
        super().begin()
        info = {"task": {"number": self.task}}
        self.infos = dict.fromkeys(self.agents, info)


class InfosAreKept(TinyEnv):
    kept: ClassVar[dict[int, dict[str, int]]] = {}

    def info(self, agent: str) -> dict[str, Any]:
        if not hasattr(self, "own"):
            self.own: dict[str, dict[str, Any]] = {}
        return {"task": self.own.setdefault(f"{agent} {self.task}", {"number": self.task})}


class OthersSeeNothing(TinyEnv):
    def observe(self, agent: str) -> Any:
        return super().observe(agent) if agent == self.agent_selection else None


class SpacesAreMadeByReset(TinyEnv):
    def begin(self) -> None:
        super().begin()
        self._spaces = {name: (Utf8Text(), pair[1]) for name, pair in self._spaces.items()}


class SamplesAreLists(TinyEnv):
    class Space(Messages):
        def sample(self, mask: Any = None, probability: Any = None) -> Any:
            return list(super().sample())

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        space = spaces.Dict({"messages": self.Space()})
        self._spaces = {name: (pair[0], space) for name, pair in self._spaces.items()}


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
    AgentsHaveNoNumbers: {
        "pettingzoo_api_test_passes": "no avoidable warnings, got ['We recommend agents to be"
    },
    SpacesShareAGenerator: {
        "pettingzoo_seed_test_passes": "Incorrect actions",
    },
    RendersNothing: {"pettingzoo_render_test_passes": ""},
    UnseededEpisodesDiffer: {
        "equal_seeds_and_actions_give_equal_episodes": "an episode of seed None in a second env: "
        "turn 0['info']['number']: expected ",
        "wrong_options_are_refused": "the next episode after refused resets",
    },
    InfosHoldAHash: {
        "another_process_sees_the_same": "in another process: turn 0['info']['hash']: expected "
    },
    ActsInTheMainThread: {"threads_see_the_same": "signal only works in main thread"},
    ShareTheQuestion: {
        "environments_share_nothing": "an episode that takes turns with another environment's: "
    },
    BrokenOffEpisodesStay: {
        "nothing_is_left_of_earlier_episodes": "an episode after one broken off: turn 0"
    },
    InfosHoldAPath: {"infos_hold_no_paths": "the info of asker_0 holds the path /"},
    DrawsFromTheCaller: {
        "the_callers_random_state_is_untouched": "an episode: expected the state of random as"
    },
    SeedsTheCaller: {
        "the_callers_random_state_is_untouched": "reset(): expected the state of numpy.random as"
    },
    ObservingIsNoted: {"looking_changes_nothing": "infos after looking"},
    RenderingIsCounted: {"looking_changes_nothing": "render(), called twice: expected '"},
    ObservationsAreItsOwn: {
        "what_was_returned_is_the_callers": "observe('asker_0') after a change in an earlier one["
    },
    InfosAreOneDictionary: {
        "what_was_returned_is_the_callers": "infos of others after a change in that of asker_0["
    },
    InfosAreKept: {
        "what_was_returned_is_the_callers": "the next episode after changes in infos: turn 0["
    },
    OthersSeeNothing: {
        "observations_are_in_their_spaces": "observe('teller_0'): expected a member of Dict("
    },
    SpacesAreMadeByReset: {
        "spaces_are_always_the_same_objects": "Utf8Text() of asker_0 as the same object"
    },
    SamplesAreLists: {"samples_are_in_their_spaces": "as a member of Dict('messages': Messages())"},
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

"""Ways to get episodes wrong, or what is seen of them, and which checks each of them fails."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from tiny import TinyEnv

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
}
"""For each environment the checks that it fails, and what each of them says."""

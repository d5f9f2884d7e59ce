from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pettingzoo
import pytest
from relay import TEAM, Relay

from mappa_trainer.collect import Play, collect, plays, workers
from mappa_trainer.engines import Completion
from mappa_trainer.engines.hf import LMPolicy
from mappa_trainer.errors import TrainingError
from mappa_trainer.policy import Conversation
from mappa_trainer.testing import byte_tokenizer
from mappa_trainer.types import Episode, Generation, Sampling

SAMPLING = dict.fromkeys(TEAM, Sampling(1.0, 8))


@dataclass
class Scripted:
    """A policy that says `<name><n>` in its n-th action and keeps what it was asked."""

    name: str
    calls: list[list[Conversation]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    said: int = 0

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> list[Generation]:
        self.calls.append(list(conversations))
        self.seeds.extend(seeds)
        return [self._say() for _ in conversations]

    def _say(self) -> Generation:
        self.said += 1
        return Generation((1,), (2,), (-0.5,), f"{self.name}{self.said}", "stop")


@pytest.fixture
def team() -> dict[str, Scripted]:
    return {name: Scripted(name) for name in TEAM}


def entry(reward: float, status: str = "scored") -> dict[str, Any]:
    return {"status": status, "reward": reward}


def play(team: Mapping[str, Scripted], env: Relay) -> Episode:
    (episode,) = collect([env], [Play(0, 5, {"task": 0})], team, SAMPLING)
    return episode


def test_without_a_ledger_an_action_earns_what_last_paid_at_the_agents_next_turn(
    team: dict[str, Scripted],
) -> None:
    episode = play(team, Relay())
    found = [(t.agent, t.index, t.generation.text, t.reward) for t in episode.transitions]
    assert found == [
        ("ann", 0, "ann1", 1.0),
        ("bob", 0, "bob1", 2.0),
        ("cat", 0, "cat1", 3.0),
        ("ann", 1, "ann2", 4.0),
        ("bob", 1, "bob2", 5.0),
        ("cat", 1, "cat2", 6.0),
    ]
    assert episode.returns == {"ann": 5.0, "bob": 7.0, "cat": 9.0}
    assert all(t.ledger is None and t.turn is None for t in episode.transitions)


def test_policies_act_in_the_thread_that_collects() -> None:
    """A tokenizer must not be used by several threads at a time."""
    threads: set[int] = set()

    class Watched(Scripted):
        def act(self, *arguments: Any) -> list[Generation]:
            threads.add(threading.get_ident())
            return super().act(*arguments)

    team = {name: Watched(name) for name in TEAM}
    collect([Relay(), Relay()], [Play(i, 5, {"task": 0}) for i in range(4)], team, SAMPLING)
    assert threads == {threading.get_ident()}


def test_what_is_paid_at_the_end_lands_on_the_last_action_of_each_agent(
    team: dict[str, Scripted],
) -> None:
    episode = play(team, Relay(bonus=0.25))
    assert [t.reward for t in episode.transitions] == [1, 2, 3, 4.25, 5.25, 6.25]
    assert episode.returns == {"ann": 5.25, "bob": 7.25, "cat": 9.25}


def test_an_agent_that_acts_twice_in_a_row_is_paid_for_each_action(
    team: dict[str, Scripted],
) -> None:
    episode = play(team, Relay(orders=[("ann", "ann", "bob")]))
    assert [(t.agent, t.reward) for t in episode.transitions] == [
        ("ann", 1.0),
        ("ann", 2.0),
        ("bob", 3.0),
    ]


def test_the_ledger_decides_the_reward_of_each_action(team: dict[str, Scripted]) -> None:
    ledger = {
        "ann": [entry(0.1), entry(0.4)],
        "bob": [entry(0.2), entry(0.0)],
        "cat": [entry(0.3), entry(0.6)],
    }
    episode = play(team, Relay(ledger=ledger))
    assert [t.reward for t in episode.transitions] == [0.1, 0.2, 0.3, 0.4, 0.0, 0.6]
    assert [t.ledger for t in episode.transitions][:2] == [entry(0.1), entry(0.2)]
    assert episode.returns == {"ann": 5.0, "bob": 7.0, "cat": 9.0}


def test_an_action_the_ledger_calls_unscored_has_no_reward(team: dict[str, Scripted]) -> None:
    ledger = {
        "ann": [entry(0.0, "unscored"), entry(0.4)],
        "bob": [entry(0.2), entry(0.7, "masked")],
        "cat": [entry(0.3), entry(0.6)],
    }
    episode = play(team, Relay(ledger=ledger))
    assert [t.reward for t in episode.transitions] == [None, 0.2, 0.3, 0.4, None, 0.6]


@pytest.mark.parametrize("count", [1, 3])
def test_a_ledger_of_the_wrong_length_is_an_error(team: dict[str, Scripted], count: int) -> None:
    ledger = {name: [entry(0.1)] * (count if name == "bob" else 2) for name in TEAM}
    with pytest.raises(TrainingError, match=f"bob has {count} entries for 2 actions.*seed 5"):
        play(team, Relay(ledger=ledger))


def test_each_round_is_one_call_with_every_episode_that_waits(team: dict[str, Scripted]) -> None:
    env = [Relay(orders=[("ann", "ann", "bob"), ("ann", "bob"), ("bob", "cat")]) for _ in range(3)]
    todo = [Play(i, i, {"task": i}) for i in range(3)]
    words: list[str] = []
    collect(env, todo, team, SAMPLING, words.append)
    assert [len(call) for call in team["ann"].calls] == [2, 1]
    assert [len(call) for call in team["bob"].calls] == [3]
    assert [len(call) for call in team["cat"].calls] == [1]
    assert len(words) == 4
    asked = [conversation[0]["content"] for conversation in team["bob"].calls[0]]
    assert asked == ["task 0: ann1 ann3", "task 1: ann2", "task 2: "]


def test_episodes_come_back_in_order_however_many_run_at_a_time(
    team: dict[str, Scripted],
) -> None:
    orders = [("ann", "ann", "ann", "bob"), ("bob",)]
    todo = [Play(i, 10 + i, {"task": i}) for i in range(5)]
    episodes = collect([Relay(orders), Relay(orders)], todo, team, SAMPLING)
    assert [episode.index for episode in episodes] == [0, 1, 2, 3, 4]
    assert [episode.seed for episode in episodes] == [10, 11, 12, 13, 14]
    assert [episode.options["task"] for episode in episodes] == [0, 1, 2, 3, 4]
    assert [len(episode.transitions) for episode in episodes] == [4, 1, 4, 1, 4]


def test_the_environment_is_reset_with_the_plays_seed_and_options(
    team: dict[str, Scripted],
) -> None:
    env = Relay()
    collect([env], [Play(0, 77, {"split": "test", "task": 4})], team, SAMPLING)
    assert env.played == [{"seed": 77, "options": {"split": "test", "task": 4}}]


def test_every_action_has_a_seed_of_its_own_that_depends_on_its_place_alone() -> None:
    def seeds(todo: Sequence[Play], at_a_time: int) -> dict[str, set[int]]:
        team = {name: Scripted(name) for name in TEAM}
        collect([Relay() for _ in range(at_a_time)], todo, team, SAMPLING)
        return {name: set(policy.seeds) for name, policy in team.items()}

    todo = plays(0, "train", 0, 4, "train")
    found = seeds(todo, 4)
    assert len(set.union(*found.values())) == 4 * 6
    assert seeds(todo, 4) == found
    assert seeds(todo[::-1], 3) == found
    alone = seeds(todo[1:2], 1)
    assert all(alone[name] < found[name] for name in TEAM)


def test_plays_count_on_from_the_first_task() -> None:
    later = plays(3, "train", 2, 2, "train")
    assert [(play.index, play.options) for play in later] == [
        (0, {"split": "train", "task": 2}),
        (1, {"split": "train", "task": 3}),
    ]
    whole = plays(3, "train", 0, 4, "train")
    assert [play.seed for play in later] == [play.seed for play in whole[2:]]
    others = plays(3, "eval", 0, 4, "train") + plays(4, "train", 0, 4, "train")
    assert len({play.seed for play in whole + others}) == 12


def test_samples_of_a_task_follow_each_other_and_start_alike() -> None:
    first, second, third = (plays(3, "eval", 0, 2, "test", sample=n) for n in range(3))
    assert first == plays(3, "eval", 0, 2, "test")
    assert [play.index for play in [*first, *second, *third]] == [0, 1, 2, 3, 4, 5]
    assert [play.options for play in second] == [play.options for play in first]
    assert [play.seed for play in third] == [play.seed for play in first]
    assert [play.sample for play in third] == [2, 2]


def test_what_progress_raises_stops_collecting(team: dict[str, Scripted]) -> None:
    def stop(text: str) -> None:
        if text.startswith("cat"):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        collect([Relay()], [Play(0, 0, {"task": 0})], team, SAMPLING, stop)
    assert team["bob"].calls
    assert not team["cat"].calls


class ScriptedEngine:
    """An engine that samples given ids, one action after the other, and keeps its prompts."""

    def __init__(self, *sampled: tuple[int, ...]) -> None:
        self.sampled = list(sampled)
        self.prompts: list[tuple[int, ...]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        completions = []
        for prompt in prompts:
            ids = self.sampled[len(self.prompts)]
            self.prompts.append(tuple(prompt))
            completions.append(Completion(ids, (-1.0,) * len(ids), "stop"))
        return completions


def ids_of(text: str) -> tuple[int, ...]:
    tokenizer = byte_tokenizer()
    return (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)


@pytest.fixture(scope="module")
def tool_episode() -> tuple[Episode, dict[str, ScriptedEngine]]:
    """MathChat with a coder that runs a program, sees its output, and hands on."""
    import mappa_envs  # noqa: F401  registers the environment

    env = pettingzoo.make(
        "aec",
        "mappa/MathChat-v0",
        scenario={"roles": {"coder": {"max_turns": 2}}},
        coach={"kind": "rubric"},
    )
    broken = (255, 254)  # bytes that are no UTF-8: their text has other ids
    engines = {
        "solver_0": ScriptedEngine(broken + ids_of("6 * 7 = 42")),
        "coder_0": ScriptedEngine(ids_of("```python\nprint(6 * 7)\n```"), ids_of("It printed 42.")),
        "verifier_0": ScriptedEngine(ids_of(r"The answer is \boxed{42}.")),
    }
    policies = {name: LMPolicy(engine, byte_tokenizer()) for name, engine in engines.items()}
    todo = [Play(0, 1, {"split": "train", "task": 0})]
    sampling = dict.fromkeys(engines, Sampling(1.0, 64))
    (episode,) = collect([env], todo, policies, sampling)
    env.close()
    return episode, engines


def test_a_second_action_is_stored_with_the_whole_history_it_answered(
    tool_episode: tuple[Episode, dict[str, ScriptedEngine]],
) -> None:
    episode, engines = tool_episode
    seats = [transition.agent for transition in episode.transitions]
    assert seats == ["solver_0", "coder_0", "coder_0", "verifier_0"]
    first, second = episode.transitions[1:3]
    assert [message["role"] for message in second.messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert second.messages[:2] == first.messages
    assert second.messages[2]["content"] == "```python\nprint(6 * 7)\n```"
    assert second.messages[3]["content"].startswith("Output of your program:\n42")
    assert second.index == 1

    sent = engines["coder_0"].prompts
    assert [first.generation.prompt_ids, second.generation.prompt_ids] == sent
    text = byte_tokenizer().decode(sent[1])
    assert all(message["content"] in text for message in second.messages)
    assert len(sent[1]) > len(sent[0])


def test_token_ids_are_the_engines_and_never_made_from_the_text(
    tool_episode: tuple[Episode, dict[str, ScriptedEngine]],
) -> None:
    episode, engines = tool_episode
    tokenizer = byte_tokenizer()
    sampled = [ids for engine in engines.values() for ids in engine.sampled]
    stored = [transition.generation for transition in episode.transitions]
    assert [generation.token_ids for generation in stored] == sampled
    for generation in stored:
        assert generation.text == tokenizer.decode(generation.token_ids, skip_special_tokens=True)
    again = tokenizer.encode(stored[0].text, add_special_tokens=False)
    assert tuple(again) != stored[0].token_ids[:-1]


def test_mathchats_rewards_turns_and_outcome_are_kept(
    tool_episode: tuple[Episode, dict[str, ScriptedEngine]],
) -> None:
    episode, _ = tool_episode
    for transition in episode.transitions:
        assert transition.ledger is not None
        assert transition.turn is not None
        assert transition.reward == pytest.approx(transition.ledger["score"] / 10, abs=1e-9)
        assert transition.ledger["index"] == transition.turn["index"] == transition.index
    assert episode.transitions[1].turn["tool_results"][0]["output"] == "42"
    rewards = [t.reward for t in episode.transitions if t.agent == "coder_0"]
    assert sum(rewards) == episode.returns["coder_0"]
    assert episode.end_reasons == dict.fromkeys(episode.returns, "completed")
    assert episode.outcome is not None
    assert episode.task["id"] == "train-0"


def test_an_interrupt_does_not_wait_for_an_environment_that_hangs() -> None:
    released, interrupted = threading.Event(), threading.Event()

    def hang_and_interrupt() -> None:
        with suppress(KeyboardInterrupt), workers(1) as pool:
            pool.submit(released.wait, 30)
            raise KeyboardInterrupt
        interrupted.set()

    threading.Thread(target=hang_and_interrupt).start()
    assert interrupted.wait(10)
    released.set()

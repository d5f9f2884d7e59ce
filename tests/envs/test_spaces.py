from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from mappa_envs.actions import parse_action
from mappa_envs.spaces import Messages, Utf8Text, is_text, observation_space

USER = {"role": "user", "content": "Hi"}
LONE = "half \ud83d of a pair"

TEXTS = [
    "",
    "é",
    "e\u0301",
    "\U0001f600",
    "a\x00b",
    "日本語 и кириллица",
    "```python\nprint(1)\n```",
    "x" * 1_000_000,
]
NO_TEXTS = [LONE, "\udfff", b"bytes", None, 3, 1.5, ["a"], ("a",), np.array(["a"])]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:12]))
def test_any_text_that_utf8_can_encode_is_an_action(text: str) -> None:
    assert is_text(text)
    assert Utf8Text().contains(text)
    assert text in Utf8Text()


@pytest.mark.parametrize("value", NO_TEXTS, ids=lambda value: ascii(value)[:12])
def test_anything_else_is_no_action(value: object) -> None:
    assert not is_text(value)
    assert value not in Utf8Text()


@given(st.text(st.characters(exclude_categories=[])))
def test_text_is_what_utf8_can_encode(text: str) -> None:
    surrogates = any("\ud800" <= character <= "\udfff" for character in text)
    assert Utf8Text().contains(text) is not surrogates


def test_samples_are_short_printable_and_call_no_tool() -> None:
    space = Utf8Text(seed=0)
    samples = [space.sample() for _ in range(2000)]
    assert {len(sample) for sample in samples} == set(range(33))
    for sample in samples:
        assert sample in space
        assert sample.isascii()
        assert sample == "" or sample.isprintable()
        assert parse_action(sample).calls == ()


def test_samples_of_messages_are_messages() -> None:
    space = Messages(seed=0)
    samples = [space.sample() for _ in range(300)]
    assert all(sample in space for sample in samples)
    assert {len(sample) for sample in samples} == {0, 1, 2, 3}


@pytest.mark.parametrize("make", [Utf8Text, Messages, observation_space])
def test_a_seed_fixes_the_samples(make: Any) -> None:
    first, second, other = make(), make(), make()
    first.seed(7)
    second.seed(7)
    other.seed(8)
    drawn = [first.sample() for _ in range(20)]
    assert drawn == [second.sample() for _ in range(20)]
    assert drawn != [other.sample() for _ in range(20)]


def test_sampling_takes_a_mask_and_ignores_it() -> None:
    assert Utf8Text(seed=1).sample(None) == Utf8Text(seed=1).sample(mask="anything")


def test_sampling_leaves_the_global_random_state_alone() -> None:
    before = np.random.get_state()[1].tolist()
    Utf8Text(seed=0).sample()
    Messages(seed=0).sample()
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (USER,),
        ({"role": "system", "content": ""}, USER, {"role": "assistant", "content": "\U0001f600"}),
    ],
)
def test_conversations(messages: object) -> None:
    assert messages in Messages()


@pytest.mark.parametrize(
    "value",
    [
        [USER],
        USER,
        "Hi",
        None,
        ("Hi",),
        ({"role": "user"},),
        ({"content": "Hi"},),
        ({"role": "tool", "content": "Hi"},),
        ({"role": "user", "content": None},),
        ({"role": "user", "content": LONE},),
        ({"role": "user", "content": "Hi", "name": "a"},),
        ({"role": ["user"], "content": "Hi"},),
        (USER, 3),
    ],
)
def test_what_is_no_conversation(value: object) -> None:
    assert value not in Messages()


def test_the_observation_space_has_one_key() -> None:
    space = observation_space()
    assert isinstance(space, spaces.Dict)
    assert list(space) == ["messages"]
    assert {"messages": (USER,)} in space
    assert {"messages": [USER]} not in space
    assert {"messages": (USER,), "observation": "Hi"} not in space
    assert {"observation": (USER,)} not in space


@pytest.mark.parametrize("make", [Utf8Text, Messages])
def test_samples_survive_json(make: Any) -> None:
    space = make(seed=3)
    samples = [space.sample() for _ in range(10)]
    stored = json.loads(json.dumps(space.to_jsonable(samples)))
    assert space.from_jsonable(stored) == samples


def test_equality_and_form() -> None:
    assert Utf8Text(seed=1) == Utf8Text(seed=2)
    assert Messages(seed=1) == Messages(seed=2)
    assert Utf8Text() != Messages()
    assert observation_space() == observation_space()
    assert repr(observation_space()) == "Dict('messages': Messages())"
    assert not Utf8Text().is_np_flattenable
    assert not Messages().is_np_flattenable


@pytest.mark.parametrize("make", [Utf8Text, Messages])
def test_a_generator_can_be_the_source_of_samples(make: Any) -> None:
    drawn = [make(seed=np.random.default_rng(5)).sample() for _ in range(2)]
    assert drawn[0] == drawn[1]

"""The two spaces of every environment here: an agent's text, and the messages it sees.

The stock `Text` space rejects most of what a language model writes and walks over the characters
in Python; these accept any text that UTF-8 can encode, at the speed of the encoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces

from mappa_envs.types import Message

_SAMPLE_CHARACTERS = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789 ,.+-="))
_ROLES = ("system", "user", "assistant")


def is_text(value: object) -> TypeGuard[str]:
    """Whether `value` is a `str` without lone surrogates, so that UTF-8 can encode it."""
    if not isinstance(value, str):
        return False
    if value.isascii():  # which is known without looking
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Utf8Text(spaces.Space[str]):
    """Any text that UTF-8 can encode, the empty one included.

    Samples are short, printable and hold no tool call, so a random policy costs nothing.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw 0 to 32 characters; masks do not apply to text."""
        del mask, probability
        length = int(self.np_random.integers(0, 33))
        return "".join(self.np_random.choice(_SAMPLE_CHARACTERS, size=length))

    def contains(self, x: object) -> bool:
        """Whether `x` is UTF-8-encodable text."""
        return is_text(x)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no flat array form."""
        return False

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return the texts as they are."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[str]) -> list[str]:
        """Return the texts as they are."""
        return list(sample_n)

    def __repr__(self) -> str:
        return "Utf8Text()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utf8Text)

    __hash__ = None  # type: ignore[assignment]


class Messages(spaces.Space[tuple[Message, ...]]):
    """A tuple of `{"role", "content"}` messages, e.g. `({"role": "user", "content": "Hi"},)`."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        self._text = Utf8Text(seed)
        super().__init__(shape=None, dtype=None, seed=seed)

    def seed(self, seed: int | None = None) -> int:
        """Seed the space and the texts inside its samples."""
        self._text.seed(seed)
        return int(super().seed(seed))

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[Message, ...]:
        """Draw 0 to 3 messages."""
        del mask, probability
        count = int(self.np_random.integers(0, 4))
        roles = self.np_random.choice(_ROLES, size=count)
        return tuple(Message(role=str(role), content=self._text.sample()) for role in roles)

    def contains(self, x: object) -> bool:
        """Whether `x` is a tuple of well-formed messages."""
        return isinstance(x, tuple) and all(
            isinstance(message, dict)
            and set(message) == {"role", "content"}
            and message["role"] in _ROLES
            and is_text(message["content"])
            for message in x
        )

    @property
    def is_np_flattenable(self) -> bool:
        """Messages have no flat array form."""
        return False

    def to_jsonable(self, sample_n: Iterable[tuple[Message, ...]]) -> list[list[Message]]:
        """Return each sample as a list of messages."""
        return [list(sample) for sample in sample_n]

    def from_jsonable(self, sample_n: list[list[Message]]) -> list[tuple[Message, ...]]:
        """Return each list of messages as a sample."""
        return [tuple(sample) for sample in sample_n]

    def __repr__(self) -> str:
        return "Messages()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    __hash__ = None  # type: ignore[assignment]


def observation_space() -> spaces.Dict:
    """Return the observation space of one agent: `{"messages": Messages()}`."""
    return spaces.Dict({"messages": Messages()})

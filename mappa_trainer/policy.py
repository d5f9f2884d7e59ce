"""What acts: anything that turns conversations into actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mappa_trainer.types import Generation, Reply, Sampling

Conversation = Sequence[Mapping[str, str]]


class Policy(Protocol):
    """Acts for one seat; a batch of conversations in, one action for each out."""

    def act(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], sampling: Sampling
    ) -> Sequence[Generation | Reply]:
        """Sample one action per conversation.

        Row i depends on `conversations[i]`, `seeds[i]` and `sampling` alone, up to the rounding
        that other rows of a batch cause.
        """
        ...

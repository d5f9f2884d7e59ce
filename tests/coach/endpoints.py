"""What tests of the endpoint share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mappa_envs.coach.endpoint import Endpoint
from mappa_envs.coach.settings import Settings
from mappa_envs.errors import CoachError
from mappa_envs.testing.stub_endpoint import StubEndpoint
from mappa_envs.types import Message

VERDICT = '{"reasons": "It ran.", "score": 8}'


def messages(prompt: object = "Judge this.") -> tuple[Message, ...]:
    return ({"role": "user", "content": str(prompt)},)


def endpoint_at(stub: StubEndpoint, **settings: Any) -> Endpoint:
    return Endpoint(Settings("stub", base_url=stub.base_url, **settings))


def failure_of(endpoint: Endpoint, prompt: object = "Judge this.") -> CoachError:
    with pytest.raises(CoachError) as caught:
        endpoint.judge_blocking(messages(prompt), 10)
    return caught.value


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to hold within 10 s")

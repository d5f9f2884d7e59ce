from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("openai"):
        from mappa_envs.coach import calls

        monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.001)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

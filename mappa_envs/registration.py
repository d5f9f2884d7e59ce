"""Puts the environments under their names into PettingZoo's and Gymnasium's registries."""

from __future__ import annotations

from typing import Any

import gymnasium
import pettingzoo  # type: ignore[import-untyped]
from pettingzoo.env_registry.registration import (  # type: ignore[import-untyped]
    aec_registry,
    parallel_registry,
)

IDS: dict[str, str | None] = {
    "mappa/DSBench-v0": "dsbench",
    "mappa/MathChat-v0": "mathchat",
    "mappa/Scenario-v0": None,
}
"""The scenario that each id plays; None leaves it to the argument `folder`."""

_BUILDERS = "mappa_envs.registry"


def register() -> None:
    """Register every id for `pettingzoo.make` of both kinds and for `gymnasium.make`.

    What is registered already stays as it is, so calling this twice does nothing.
    """
    for name, folder in IDS.items():
        kwargs: dict[str, Any] = {} if folder is None else {"folder": folder}
        if name not in aec_registry:
            pettingzoo.register("aec", name, f"{_BUILDERS}:make_pipeline", kwargs=kwargs)
        if name not in parallel_registry:
            pettingzoo.register("parallel", name, f"{_BUILDERS}:make_parallel", kwargs=kwargs)
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{_BUILDERS}:make_seat", kwargs=kwargs)

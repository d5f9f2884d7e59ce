"""Makes the environment of a stored run again."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import pettingzoo  # type: ignore[import-untyped]
from pettingzoo import AECEnv
from pettingzoo.env_registry.exceptions import (  # type: ignore[import-untyped]
    PettingZooRegistryError,
)

from mappa_envs.audit.stored import StoredRun
from mappa_envs.errors import AuditError

Env: TypeAlias = AECEnv[str, Any, Any]


def env_id(run: StoredRun) -> str:
    """Return the id of the environment that a run was played in.

    Raises:
        AuditError: its `config.json` names none.
    """
    table = run.config.get("env")
    if not isinstance(table, Mapping) or not isinstance(table.get("id"), str):
        raise AuditError(
            f"{run.path}: its config.json names no env.id; an audit that judges or plays its "
            "episodes again needs it"
        )
    return str(table["id"])


@contextmanager
def remade_env(run: StoredRun, coach: Mapping[str, Any] | None = None) -> Iterator[Env]:
    """Yield an environment like that of a run; its sandbox is started when a program first runs.

    Args:
        run: Whose `config.json` says which environment, which scenario and which sandbox.
        coach: A `[coach]` table in place of the run's own; None for no coach.

    Raises:
        AuditError: the run does not say how its environment is made, or it cannot be.
        ScenarioError: a table is wrong.
    """
    name = env_id(run)
    tables = {key: table for key in ("scenario", "sandbox") if (table := run.config.get(key))}
    if coach is not None:
        tables["coach"] = dict(coach)
    try:
        importlib.import_module(str(run.config["env"].get("module", "mappa_envs")))
        env = pettingzoo.make("aec", name, **tables)
    except (ImportError, PettingZooRegistryError, TypeError) as error:
        raise AuditError(f"env.id {name!r} of {run.path} cannot be made: {error}") from None
    try:
        yield env
    finally:
        env.close()

"""The option `--coach`: a coach's table, from a file, a name, or key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.commands.set_option import toml_value
from mappa_envs.errors import CommandError


def coach_table(settings: Sequence[str]) -> dict[str, Any]:
    """Return the table that settings describe; the rubric's where there are none.

    Args:
        settings: Each is a TOML file with a table `[coach]`, e.g. a recipe; or a key of the table,
            e.g. `"temperature=0"`, whose value is a text where it is none of TOML; or a kind, e.g.
            `"rubric"`. Keys win over a file.

    Raises:
        CommandError: a key is there twice, or a file cannot be read or has no such table.
    """
    table: dict[str, Any] = {"kind": "rubric"}
    given: dict[str, Any] = {}
    for setting in settings:
        if setting.endswith(".toml") and "=" not in setting:
            table |= _read(Path(setting))
            continue
        key, value = _pair(setting)
        if key in given:
            raise CommandError(f"--coach names {key!r} twice; leave one out")
        given[key] = value
    return table | given


def _pair(setting: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in setting.partition("="))
    if not key:
        raise CommandError(f"--coach is {setting!r}; write KEY=VALUE, e.g. kind=rubric")
    return (key, toml_value(value)) if equals else ("kind", key)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"--coach: {path} cannot be read: {error}") from None
    coach = table.get("coach")
    if not isinstance(coach, dict):
        raise CommandError(f"--coach: {path} has no table [coach]; add one with a kind")
    return coach

"""The option `--set`: keys that are laid over a scenario's file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from mappa_envs.errors import CommandError


def scenario_tables(settings: Sequence[str]) -> dict[str, Any]:
    """Return the tables that settings describe, as `load_scenario` lays them over a file.

    Args:
        settings: Each is a key of the scenario and its value, e.g. `"tasks=/data/dsbench"` or
            `"tables.only=['titanic']"`; a value that is none of TOML is a text.

    Raises:
        CommandError: one is no such pair, names a key again, or a key in what is no table.
    """
    tables: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        *path, key = (part.strip() for part in name.split("."))
        if not equals or not all((*path, key)):
            raise CommandError(f"--set is {setting!r}; write KEY=VALUE, e.g. tasks=/data/dsbench")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise CommandError(f"--set {setting}: {part!r} is a value, not a table; give one")
        if key in table:
            raise CommandError(f"--set names {name.strip()!r} twice; leave one out")
        table[key] = toml_value(text.strip())
    return tables


def toml_value(text: str) -> Any:
    """Return a value of TOML, or the text where it is none, so that paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

"""What is wrong with a table, in this project's words: one line for each mistake.

Pydantic finds the mistakes; a user reads the key, the value and the fix.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mappa_envs.errors import did_you_mean

Place = tuple[int | str, ...]

_TOML_WORDS = {"dictionary": "table", "tuple": "list"}
_NOT_TOML = re.compile(r"valid (dictionary|tuple)( or instance of \w+)?")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def table_mistakes(error: ValidationError, model: type, table: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake, e.g. `"limits.timeout: unknown key; did you mean ...?"`.

    Args:
        error: What validating `table` as `model` raised.
        model: A pydantic model whose fields are values, models, dataclasses, or lists and
            dictionaries of them.
        table: What was validated.
    """
    places: dict[Place, list[ErrorDetails]] = {}
    for problem in error.errors():
        places.setdefault(_place(table, problem), []).append(problem)
    return [_line(place, problems, model) for place, problems in places.items()]


def known_keys(model: type, place: Place) -> list[str]:
    """Return the keys of the table that lies at `place`; none where the keys are free.

    >>> from mappa_envs.scenario import Scenario
    >>> known_keys(Scenario, ("roles", "coder", "files"))
    ['read', 'write']
    """
    kind: Any = model
    for part in place:
        kind = _inside(kind, part)
    return list(_fields(kind))


def _place(table: Mapping[str, Any], problem: ErrorDetails) -> Place:
    """Return the keys that lead to the mistake, without the names of types that were tried."""
    place: Place = problem["loc"]
    if problem["type"] == "missing":
        return place
    value: Any = table
    for depth, part in enumerate(place):
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return place[:depth]
    return place


def _line(place: Place, problems: list[ErrorDetails], model: type) -> str:
    where = ".".join(map(str, place))
    problem = problems[0]
    if problem["type"] in _UNKNOWN:
        return f"{where}: unknown key; {did_you_mean(place[-1], known_keys(model, place[:-1]))}"
    if problem["type"] == "missing":
        return f"{where}: is missing; add it"
    if problem["type"] == "too_short":
        return f"{where}: is empty; add at least one"
    if problem["type"] == "value_error":
        return f"{where}: {problem['ctx']['error']}"
    return f"{where}: is {problem['input']!r:.80}; it should {_wanted(problems)}"


def _wanted(problems: Iterable[ErrorDetails]) -> str:
    """Return what was wanted, e.g. `"be a valid number or string"`, in TOML's words."""
    said = [problem["msg"].partition(" should ")[2] for problem in problems]
    first, *others = (_NOT_TOML.sub(lambda found: _TOML_WORDS[found[1]], text) for text in said)
    return " or ".join([first, *(text.removeprefix("be a valid ") for text in others)])


def _inside(kind: Any, part: int | str) -> Any:
    """Return the type of what lies under one key of a table or one position of a list."""
    origin = typing.get_origin(kind)
    if origin in (dict, tuple):
        return typing.get_args(kind)[origin is dict]
    return _fields(kind).get(str(part))


def _fields(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return typing.get_type_hints(kind)
    return {}

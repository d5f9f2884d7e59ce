"""Reads the prompts of a scenario folder, and checks what prompts and scripts refer to.

It works on the tables as they stand in the file, so that a mistake in one key hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.errors import ScenarioError
from mappa_envs.prompts import (
    coach_template_problems,
    role_fields,
    template_problems,
    visible_fields,
)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ScenarioError: there is no such file, or it is no UTF-8 text.
    """
    if path.exists() and not path.is_file():
        raise ScenarioError(f"{path}: cannot be read: it is no regular file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None


def script_problems(
    role: str, texts: Sequence[object], max_turns: int, visits: Sequence[str]
) -> list[str]:
    """Return what is wrong with what a role says in a scripted play, e.g. `"1: unknown field ..."`.

    Each text is checked against what is there on the earliest visit on which it can be said.

    Args:
        role: The role's name.
        texts: Templates, action by action; what is no text is passed over.
        max_turns: Actions that the role may take on one visit.
        visits: The roles in the order in which they are visited.
    """
    seen, problems = _seen(role, visits), list[str]()
    for number, text in enumerate(texts):
        own = role_fields(role) if number else set()
        visit = min(number // max_turns, len(seen) - 1)
        if isinstance(text, str):
            lines = template_problems(text, own.union(seen[visit]))
            problems += [f"{number}: {line}" for line in lines]
    return problems


def _seen(role: str, visits: Sequence[str]) -> list[set[str]]:
    """Return the fields that are there on each visit of a role; all, if it is never visited."""
    seen = [visible_fields(visits, i) for i, visited in enumerate(visits) if visited == role]
    return seen or [visible_fields(visits, len(visits))]


class PromptFiles:
    """The prompts of one scenario folder.

    Args:
        folder: Where the files lie.
        place: How problems name the scenario file.

    `problems` holds what was found wrong so far, one line each, with the file and the key.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._place = place

    def read(self, name: str, role: Mapping[str, Any], visits: Sequence[str]) -> dict[str, str]:
        """Return the `prompt`, `again` and `coach` of one role as texts; check them and its script.

        Args:
            name: The role's name.
            role: The role's table, unchecked.
            visits: The roles in the order in which they are visited.
        """
        seen = _seen(name, visits)
        texts = {"prompt": self._template(f"roles.{name}.prompt", role.get("prompt"), seen[0])}
        texts["again"] = texts["prompt"]
        if role.get("again"):
            later = visible_fields(visits, len(visits)) if len(seen) == 1 else seen[1]
            texts["again"] = self._template(f"roles.{name}.again", role["again"], later)
        if role.get("coach"):
            key = f"roles.{name}.coach"
            texts["coach"] = self._checked(key, role["coach"], coach_template_problems)
        script, turns = role.get("script"), role.get("max_turns", 1)
        turns = turns if isinstance(turns, int) and turns > 0 else 1
        said = script if isinstance(script, list | tuple) else ()
        lines = script_problems(name, said, turns, visits)
        self.problems += [f"{self._place}: roles.{name}.script.{line}" for line in lines]
        return texts

    def _template(self, key: str, name: object, allowed: Collection[str]) -> str:
        return self._checked(key, name, lambda text: template_problems(text, allowed))

    def _checked(self, key: str, name: object, problems: Callable[[str], list[str]]) -> str:
        if not isinstance(name, str):
            return ""
        path = self._folder / name
        try:
            template = read_text(path).strip()
        except ScenarioError as error:
            self.problems.append(f"{self._place}: {key}: {error}")
            return ""
        if not template:
            self.problems.append(f"{path}: {key}: is empty; write what it is to say")
            return ""
        self.problems += [f"{path}: {key}: {line}" for line in problems(template)]
        return template

"""Reads the prompts of a scenario folder, and checks what prompts and scripts refer to.

It works on the tables as they stand in the file, so that a mistake in one key hides no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.errors import ScenarioError
from mappa_envs.prompts import role_fields, template_problems, visible_fields


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ScenarioError: there is no such file, or it is no UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None


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
        """Return the `prompt` and `again` of one role as texts; check them and its script.

        Args:
            name: The role's name.
            role: The role's table, unchecked.
            visits: The roles in the order in which they are visited.
        """
        never = len(visits)
        first, later, *_ = [*(i for i, v in enumerate(visits) if v == name), never, never]
        at_first = visible_fields(visits, first)
        prompt = self._template(f"roles.{name}.prompt", role.get("prompt"), at_first)
        again = prompt
        if role.get("again"):
            later_on = visible_fields(visits, later)
            again = self._template(f"roles.{name}.again", role["again"], later_on)
        script = role.get("script")
        for number, text in enumerate(script if isinstance(script, list | tuple) else ()):
            where = f"{self._place}: roles.{name}.script.{number}"
            self._check(where, text, at_first | role_fields(name))
        return {"prompt": prompt, "again": again}

    def _template(self, key: str, name: object, allowed: Collection[str]) -> str:
        if not isinstance(name, str):
            return ""
        path = self._folder / name
        try:
            template = read_text(path).strip()
        except ScenarioError as error:
            self.problems.append(f"{self._place}: {key}: {error}")
            return ""
        self._check(f"{path}: {key}", template, allowed)
        return template

    def _check(self, where: str, template: object, allowed: Collection[str]) -> None:
        if isinstance(template, str):
            self.problems += [f"{where}: {line}" for line in template_problems(template, allowed)]

"""Prompt templates: Markdown in which `{{ field }}` stands for what the role may see.

A template's fields *are* the declaration of what its role sees: `problem`, and for each earlier
role `<role>.message` (its last action) and `<role>.output` (its last tool output). Values are put
in once and never looked at again, so a value that contains braces stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from mappa_envs.errors import ScenarioError

_FIELD = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


def template_fields(template: str) -> tuple[str, ...]:
    """Return the fields of `template` in order of appearance."""
    return tuple(_FIELD.findall(template))


def check_template(template: str, allowed: Collection[str], where: str) -> None:
    """Refuse a template with a field outside `allowed`.

    Raises:
        ScenarioError: names the field, the template and the fields there are.
    """
    for field in template_fields(template):
        if field not in allowed:
            known = ", ".join(sorted(allowed))
            raise ScenarioError(f"{where}: unknown field {{{{ {field} }}}}; known here: {known}")


def render_template(template: str, values: Mapping[str, str]) -> str:
    """Return `template` with every field replaced by its value."""
    return _FIELD.sub(lambda match: values[match[1]], template)

"""Prompt templates: Markdown in which `{{ field }}` stands for what the role may see.

A template's fields *are* the declaration of what its role sees: `problem`, `files` (what is in the
workspace, and who wrote it), `max_turns` (the actions it may take on one visit), and for each role
that acted before `<role>.message` (its last action) and `<role>.output` (its last tool output).
Values are put in once and never looked at again, so a value that contains braces stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

COACH_PARTS = (
    *("action", "agent", "facts", "found", "problem", "role", "seen", "team", "tool_result"),
)
"""The fields of a role's `coach` template, beside `evidence`, which is all of them in order."""
_COACH_NEEDS = ("action", "facts")
_FIELD = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


def template_fields(template: str) -> tuple[str, ...]:
    """Return the fields of `template` in order of appearance."""
    return tuple(_FIELD.findall(template))


def visible_fields(visits: Sequence[str], visit: int) -> set[str]:
    """Return the prompt fields of a visit: those that all have, and what earlier visits left.

    Args:
        visits: The roles in the order in which they are visited.
        visit: A position in `visits`.
    """
    return {"problem", "files", "max_turns"}.union(*map(role_fields, visits[:visit]))


def role_fields(role: str) -> set[str]:
    """Return the prompt fields that show what a role did."""
    return {f"{role}.message", f"{role}.output"}


def template_problems(template: str, allowed: Collection[str]) -> list[str]:
    """Return what is wrong with a template: a line for each field outside `allowed`."""
    unknown = dict.fromkeys(field for field in template_fields(template) if field not in allowed)
    known = ", ".join(sorted(allowed))
    return [f"unknown field {{{{ {field} }}}}; known here: {known}" for field in unknown]


def coach_template_problems(template: str) -> list[str]:
    """Return what is wrong with a coach's template, a line for each mistake."""
    there = template_fields(template)
    needed = () if "evidence" in there else _COACH_NEEDS
    missing = [field for field in needed if field not in there]
    return [
        *template_problems(template, ("evidence", *COACH_PARTS)),
        *(f"lacks {{{{ {field} }}}}, which a coach must be shown; add it" for field in missing),
    ]


def render_template(template: str, values: Mapping[str, str]) -> str:
    """Return `template` with every field replaced by its value."""
    return _FIELD.sub(lambda match: values[match[1]], template)

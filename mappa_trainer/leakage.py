"""Whether problems that a team is evaluated on are among those that it trains on.

Problems are compared by their texts, however these are written: letters in either case, other
spaces, other characters for the same, LaTeX with or without dollar signs and spacing. A problem in
other words, or with other numbers, is another problem.

An environment tells the texts by a method `task_texts(split, count)`, which returns them by the ids
of the tasks: those of the whole split or, where it has no end, of its first `count` tasks. Without
the method nothing is compared.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

from mappa_trainer.collect import Env
from mappa_trainer.errors import LeakageError
from mappa_trainer.recipe import Recipe

Fingerprints = Mapping[str, str]
"""What tells the text of each task, by id."""

_EXAMPLES = 2
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_SPACING = re.compile(
    r"\\(?:q?quad|left|right|displaystyle|textstyle|thinspace|big[lr]?)(?![a-z])"
    r"|\\[,;:!>()\[\]$ ]|[$~\s]"
)


def normalised(text: str) -> str:
    r"""Return a problem's text without what may differ between two ways to write it.

    >>> normalised(r"Find $ x \, + 1$.") == normalised("find x+1.")
    True
    """
    return _SPACING.sub(
        "", _FRACTION.sub(r"\\frac", unicodedata.normalize("NFKC", text).casefold())
    )


def fingerprint(text: str) -> str:
    """Return SHA-256 of the normalised text, in hexadecimal."""
    return hashlib.sha256(normalised(text).encode(errors="surrogatepass")).hexdigest()


def fingerprints(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of each text."""
    return {name: fingerprint(text) for name, text in texts.items()}


def overlap(held_out: Fingerprints, trained: Fingerprints) -> dict[str, str]:
    """Return the held-out tasks whose text is trained on, each with a training task of it."""
    known = {text: name for name, text in trained.items()}
    return {name: known[text] for name, text in held_out.items() if text in known}


def fingerprints_of(env: Env, split: str, count: int) -> dict[str, str] | None:
    """Return those of the tasks of a split; None where the environment does not tell their texts.

    Args:
        env: Whose tasks they are.
        split: `"train"` or `"test"`.
        count: How many are played of a split without an end.
    """
    tell = getattr(env, "task_texts", None)
    return None if tell is None else fingerprints(tell(split, count))


def check_splits(recipe: Recipe, env: Env) -> tuple[dict[str, str] | None, str]:
    """Compare the test problems of a recipe with its training problems, before a run.

    Returns:
        The fingerprints of what will be trained on, None where they cannot be had; and what there
        is to say of an overlap that is allowed, empty where there is none.

    Raises:
        LeakageError: some are the same, and `eval.allow_overlap` is not set.
    """
    table = recipe.train
    trained = fingerprints_of(env, "train", table.iterations * (table.episodes // table.samples))
    held_out = fingerprints_of(env, "test", recipe.eval.problems)
    if trained is None or held_out is None:
        return None, ""
    fix = "leave them out of one of the two, or set eval.allow_overlap = true"
    return trained, checked(held_out, trained, recipe.eval.allow_overlap, fix)


def checked(held_out: Fingerprints, trained: Fingerprints, allowed: bool, fix: str) -> str:
    """Return what there is to say of an overlap that is allowed; empty where there is none.

    Args:
        held_out: What is played.
        trained: What was trained on, or will be.
        allowed: Whether an overlap is no error.
        fix: What the user can do about one.

    Raises:
        LeakageError: there is one that is not allowed.
    """
    found = overlap(held_out, trained)
    if not found:
        return ""
    pairs = [f"{name!r} is {other!r}" for name, other in list(found.items())[:_EXAMPLES]]
    more = ", ..." if len(found) > len(pairs) else ""
    said = (
        f"{len(found)} of the {len(held_out)} problems to be evaluated on are among the "
        f"{len(trained)} to train on: {', '.join(pairs)}{more}"
    )
    if not allowed:
        raise LeakageError(f"{said}; {fix}")
    return said

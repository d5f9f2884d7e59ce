"""Finding a function by its short name, or by import path when it is the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TypeVar, cast

from mappa_trainer.errors import RecipeError

F = TypeVar("F")


def find(name: str, known: Mapping[str, F], what: str) -> F:
    """Return `known[name]`, or import `package.module:function`.

    Args:
        name: A key of `known`, or an import path with one colon.
        known: The functions that ship with this package.
        what: What is looked for, for the error message, e.g. `"loss"`.

    Raises:
        RecipeError: The name is not known, or the path does not lead to a callable.
    """
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise RecipeError(
            f"{what} {name!r} is not known; use one of: {', '.join(sorted(known))}, "
            "or the import path of your own, package.module:function"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's raises
        raise RecipeError(
            f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}; "
            "write package.module:function and make sure the package is on the path"
        ) from error
    if not callable(found):
        raise RecipeError(f"{what} {name!r} is a {type(found).__name__}; it must be a function")
    return cast(F, found)

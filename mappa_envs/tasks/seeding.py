"""Random generators that a name decides, whatever the process or the order of calls."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(*key: object) -> np.random.Generator:
    """Return the generator of a key, e.g. `generator(7, "wine", "split")`.

    The same key gives the same draws in every process of one version of numpy; keys that differ
    give draws that have nothing to do with each other.
    """
    text = "/".join(f"{len(str(part))}:{part}" for part in key)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))

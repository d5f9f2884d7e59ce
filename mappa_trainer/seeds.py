"""Random streams: every draw of a run has a seed of its own, named by what it is for.

No generator lives from one iteration to the next, so a resumed run draws what an uninterrupted
one would have drawn.
"""

from __future__ import annotations

import hashlib


def derive_seed(*path: int | str) -> int:
    """Return the 64-bit seed of a path, e.g. `derive_seed(0, "act", 3, 17, "coder_0", 1)`.

    Equal in every process; different paths give unrelated seeds.
    """
    digest = hashlib.blake2b(repr(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

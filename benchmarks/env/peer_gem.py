r"""Plays GEM's guessing game for `peers.py`; runs where GEM is installed.

A game is three guesses by one player, who sees the answer to the last one only. An action must end
in a `\boxed{...}` number, and the hidden number is never guessed.
"""

import sys
import time

import gem

TURNS = 3
env = gem.make("game:GuessTheNumber-v0-easy", min_number=1, max_number=10**6, max_turns=TURNS)


def play(chars: int) -> tuple[float, int]:
    """Play one game; return its seconds and its turns."""
    actions = [rf"\boxed{{{number}}}".rjust(chars) for number in range(10, 10 + TURNS)]
    start = time.perf_counter()
    env.reset(seed=0)
    turns = 0
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(actions[turns])
        turns += 1
        over = terminated or truncated
    return time.perf_counter() - start, turns


for line in sys.stdin:
    print(*play(int(line)), flush=True)

"""Plays TextArena's three-player chat game for `peers.py`; runs where TextArena is installed.

A game is one round: each player chats once and then decides once, both in free text. As made, the
environment keeps the whole history of each player and cuts actions to 1,000 characters.
"""

import sys
import time

import textarena


def play(name: str, action: str) -> tuple[float, int]:
    """Play one game; return its seconds and its turns."""
    env = textarena.make(name, num_rounds=1)
    turns = 0
    start = time.perf_counter()
    env.reset(num_players=3, seed=0)
    done = False
    while not done:
        env.get_observation()
        done, _ = env.step(action=action)
        turns += 1
    env.close()
    return time.perf_counter() - start, turns


for line in sys.stdin:
    print(*play(sys.argv[1], ("The quick brown fox. " * 400)[: int(line)]), flush=True)

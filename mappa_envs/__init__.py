"""PettingZoo environments in which a team of language-model agents works on a task in turns.

Importing this package registers `mappa/MathChat-v0`, and `mappa/Scenario-v0` for any scenario
folder, with PettingZoo and Gymnasium:

    import gymnasium
    import pettingzoo
    import mappa_envs

    env = pettingzoo.make("aec", "mappa/MathChat-v0", coach={"kind": "rubric"})
    env = pettingzoo.make("parallel", "mappa/Scenario-v0", folder="my/scenario")
    env = gymnasium.make("mappa/MathChat-v0", seat="verifier_0")
"""

from __future__ import annotations

from mappa_envs.registration import register
from mappa_envs.registry import make_parallel, make_pipeline, make_seat
from mappa_envs.scenario import Scenario, load_scenario

__all__ = [
    "Scenario",
    "load_scenario",
    "make_parallel",
    "make_pipeline",
    "make_seat",
    "register",
]

register()

"""How long an iteration takes with more agents and devices, from how long its stages take.

A simulation of events, without a random number. In each episode every agent acts once, one after
the other: it generates, its tools run, its coach judges. When all episodes are over, every agent's
weights are trained, and given to what generates.

- A device generates so many actions at a time, its rows; an action takes as long on a full device
  as on an empty one. Lengths vary evenly around the mean.
- Agents are dealt out to devices. With more devices than agents an agent has several, which share
  its episodes and divide its training evenly.
- In lockstep one agent acts at a time, in all episodes, and the next when the last of them is done.
  This is how the trainer collects. Asynchronously each episode goes on as soon as it can.

For each stage there is the time that it would take alone; the longest is the bottleneck.

    python benchmarks/scaling.py --agents 3 --devices 1 8 --generation 40 --coach 3
    python benchmarks/scaling.py --run runs/mathchat-cpu    # with the times of a run
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from mappa_trainer.errors import MappaTrainerError
from mappa_trainer.runlog import RunDirectory

GOLDEN = (math.sqrt(5) - 1) / 2
STAGES = ("generation", "tool", "coach", "train", "sync")

Steps = Sequence[tuple[str, float]]
"""What one job does, in order: a resource and the seconds that it holds one place of it."""


@dataclass(frozen=True)
class Times:
    """Mean seconds of each stage."""

    generation: float = 40.0
    """Of one action, in one row."""
    tool: float = 2.0
    """Of one action."""
    coach: float = 3.0
    """Of one action."""
    train: float = 30.0
    """Of one agent in an iteration, on one device."""
    sync: float = 2.0
    """Of one agent in an iteration."""


@dataclass(frozen=True)
class Setup:
    """What there is of everything."""

    agents: int
    devices: int
    episodes: int = 64
    rows: int = 64
    """Actions that a device generates at a time."""
    workers: int = 16
    """Tools that run at a time."""
    calls: int = 16
    """Questions that the coach answers at a time."""
    spread: float = 0.5
    """How far lengths are from their mean at the most, as a share of it."""

    def devices_of(self, agent: int) -> list[int]:
        """Return the devices that an agent's weights are on."""
        if self.devices <= self.agents:
            return [agent % self.devices]
        return list(range(agent, self.devices, self.agents))

    @property
    def places(self) -> dict[str, int]:
        """How many jobs each resource serves at a time while episodes are played."""
        devices = {f"device {device}": self.rows for device in range(self.devices)}
        return {**devices, "tool": self.workers, "coach": self.calls}


@dataclass(frozen=True)
class Result:
    """An iteration."""

    seconds: float
    busy: float
    """The share of the time in which devices generate or train, a row being a share of one."""
    alone: dict[str, float]
    """For each stage, the seconds that it would take if nothing else took time."""

    @property
    def bottleneck(self) -> str:
        """The stage that takes longest alone."""
        return max(STAGES, key=lambda stage: self.alone[stage])

    def used(self, stage: str) -> float:
        """Return for how much of the time the fullest resource of a stage works at capacity."""
        return self.alone[stage] / self.seconds


def play(jobs: Sequence[Steps], places: dict[str, int]) -> float:
    """Serve jobs that all begin at 0, first come first served; return when the last one ends."""
    free, now = dict(places), 0.0
    waiting: dict[str, deque[int]] = defaultdict(deque)
    at = [0] * len(jobs)
    ends: list[tuple[float, int]] = []

    def begin(job: int) -> None:
        if at[job] == len(jobs[job]):
            return
        resource, seconds = jobs[job][at[job]]
        if not free[resource]:
            waiting[resource].append(job)
            return
        free[resource] -= 1
        heapq.heappush(ends, (now + seconds, job))

    for job in range(len(jobs)):
        begin(job)
    while ends:
        now, job = heapq.heappop(ends)
        resource = jobs[job][at[job]][0]
        free[resource] += 1
        at[job] += 1
        if waiting[resource]:
            begin(waiting[resource].popleft())
        begin(job)
    return now


def simulate(times: Times, setup: Setup, *, lockstep: bool) -> Result:
    """Play and train one iteration."""
    actions = [
        [_action(times, setup, episode, agent) for agent in range(setup.agents)]
        for episode in range(setup.episodes)
    ]
    if lockstep:
        collected = sum(
            play([episode[agent][:1] for episode in actions], setup.places)
            + play([episode[agent][1:] for episode in actions], setup.places)
            for agent in range(setup.agents)
        )
    else:
        whole = [[step for action in episode for step in action] for episode in actions]
        collected = play(whole, setup.places)
    load = _load(actions)
    training = {stage: _on_devices(times, setup, stage) for stage in ("train", "sync")}
    trained = max(map(sum, zip(*training.values(), strict=True)))
    generated = [load[f"device {device}"] / setup.rows for device in range(setup.devices)]
    seconds = collected + trained
    busy = (sum(generated) + sum(training["train"])) / (setup.devices * seconds)
    alone = {
        "generation": max(generated),
        "tool": load["tool"] / setup.workers,
        "coach": load["coach"] / setup.calls,
        **{stage: max(spent) for stage, spent in training.items()},
    }
    return Result(seconds, busy, alone)


def _action(times: Times, setup: Setup, episode: int, agent: int) -> list[tuple[str, float]]:
    devices = setup.devices_of(agent)
    device = devices[episode % len(devices)]
    place = (episode * GOLDEN + agent * GOLDEN**2) % 1  # evenly spread, without a random number
    length = 1 + setup.spread * (2 * place - 1)
    return [
        (f"device {device}", times.generation * length),
        ("tool", times.tool),
        ("coach", times.coach),
    ]


def _load(actions: Sequence[Sequence[Steps]]) -> dict[str, float]:
    load: dict[str, float] = defaultdict(float)
    for episode in actions:
        for action in episode:
            for resource, seconds in action:
                load[resource] += seconds
    return load


def _on_devices(times: Times, setup: Setup, stage: str) -> list[float]:
    """Return how long a stage of training holds each device, whose agents take turns."""
    spent = [0.0] * setup.devices
    for agent in range(setup.agents):
        devices = setup.devices_of(agent)
        for device in devices:
            spent[device] += times.train / len(devices) if stage == "train" else times.sync
    return spent


def measured(run: Path, times: Times) -> tuple[Times, int]:
    """Return a run's times, and how many episodes an iteration has.

    All that collecting takes is counted as generation, in rounds of one agent each. The first
    iteration is left out where there are others: it warms up.

    Raises:
        MappaTrainerError: there is no such run, or it has no times yet.
    """
    directory = RunDirectory.open(run)
    rows = [row for row in directory.metrics() if "seconds/collect" in row]
    if not rows:
        raise MappaTrainerError(f"{run}: no iteration has times yet; name a run that has trained")
    rows = rows[1:] or rows
    agents = len({name.partition("/")[0] for name in rows[0] if name.endswith("/actions")})

    def mean(*phases: str) -> float:
        return fmean(sum(row.get(f"seconds/{p}", 0.0) for p in phases) for row in rows) / agents

    found = replace(
        times,
        generation=mean("collect"),
        tool=0.0,
        coach=0.0,
        train=mean("logprobs", "update"),
        sync=mean("sync"),
    )
    return found, directory.recipe().train.episodes


def table(
    times: Times, setup: Setup, agents: Sequence[int], devices: Sequence[int]
) -> Iterator[str]:
    """Yield a table, a row for each number of agents and devices.

    Of each stage it has the share of the asynchronous time for which it works at capacity.
    """
    columns = ("agents", "devices", "lockstep", "asynchronous", "busy", *STAGES, "bottleneck")
    yield f"| {' | '.join(columns)} |"
    yield "|" + " ---: |" * (5 + len(STAGES)) + " --- |"
    for count in agents:
        for size in devices:
            own = replace(setup, agents=count, devices=size)
            one, other = (simulate(times, own, lockstep=lockstep) for lockstep in (True, False))
            cells = (
                f"{count} | {size} | {one.seconds:.0f} s | {other.seconds:.0f} s",
                f"{one.busy:.0%} → {other.busy:.0%}",
                *(f"{other.used(stage):.0%}" for stage in STAGES),
                other.bottleneck,
            )
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table for the times and sizes asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, help="take times from a run's metrics")
    parser.add_argument("--agents", type=_count, nargs="+", default=[1, 3, 8])
    parser.add_argument("--devices", type=_count, nargs="+", default=[1, 2, 8])
    for stage in STAGES:
        parser.add_argument(f"--{stage}", type=_seconds, help=f"default {getattr(Times, stage)} s")
    for name in ("episodes", "rows", "workers", "calls"):
        parser.add_argument(f"--{name}", type=_count, help=f"default {getattr(Setup, name)}")
    parser.add_argument("--spread", type=_share, help=f"default {Setup.spread}")
    arguments = vars(parser.parse_args())
    times, setup = Times(), Setup(1, 1)
    if arguments["run"]:
        try:
            times, episodes = measured(arguments["run"], times)
        except MappaTrainerError as error:
            sys.exit(f"error: {error}")
        setup = replace(setup, episodes=episodes)
    given = {name: value for name, value in arguments.items() if value is not None}
    times = replace(times, **{name: given[name] for name in STAGES if name in given})
    sizes = ("episodes", "rows", "workers", "calls", "spread")
    setup = replace(setup, **{name: given[name] for name in sizes if name in given})
    print("\n".join(table(times, setup, arguments["agents"], arguments["devices"])))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1; give a whole number from 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time; give seconds from 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; give a number from 0 to 1")
    return value


if __name__ == "__main__":
    main()

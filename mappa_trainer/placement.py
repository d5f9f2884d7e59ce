"""Where the weights of a team fit: on one device, as they are today, or divided among several.

- Today all weights of the team are on one device, where agents take turns.
- Sharded, each set of weights is on a group of n devices, among which parameters, gradients and
  moments are divided. Each device has a whole copy to generate with, its share of the rows, and
  micro-batches of its own. Several sets may take turns on one group. This is a plan: no learner of
  this version is sharded.

All sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from mappa_trainer.capacity import (
    FLOAT,
    Decoding,
    Passes,
    Shape,
    TrainingMemory,
    cache_memory,
    decoding_memory,
    gathered_casts,
    training_memory,
)
from mappa_trainer.engines.hf import MAX_BATCH
from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe
from mappa_trainer.recipe_tables import Tuning
from mappa_trainer.weights import plan_weights

USABLE = 0.9
"""Of a device's memory; the rest is for its libraries, and lost between tensors."""
MOST_DEVICES = 4096

_UNITS = {"gb": 10**9, "gib": 2**30}


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that are all alike, e.g. `Devices(8, 80_000_000_000)`."""

    count: int
    size: int
    """Bytes of each."""

    @property
    def usable(self) -> int:
        """Bytes of each that tensors may take."""
        return int(USABLE * self.size)


@dataclass(frozen=True, slots=True)
class SetMemory:
    """What one set of weights takes, in bytes, on a device of its own."""

    name: str
    agents: tuple[str, ...]
    tuning: Tuning
    training: TrainingMemory
    copy: int
    """The weights to generate with, where the base's copy does not carry them."""
    gathered: int
    """Of weights that are divided, what a device has of the others' shares at a time."""
    cache: int
    """Keys and values of one row, of its prompt and the new tokens."""
    row: int
    """What generating takes besides for one row."""

    def resident(self, n: int, *, offload: bool) -> float:
        """Return what is always there, on each of the n devices the set is divided among."""
        moments = 0 if offload else self.training.moments
        return (self.training.weights + moments) / n + self.copy

    def passing(self, n: int, *, offload: bool) -> float:
        """Return what is there besides while the set trains."""
        moments = self.training.moments if offload else 0
        casts = self.training.casts if n == 1 else self.gathered
        return (self.training.gradients + moments) / n + casts + self.training.activations


@dataclass(frozen=True, slots=True)
class TeamMemory:
    """What a team takes, in bytes."""

    sets: tuple[SetMemory, ...]
    base: int
    """The frozen base in float32: the reference of all, and what carries adapters."""
    base_copy: int
    """The copy of the base that generates for sets that are not trained in full."""
    offload: bool
    rows: int
    """Decoded together, of one set at a time."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sets of weights that take turns on the same devices; bytes are those of each device."""

    devices: tuple[int, ...]
    sets: tuple[str, ...]
    resident: float
    """What is always there."""
    training: float
    """With what the set that needs most needs to train."""
    generating: float
    """With what the set that needs most needs to generate."""

    @property
    def peak(self) -> float:
        """The most there is at a time."""
        return max(self.training, self.generating)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each set of weights is; `rows` are decoded on each device at a time."""

    divided: int
    """Devices that each set is divided among."""
    rows: int
    groups: tuple[Group, ...]
    usable: int

    @property
    def peak(self) -> float:
        """Bytes of the fullest device."""
        return max(group.peak for group in self.groups)

    @property
    def excess(self) -> float:
        """Bytes that the fullest device lacks; not above 0 where all fits."""
        return self.peak - self.usable

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return self.excess <= 0


def parse_devices(text: str) -> Devices:
    """Read devices such as `8x80GB`, `1x24GiB` or `80GB`.

    Raises:
        RecipeError: it is written otherwise, or there is none.
    """
    found = re.fullmatch(r"(?:(\d{1,9})[x×])?(\d{1,9}(?:\.\d{1,3})?)(gb|gib)", text.strip().lower())
    count, size = (int(found[1] or 1), float(found[2])) if found else (0, 0.0)
    if not found or not 1 <= count <= MOST_DEVICES or not size:
        raise RecipeError(
            f"--gpus is {text!r}; write the number of devices, at most {MOST_DEVICES:,}, and the "
            "memory of each, e.g. 8x80GB, 1x24GiB or 80GB"
        )
    return Devices(count, int(size * _UNITS[found[3]]))


def longest_prompt(recipe: Recipe, shape: Shape, agents: Sequence[str]) -> int:
    """Return the tokens that the longest action leaves of the token budget, or of the context."""
    most_new = max(recipe.sampling.limit(agent) for agent in agents)
    return max(1, min(recipe.model.token_budget, shape.context) - most_new)


def team_memory(recipe: Recipe, agents: Sequence[str], shape: Shape, prompt: int) -> TeamMemory:
    """Work out what a team takes.

    Args:
        recipe: Of the run.
        agents: The seats.
        shape: Of the model that all weights start from.
        prompt: Tokens of the longest prompt.

    Raises:
        RecipeError: see `plan_weights`.
    """
    table = recipe.model
    sampler = FLOAT if table.sampler_precision == "float32" else 2
    new = max(recipe.sampling.limit(agent) for agent in agents)
    passes = Passes(
        tokens=max(table.token_budget, prompt + new),
        element=FLOAT if table.precision == "float32" else 2,
        checkpointing=table.gradient_checkpointing,
    )
    sets = []
    for weights in plan_weights(recipe, agents):
        training = training_memory(shape, weights.tuning, table.lora, passes)
        own = max(recipe.sampling.limit(agent) for agent in weights.agents)
        decoding = Decoding(rows=1, prompt=prompt, new=own, element=sampler)
        sets.append(
            SetMemory(
                name=weights.name,
                agents=weights.agents,
                tuning=weights.tuning,
                training=training,
                copy=0 if sampler == FLOAT else sampler * training.trained,
                gathered=gathered_casts(shape, weights.tuning, passes),
                cache=cache_memory(shape, decoding),
                row=decoding_memory(shape, decoding),
            )
        )
    shared = sampler != FLOAT and any(one.tuning != "full" for one in sets)
    return TeamMemory(
        sets=tuple(sets),
        base=FLOAT * shape.parameters,
        base_copy=sampler * shape.parameters if shared else 0,
        offload=table.offload_optimizer,
        rows=min(max(recipe.train.episodes, recipe.eval.problems), MAX_BATCH),
    )


def place_today(team: TeamMemory, devices: Devices) -> Placement:
    """Put the whole team on the first device, as this version does."""
    group = _group(team, team.sets, (0,), team.rows)
    return Placement(1, team.rows, (group,), devices.usable)


def place_sharded(team: TeamMemory, devices: Devices) -> Placement:
    """Divide each set of weights among groups of devices.

    Of the sizes of groups on which all sets fit, one is taken on which most rows are decoded at
    a time, and of these the smallest. Where none fits, it is the one that lacks least.
    """
    placed = [_sharded(team, devices, n) for n in range(1, devices.count + 1)]
    fitting = [one for one in placed if one.fits]
    if not fitting:
        return min(placed, key=lambda one: (one.excess, one.divided))
    return max(fitting, key=lambda one: (min(team.rows, one.rows * one.divided), -one.divided))


def _sharded(team: TeamMemory, devices: Devices, n: int) -> Placement:
    """Deal the sets out to groups of n devices: the largest first, to the first that has room.

    Where none has room, a set goes to the group that is then fullest by the least. Rows are those
    that all groups have room for, at least one, and no more than the episodes give each device.
    """
    bins: list[list[SetMemory]] = [[] for _ in range(devices.count // n)]
    places = [tuple(range(i * n, (i + 1) * n)) for i in range(len(bins))]
    for one in sorted(team.sets, key=lambda s: _alone(team, s, n), reverse=True):
        peaks = [
            _group(team, [*held, one], at, 1).peak for held, at in zip(bins, places, strict=True)
        ]
        room = [i for i, peak in enumerate(peaks) if peak <= devices.usable]
        bins[room[0] if room else peaks.index(min(peaks))].append(one)
    used = [(held, at) for held, at in zip(bins, places, strict=True) if held]
    rows = min(_rows(team, held, at, devices) for held, at in used)
    groups = tuple(_group(team, held, at, rows) for held, at in used)
    return Placement(n, rows, groups, devices.usable)


def _alone(team: TeamMemory, one: SetMemory, n: int) -> float:
    return one.resident(n, offload=team.offload) + one.passing(n, offload=team.offload)


def _rows(
    team: TeamMemory, held: Sequence[SetMemory], at: tuple[int, ...], devices: Devices
) -> int:
    free = devices.usable - _group(team, held, at, 0).resident
    most = max(one.cache + one.row for one in held)
    return min(ceil(team.rows / len(at)), max(1, int(free // most)))


def _group(team: TeamMemory, held: Sequence[SetMemory], at: tuple[int, ...], rows: int) -> Group:
    n = len(at)
    resident = team.base / n + sum(one.resident(n, offload=team.offload) for one in held)
    if any(one.tuning != "full" for one in held):
        resident += team.base_copy
    passing = max(one.passing(n, offload=team.offload) for one in held)
    generating = max((one.cache + one.row) * rows for one in held)
    names = tuple(one.name for one in held)
    return Group(at, names, resident, resident + passing, resident + generating)

"""Math problems without end, made from a seed, with integer answers found by counting.

Item i of a split is a pure function of (seed, split, i): every choice is drawn from SHA-256, so it
is the same in any process and with any library version. The text itself decides the split it
belongs to (`split_of`), so train and test never share a problem, whatever their seeds.

Level 1 asks for one step with small numbers, level 2 for two steps or one school notion, level 3
for a number from 0 to 999 that is best computed with a program.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mappa_envs.errors import TaskError
from mappa_envs.tasks.source import check_position, no_such
from mappa_envs.types import Split, Task

_T = TypeVar("_T")
_ID = re.compile(r"(train|test)-(0|[1-9]\d{0,17})")
_NAMES = ("Ada", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Leo")
_THINGS = ("apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stickers")


class Draws:
    """A stream of choices fixed by a key, e.g. `Draws("0/train/17/0").between(1, 6)`."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = itertools.count()

    def between(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        digest = hashlib.sha256(f"{self._key}/{next(self._count)}".encode()).digest()
        return low + int.from_bytes(digest[:8], "big") % (high - low + 1)

    def pick(self, options: Sequence[_T]) -> _T:
        """Return one of the options."""
        return options[self.between(0, len(options) - 1)]


@dataclass(frozen=True, slots=True)
class Problem:
    """A text and its answer, e.g. `Problem("What is 2 plus 3?", 5)`."""

    prompt: str
    answer: int


@dataclass(frozen=True, slots=True)
class Family:
    """Problems of one kind, e.g. `Family(1, make_sum)`."""

    level: int
    make: Callable[[Draws], Problem]


def split_of(prompt: str) -> Split:
    """Return the split a text belongs to: one in five is a test problem."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[0] % 5 == 0 else "train"


class GeneratedMath:
    """An unbounded `TaskSource` of generated problems.

    >>> GeneratedMath(families=["gcd"], levels=[2]).get("train", 0).metadata
    {'family': 'gcd', 'level': 2}

    Raises:
        TaskError: a family or level is unknown, or a named family is of none of the levels.
    """

    def __init__(
        self,
        seed: int = 0,
        families: Sequence[str] | None = None,
        levels: Sequence[int] = (1,),
    ) -> None:
        self._seed = seed
        self._families = _chosen(families, levels)

    def size(self, split: Split) -> None:
        """Return None: there is always another problem."""
        check_position(split)

    def get(self, split: Split, index: int) -> Task:
        """Return item `index`, made anew until its text belongs to the split."""
        check_position(split, index)
        for attempt in itertools.count():
            draws = Draws(f"{self._seed}/{split}/{index}/{attempt}")
            name = draws.pick(self._families)
            problem = FAMILIES[name].make(draws)
            if split_of(problem.prompt) == split:
                break
        kind = {"family": name, "level": FAMILIES[name].level}
        return Task(f"{split}-{index}", problem.prompt, (str(problem.answer),), kind, split)

    def find(self, task_id: str) -> Task:
        """Return the task of an id such as `train-17`."""
        match = _ID.fullmatch(task_id)
        if match is None:
            raise TaskError(
                f"no generated task is called {task_id!r}; ids are a split and an index, "
                "e.g. 'train-17' or 'test-0'"
            )
        return self.get("train" if match[1] == "train" else "test", int(match[2]))


def make_sum(draws: Draws) -> Problem:
    """Ask for a sum of two numbers up to 99."""
    a, b = draws.between(1, 99), draws.between(1, 99)
    form = draws.pick(("What is {} plus {}?", "What is {} + {}?", "What is the sum of {} and {}?"))
    return Problem(form.format(a, b), len([*range(a), *range(b)]))


def make_difference(draws: Draws) -> Problem:
    """Ask for a difference of two numbers up to 99, at least 0."""
    b, a = sorted((draws.between(1, 99), draws.between(1, 99)))
    form = draws.pick(("What is {} minus {}?", "What is {} - {}?"))
    return Problem(form.format(a, b), len(range(b, a)))


def make_product(draws: Draws) -> Problem:
    """Ask for a product of numbers up to 12 and 20."""
    a, b = draws.between(2, 12), draws.between(2, 20)
    form = draws.pick(("What is {} times {}?", "What is {} * {}?", "What is {} multiplied by {}?"))
    return Problem(form.format(a, b), sum(a for _ in range(b)))


def make_remainder(draws: Draws) -> Problem:
    """Ask for a remainder by a divisor up to 12."""
    a, b = draws.between(10, 99), draws.between(2, 12)
    left = a
    while left >= b:
        left -= b
    return Problem(f"What is the remainder when {a} is divided by {b}?", left)


def make_story(draws: Draws) -> Problem:
    """Ask for a sum, a difference or a product in a one-step story."""
    name, things = draws.pick(_NAMES), draws.pick(_THINGS)
    kind = draws.pick(("gain", "loss", "groups"))
    if kind == "groups":
        a, b = draws.between(2, 9), draws.between(2, 12)
        prompt = f"{name} has {a} boxes with {b} {things} in each. How many {things} is that?"
        return Problem(prompt, sum(b for _ in range(a)))
    b, a = sorted((draws.between(2, 50), draws.between(2, 50)))
    now = f"How many {things} does {name} have now?"
    if kind == "gain":
        prompt = f"{name} has {a} {things} and gets {b} more. {now}"
        return Problem(prompt, len([*range(a), *range(b)]))
    return Problem(f"{name} has {a} {things} and gives away {b}. {now}", len(range(b, a)))


def make_two_steps(draws: Draws) -> Problem:
    """Ask for a product and then a sum or a difference."""
    a, b, c = draws.between(3, 20), draws.between(3, 20), draws.between(2, 99)
    product = sum(a for _ in range(b))
    if draws.pick((True, False)):
        return Problem(f"Multiply {a} by {b}, then add {c}. What is the result?", product + c)
    return Problem(f"Multiply {a} by {b}, then subtract {c}. What is the result?", product - c)


def make_gcd(draws: Draws) -> Problem:
    """Ask for a greatest common divisor that is at least 2."""
    common = draws.between(2, 15)
    a, b = common * draws.between(2, 12), common * draws.between(2, 12)
    divisors = [d for d in range(1, min(a, b) + 1) if a % d == b % d == 0]
    return Problem(f"What is the greatest common divisor of {a} and {b}?", divisors[-1])


def make_lcm(draws: Draws) -> Problem:
    """Ask for a least common multiple."""
    a, b = draws.between(4, 40), draws.between(4, 40)
    multiple = next(m for m in range(a, a * b + 1, a) if m % b == 0)
    return Problem(f"What is the least common multiple of {a} and {b}?", multiple)


def make_digit_sum(draws: Draws) -> Problem:
    """Ask for the sum of the digits of a number with four to six digits."""
    number = draws.between(1000, 999_999)
    left, total = number, 0
    while left:
        left, digit = divmod(left, 10)
        total += digit
    return Problem(f"What is the sum of the digits of {number}?", total)


def make_multiples(draws: Draws) -> Problem:
    """Ask how many multiples lie in a range."""
    divisor, low = draws.between(3, 15), draws.between(1, 100)
    high = low + draws.between(20, 200)
    count = sum(1 for number in range(low, high + 1) if number % divisor == 0)
    return Problem(f"How many multiples of {divisor} are there from {low} to {high}?", count)


def make_sum_to(draws: Draws) -> Problem:
    """Ask for the sum of a run of whole numbers."""
    low, high = draws.between(1, 20), draws.between(21, 80)
    prompt = f"What is the sum of all whole numbers from {low} to {high}?"
    return Problem(prompt, sum(range(low, high + 1)))


def make_power_remainder(draws: Draws) -> Problem:
    """Ask for the remainder of a high power."""
    base, power, modulus = draws.between(2, 50), draws.between(20, 400), draws.between(11, 999)
    value = 1
    for _ in range(power):
        value = value * base % modulus
    return Problem(f"What is the remainder when {base}^{power} is divided by {modulus}?", value)


def make_recurrence(draws: Draws) -> Problem:
    """Ask for the remainder of a term of a linear recurrence."""
    p, q, x, y = (draws.between(1, 9) for _ in range(4))
    n, modulus = draws.between(15, 60), draws.between(50, 999)
    older, newer = x, y
    for _ in range(n - 2):
        older, newer = newer, p * newer + q * older
    prompt = (
        f"A sequence has a_1 = {x}, a_2 = {y} and a_n = {p} a_(n-1) + {q} a_(n-2) for n > 2. "
        f"What is the remainder when a_{n} is divided by {modulus}?"
    )
    return Problem(prompt, newer % modulus)


def make_lattice_points(draws: Draws) -> Problem:
    """Ask how many points with integer coordinates lie in an ellipse around the origin."""
    a, b, bound = draws.between(1, 4), draws.between(1, 4), draws.between(20, 300)
    side = range(-17, 18)  # 17 * 17 = 289 and 18 * 18 = 324 > 300
    count = sum(1 for x in side for y in side if a * x * x + b * y * y <= bound)
    prompt = f"How many pairs of integers (x, y) satisfy {a}x^2 + {b}y^2 <= {bound}?"
    return Problem(prompt, count)


def make_congruences(draws: Draws) -> Problem:
    """Ask for the smallest positive integer with three given remainders."""
    moduli = draws.pick(((5, 7, 8), (7, 9, 11), (5, 9, 16), (4, 7, 27), (8, 11, 9), (3, 16, 19)))
    hidden = draws.between(1, 999)
    rest = [hidden % modulus for modulus in moduli]
    found = next(
        number for number in itertools.count(1) if [number % modulus for modulus in moduli] == rest
    )
    prompt = (
        "What is the smallest positive integer that leaves remainders "
        f"{rest[0]}, {rest[1]} and {rest[2]} when divided by "
        f"{moduli[0]}, {moduli[1]} and {moduli[2]}?"
    )
    return Problem(prompt, found)


def make_digit_count(draws: Draws) -> Problem:
    """Ask how many integers have a given sum of digits."""
    bound, total = draws.between(200, 9999), draws.between(3, 24)
    count = _digit_sums().count(total, 1, bound + 1)
    prompt = f"How many positive integers up to {bound} have digits that add up to {total}?"
    return Problem(prompt, count)


@functools.cache
def _digit_sums() -> bytes:
    """Return the sums of the digits of 0, 1, 2, ... 9999."""
    return bytes(map(sum, itertools.product(range(10), repeat=4)))


def make_divisible_by_any(draws: Draws) -> Problem:
    """Ask how many integers are divisible by at least one of three numbers."""
    bound = draws.between(200, 999)
    a, b, c = (draws.between(low, low + 4) for low in (4, 9, 14))
    count = sum(1 for n in range(1, bound + 1) if n % a == 0 or n % b == 0 or n % c == 0)
    prompt = (
        f"How many positive integers up to {bound} are divisible by at least one of "
        f"{a}, {b} and {c}?"
    )
    return Problem(prompt, count)


FAMILIES: dict[str, Family] = {
    "sum": Family(1, make_sum),
    "difference": Family(1, make_difference),
    "product": Family(1, make_product),
    "remainder": Family(1, make_remainder),
    "story": Family(1, make_story),
    "two_steps": Family(2, make_two_steps),
    "gcd": Family(2, make_gcd),
    "lcm": Family(2, make_lcm),
    "digit_sum": Family(2, make_digit_sum),
    "multiples": Family(2, make_multiples),
    "sum_to": Family(2, make_sum_to),
    "power_remainder": Family(3, make_power_remainder),
    "recurrence": Family(3, make_recurrence),
    "lattice_points": Family(3, make_lattice_points),
    "congruences": Family(3, make_congruences),
    "digit_count": Family(3, make_digit_count),
    "divisible_by_any": Family(3, make_divisible_by_any),
}


def _chosen(families: Sequence[str] | None, levels: Sequence[int]) -> tuple[str, ...]:
    known = sorted({family.level for family in FAMILIES.values()})
    if not levels or not set(levels) <= set(known):
        raise TaskError(f"levels are {list(levels)!r}; give at least one of {known}")
    if families is None:
        return tuple(name for name, family in FAMILIES.items() if family.level in levels)
    if not families:
        raise TaskError("families is empty; name at least one, or give None for all of the levels")
    for name in families:
        if name not in FAMILIES:
            raise no_such("family of problems", name, FAMILIES)
        if FAMILIES[name].level not in levels:
            raise TaskError(
                f"family {name!r} is of level {FAMILIES[name].level}, and levels are "
                f"{list(levels)!r}; add the level or leave the family out"
            )
    return tuple(families)

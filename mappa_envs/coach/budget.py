"""What calls of models cost, and a limit that they keep to."""

from __future__ import annotations

import asyncio
import math
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mappa_envs.errors import CoachError, ScenarioError

SHIPPED: Final = Path(__file__).with_name("prices.toml")
_DIGITS: Final = 12
"""Sums are compared to a millionth of a millionth of a dollar, which absorbs their rounding."""
_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """What a model costs, in US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: _Rate
    output: _Rate
    as_of: str = ""
    """When that was so."""
    source: str = ""
    """Who says so."""

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """Return what a call costs, in US dollars."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


_TABLE: Final = TypeAdapter(dict[str, Price])


def load_prices(path: Path | str | None = None) -> dict[str, Price]:
    """Return the shipped prices by the models' names, with those of a file laid over them.

    Raises:
        ScenarioError: the file cannot be read, or an entry is wrong; the message names its place.
    """
    shipped = _read(SHIPPED)
    return shipped if path is None else {**shipped, **_read(Path(path))}


def _read(path: Path) -> dict[str, Price]:
    try:
        return _TABLE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}); check prices") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: is no TOML ({error}); correct it") from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ScenarioError(
            f"{path}: {place}: {first['msg']} (it is {first['input']!r:.60}); a model's entry "
            'looks like: ["gpt-4.1-mini"] input = 0.40 output = 1.60'
        ) from None


class Budget:
    """A limit in US dollars that calls keep to, also those that run at the same time.

    A call reserves the most it may cost before it begins. It is refused when that does not fit
    beside what was spent, and waits while it would fit but for what others have reserved. So the
    limit is passed by no more than a call may cost beyond its own estimate. What a server charges
    for a request that it does not answer cannot be known and is left out.

    Used on one event loop.
    """

    def __init__(self, limit: float | None = None, spent: float = 0.0) -> None:
        self.limit = math.inf if limit is None else limit
        self.spent = spent
        self._reserved = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def reserved(self, most: float) -> AsyncIterator[Callable[[float], None]]:
        """Reserve `most` for the block, which calls what it is given with what was spent.

        Raises:
            CoachError: `most` is beyond the budget; with `failure` `"over_budget"`.
        """
        await self._room_for(most)
        self._reserved += most
        try:
            yield self._spend
        finally:
            self._reserved -= most
            self._wake()

    async def _room_for(self, most: float) -> None:
        while self._passes(self.spent + self._reserved + most):
            if self._passes(self.spent + most):
                raise CoachError(
                    f"the budget of {self.limit:g} USD is used up: {self.spent:.6g} USD are spent "
                    f"and the next call may cost {most:.6g} USD; raise budget_usd",
                    failure="over_budget",
                )
            await self._changed.wait()

    def _passes(self, usd: float) -> bool:
        return round(usd, _DIGITS) > self.limit

    def _spend(self, usd: float) -> None:
        self.spent += usd

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

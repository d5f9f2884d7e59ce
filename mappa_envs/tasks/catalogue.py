"""Which tables there are to make tasks of, as data: one entry of a TOML file a task."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.grading import TaskType
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.tasks.source import no_such

_T = TypeVar("_T")
EXTRA = "mappa[datasets]"
"""What installs every package that a shipped table is in."""
Names = Annotated[tuple[str, ...], Field(strict=False)]


class TableSpec(BaseModel):
    """One table and what is to be predicted from it; `scenarios/dsbench/tables.toml` has examples.

    Exactly one of `file` and `loader` says where the table is, and at most one of `keep` and `drop`
    which of its columns are used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    package: str
    """The distribution that has to be installed, e.g. `"scikit-lego"`."""
    module: str
    """The package of it that holds the table, e.g. `"sklego"`; it is not imported for a file."""
    file: str = ""
    """The table's place in the module's folder: CSV, also compressed, or JSON records."""
    loader: str = ""
    """The name of a loader of `sklearn.datasets`, e.g. `"load_wine"`."""
    task_type: TaskType
    metric: str
    targets: Names = Field(min_length=1)
    labels: Names = ()
    """The labels in order; sorted as they are found when empty."""
    keep: Names = ()
    drop: Names = ()
    train_only: Names = ()
    """Columns that give the answer away; `test.csv` does not have them."""
    dates: Names = ()
    corruptions: Names = ()
    source: str
    licence: str
    """Of the table, not of the package around it."""
    about: str
    columns: Mapping[str, str] = {}
    """What the columns hold, for those whose names do not say it."""

    @model_validator(mode="after")
    def _is_whole(self) -> TableSpec:
        if bool(self.file) == bool(self.loader):
            raise ValueError("give one of file and loader")
        if self.keep and self.drop:
            raise ValueError("give one of keep and drop")
        if self.metric not in METRICS:
            raise ValueError(str(no_such("metric", self.metric, METRICS)))
        return self


_ENTRIES = TypeAdapter(dict[str, TableSpec])


def load_catalogue(path: Path) -> dict[str, TableSpec]:
    """Read the entries of a file such as `scenarios/dsbench/tables.toml`, by task id.

    Raises:
        TaskError: the file cannot be read, or an entry is wrong; the message names its place.
    """
    return checked_entries(path, _ENTRIES)


def checked_entries(path: Path, entries: TypeAdapter[_T]) -> _T:
    """Read a TOML file of tasks and check it against the type of its entries.

    Raises:
        TaskError: the file cannot be read, or an entry is wrong; the message names its place.
    """
    try:
        return entries.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise TaskError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: is no TOML ({error}); correct it") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{path}: {place}: {first['msg']} (it is {first['input']!r:.60})") from None

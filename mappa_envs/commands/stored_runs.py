"""The folder of a run, as far as it takes to play its episodes again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.errors import CommandError, did_you_mean
from mappa_envs.registration import IDS
from mappa_envs.registry import make_pipeline
from mappa_envs.scenario import scenario_folder

CONFIG, EPISODES = "config.json", "episodes"


def is_run(name: str) -> bool:
    """Whether a path is the folder of a run."""
    return (Path(name) / CONFIG).is_file()


class StoredRun:
    """A run that a trainer has written: its settings, and its episodes as JSON lines.

    Args:
        path: The folder.

    Raises:
        CommandError: the folder is none of a run in an environment of this package.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
            self._id = config["env"]["id"]
            self._tables = {
                name: config[name]
                for name in ("scenario", "sandbox")
                if config.get(name) is not None
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"{path / CONFIG}: cannot be read: {error!r}") from None

    @property
    def folder(self) -> Path:
        """The folder of the scenario that was played.

        Raises:
            CommandError: it was none that ships with the package.
        """
        if IDS.get(self._id) is None:
            known = ", ".join(name for name, folder in IDS.items() if folder)
            raise CommandError(
                f"{self._path}: its episodes are of {self._id!r}; only those of {known} can be "
                "played again"
            )
        return scenario_folder(str(IDS[self._id]))

    def make_env(self) -> AECEnv[str, Any, Any]:
        """Return the environment of the run, without its coach.

        Raises:
            MappaEnvError: the run's tables do not describe one.
        """
        return make_pipeline(self.folder, **self._tables)

    def episodes(self, name: str, count: int) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
        """Return the name of a file, and its first episodes, each with its file and line.

        Args:
            name: Of a file, e.g. `"eval-0004-greedy"`; the last one of training when empty.
            count: How many at most.

        Raises:
            CommandError: there is no such file, or a line of it is not JSON.
        """
        stems = [path.stem for path in (self._path / EPISODES).glob("*.jsonl")]
        known = sorted(stems, key=lambda stem: (len(stem), stem))
        training = [stem for stem in known if stem.startswith("train-")]
        name = name.removesuffix(".jsonl") or (training or known or [""])[-1]
        if name not in known:
            hint = did_you_mean(name, known, "there are")
            raise CommandError(f"{self._path}: no episodes are called {name!r}; {hint}")
        path = self._path / EPISODES / f"{name}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()[:count]
        places = [f"{path}, line {number}" for number in range(1, len(lines) + 1)]
        return name, [(p, _row(p, line)) for p, line in zip(places, lines, strict=True)]


def _row(place: str, line: str) -> Mapping[str, Any]:
    try:
        row: Mapping[str, Any] = json.loads(line)
    except ValueError as error:
        raise CommandError(f"{place}: is not JSON: {error}") from None
    return row

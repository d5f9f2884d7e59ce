"""A file of results, one JSON line an episode, that a stopped run is continued with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mappa_envs.bench import Job, Result
from mappa_envs.errors import CommandError
from mappa_envs.team_files import TeamScript


class ResultsFile:
    """Results that are there, and results to come.

    Each line names the version of the scenario and of the team that was played, so that results of
    different ones are never mixed. A last line that a crash cut short is dropped.

    Args:
        path: A file; a new one, unless `resume`.
        versions: What `version_of` returns, by team.
        resume: Whether a file that is there is continued.

    Raises:
        CommandError: the file is there and is not to be continued, or cannot be.
    """

    def __init__(self, path: Path, versions: Mapping[str, str], *, resume: bool) -> None:
        if path.exists() and not resume:
            raise CommandError(f"{path}: exists already; add --resume, or name another file")
        self._path = path
        self._versions = versions
        self._results: list[Result] = []
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise CommandError(
                f"{path}: cannot be written ({error.strerror}); name a file in a folder that you "
                "may use"
            ) from None
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        """Append a result; it is on its way to the disk when this returns."""
        line = json.dumps({"version": self._versions[result["team"]], **result})
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._results.append(result)

    def results(self, jobs: Sequence[Job]) -> list[Result]:
        """Return the results that are there of these jobs, in the jobs' order."""
        known = {_key(result): result for result in self._results}
        return [known[job.key] for job in jobs if job.key in known]

    def open_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs without a result, or with one that was not decided."""
        done = {_key(result) for result in self._results if result["decided"]}
        return [job for job in jobs if job.key not in done]

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            self._results.append(self._result(f"{self._path}: line {number}", line))
        self._file.truncate(whole)

    def _result(self, place: str, line: bytes) -> Result:
        try:
            result: Result = json.loads(line)
            version, team = result.pop("version"), result["team"]
            _key(result), result["decided"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CommandError(f"{place} is no result of an episode; name another file") from None
        if team in self._versions and version != self._versions[team]:
            raise CommandError(
                f"{place} is of another version of the scenario or of team {team!r}; name another "
                "file"
            )
        return result


def version_of(
    folder: Path, team: TeamScript | None, tables: Mapping[str, Any] | None = None
) -> str:
    """Return a digest of all that a scenario folder and a team say.

    Args:
        folder: The scenario's; its teams are left out.
        team: None for the roles' `script`.
        tables: Laid over the scenario's file.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix in (".toml", ".md") and inside.parts[0] != "teams":
            digest.update(f"{inside.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    texts: Any = dict(team.texts) if team else None
    digest.update(json.dumps(texts).encode())
    if tables:
        digest.update(json.dumps(tables, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def _key(result: Result) -> tuple[str, str, int]:
    return result["team"], result["task"], result["seed"]

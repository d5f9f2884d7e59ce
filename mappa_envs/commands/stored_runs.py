"""A run whose episodes are to be played again."""

from __future__ import annotations

from pathlib import Path

from mappa_envs.audit.remade import env_id
from mappa_envs.audit.stored import StoredRun
from mappa_envs.errors import CommandError
from mappa_envs.registration import IDS
from mappa_envs.scenario import scenario_folder


def is_run(name: str) -> bool:
    """Whether a name is that of a run directory, or of one file of its episodes."""
    return (Path(name) / "config.json").is_file() or (
        name.endswith(".jsonl") and Path(name).is_file()
    )


def folder_of(run: StoredRun) -> Path:
    """Return the folder of the scenario that was played, for the teams in it.

    Raises:
        AuditError: the run does not say what was played.
        CommandError: it was no scenario that ships with the package.
    """
    name = env_id(run)
    folder = IDS.get(name)
    if folder is None:
        known = ", ".join(each for each, ships in IDS.items() if ships)
        raise CommandError(
            f"{run.path}: its episodes are of {name!r}; only those of {known} can be played again"
        )
    return scenario_folder(folder)

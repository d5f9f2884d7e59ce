"""Which tasks a scenario names."""

from __future__ import annotations

from pathlib import Path

from mappa_envs.scenario import GENERATED, TABLES, Scenario
from mappa_envs.tasks.dsbench_files import DsbenchFiles
from mappa_envs.tasks.math_files import FileMath
from mappa_envs.tasks.math_generated import GeneratedMath
from mappa_envs.tasks.source import TaskSource
from mappa_envs.tasks.tables import TableTasks


def task_source(scenario: Scenario) -> TaskSource:
    """Return the tasks a scenario names.

    Raises:
        TaskError: a file is missing or malformed, a package is not installed, or a family or a
            task is unknown.
    """
    if scenario.outcome == "submission":
        return _tables(scenario)
    if scenario.tasks == GENERATED:
        return GeneratedMath(
            seed=scenario.task_seed,
            families=scenario.generated.families or None,
            levels=scenario.generated.levels,
        )
    test = Path(scenario.test_tasks) if scenario.test_tasks else None
    return FileMath(Path(scenario.tasks), test, seed=scenario.task_seed)


def _tables(scenario: Scenario) -> TaskSource:
    tables = scenario.tables
    if scenario.tasks == TABLES:
        return TableTasks(
            Path(tables.catalogue),
            seed=scenario.task_seed,
            level=tables.level,
            batch_size=tables.batch_size,
            only=tables.only,
        )
    return DsbenchFiles(
        Path(scenario.tasks),
        Path(tables.benchmark),
        task_lists=[Path(path) for path in tables.task_lists],
        cleaned_prompts=Path(tables.cleaned_prompts) if tables.cleaned_prompts else None,
        only=tables.only,
        seed=scenario.task_seed,
        batch_size=tables.batch_size,
    )

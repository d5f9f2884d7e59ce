from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mappa_envs import Scenario, load_scenario, make_pipeline
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.episode import Episode
from mappa_envs.errors import MappaEnvError, ScenarioError
from mappa_envs.prompts import (
    render_template,
    template_fields,
    template_problems,
    visible_fields,
)
from mappa_envs.sandbox import Limits
from mappa_envs.scenario import scenario_folder
from mappa_envs.testing import ScriptedCoach, play
from mappa_envs.types import Task

TOML = """
name = "pair"
outcome = "math_answer"

[roles.writer]
prompt = "writer.md"
rubric.concise = { points = 2, max_words = 5 }

[roles.reader]
prompt = "reader.md"
system = "You read."
max_turns = 3
tools = ["python"]
rubric.one_box = { points = 1.5 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scenario.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "writer.md").write_text("Write about {{ problem }}.\n", encoding="utf-8")
    (tmp_path / "reader.md").write_text(
        "{{problem}}: {{ writer.message }} {{  writer.output }}", encoding="utf-8"
    )
    return tmp_path


def refused(folder: Path, overrides: Mapping[str, Any] | None = None) -> str:
    """Load what must be refused; return the message, which must be one line naming the file."""
    with pytest.raises(ScenarioError) as caught:
        RubricCoach(load_scenario(folder, overrides))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(folder))
    assert caught.value.exit_code == 2
    return message


# --- what loads -------------------------------------------------------------------------------


def test_a_scenario_folder(folder: Path) -> None:
    scenario = load_scenario(folder)
    assert scenario.name == "pair"
    assert scenario.agents == ("writer_0", "reader_0")
    writer, reader = scenario.roles.values()
    assert (writer.prompt, writer.system) == ("Write about {{ problem }}.", "")
    assert (writer.max_turns, writer.tools) == (1, ())
    assert (reader.max_turns, reader.tools, reader.system) == (3, ("python",), "You read.")
    assert writer.rubric == {"concise": {"points": 2, "max_words": 5}}
    assert (scenario.tasks, scenario.test_tasks, scenario.task_seed) == ("generated", None, 0)
    assert scenario.strip_thinking
    assert scenario.limits.timeout_s == Limits().timeout_s


def test_overrides_are_merged_key_by_key(folder: Path) -> None:
    overrides = {
        "task_seed": 7,
        "limits": {"timeout_s": 2},
        "roles": {"reader": {"max_turns": 1, "rubric": {"one_box": {"points": 4}}}},
    }
    scenario = load_scenario(folder, overrides)
    assert scenario.task_seed == 7
    assert scenario.limits.timeout_s == 2.0
    assert scenario.limits.memory_bytes == Limits().memory_bytes
    reader = scenario.roles["reader"]
    assert (reader.max_turns, reader.system) == (1, "You read.")
    assert reader.rubric == {"one_box": {"points": 4}}
    assert load_scenario(folder).roles["reader"].max_turns == 3
    assert overrides["limits"] == {"timeout_s": 2}


def test_lists_and_whole_numbers_are_read_as_what_the_keys_hold(folder: Path) -> None:
    overrides = {
        "generated": {"levels": [1, 2], "families": ["sum"]},
        "limits": {"timeout_s": 2, "processes": 3},
        "roles": {"reader": {"tools": ["python"], "files": {"read": ["*.csv"]}}},
    }
    scenario = load_scenario(folder, overrides)
    assert (scenario.generated.levels, scenario.generated.families) == ((1, 2), ("sum",))
    assert (scenario.limits.timeout_s, scenario.limits.processes) == (2.0, 3)
    assert type(scenario.limits.timeout_s) is float
    assert isinstance(scenario.limits, Limits)
    assert scenario.roles["reader"].files.read == ("*.csv",)


def test_a_scenario_cannot_be_changed(folder: Path) -> None:
    scenario = load_scenario(folder)
    with pytest.raises(ValueError, match="frozen"):
        scenario.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        scenario.roles["writer"].max_turns = 2


def test_a_visit_sees_the_problem_the_files_and_what_earlier_visits_left() -> None:
    visits = ("pro", "con", "pro")
    everywhere = {"problem", "files", "max_turns"}
    pro, con = {"pro.message", "pro.output"}, {"con.message", "con.output"}
    assert visible_fields(visits, 0) == everywhere
    assert visible_fields(visits, 1) == everywhere | pro
    assert visible_fields(visits, 2) == everywhere | pro | con


def test_later_visits_have_a_prompt_of_their_own(folder: Path) -> None:
    visits = ["writer", "reader", "writer"]
    (folder / "again.md").write_text("{{ reader.message }}, {{ writer.output }}?\n")
    roles = {"writer": {"again": "again.md"}}
    scenario = load_scenario(folder, {"order": visits, "roles": roles})
    assert scenario.visits == ("writer", "reader", "writer")
    assert scenario.agents == ("writer_0", "reader_0")
    writer, reader = scenario.roles.values()
    assert writer.again == "{{ reader.message }}, {{ writer.output }}?"
    assert reader.again == reader.prompt == "{{problem}}: {{ writer.message }} {{  writer.output }}"
    assert load_scenario(folder).visits == ("writer", "reader")
    (folder / "again.md").write_text("{{ reader.code }}")
    assert refused(folder, {"order": visits, "roles": roles}).startswith(
        f"{folder / 'again.md'}: roles.writer.again: unknown field {{{{ reader.code }}}}; "
        "known here: files, max_turns, problem, reader.message, reader.output, writer.message, "
        "writer.output"
    )


def test_a_script_says_only_what_is_there_when_it_is_said(folder: Path) -> None:
    visits = ["writer", "reader", "writer"]
    own, reader = "{{ writer.output }}", "{{ reader.message }}"

    def check(*script: str, turns: int = 1) -> None:
        writer = {"script": script, "max_turns": turns}
        load_scenario(folder, {"order": visits, "roles": {"writer": writer}})

    check("{{ problem }} {{ files }}", own + reader, own + reader)
    check("first", own, own + reader, turns=2)
    for early in (own, reader):
        with pytest.raises(ScenarioError, match=r"writer\.script\.0: unknown field"):
            check(early)
    with pytest.raises(ScenarioError, match=r"writer\.script\.1: unknown field"):
        check("first", reader, turns=2)


def test_task_files_lie_beside_the_file_that_names_them(folder: Path) -> None:
    text = TOML.replace(
        "[roles.writer]", 'tasks = "a.json"\ntest_tasks = "/b.json"\n[roles.writer]'
    )
    (folder / "scenario.toml").write_text(text)
    scenario = load_scenario(folder)
    assert (scenario.tasks, scenario.test_tasks) == (str(folder / "a.json"), "/b.json")
    assert load_scenario(folder, {"tasks": "c.json"}).tasks == "c.json"


def test_mathchat_ships_with_the_package() -> None:
    scenario = load_scenario(scenario_folder("mathchat"))
    assert isinstance(scenario, Scenario)
    assert scenario.agents == ("solver_0", "coder_0", "verifier_0")
    assert [role.tools for role in scenario.roles.values()] == [(), ("python",), ()]
    assert RubricCoach(scenario).id == "rubric"
    for role in scenario.roles.values():
        assert "problem" in template_fields(role.prompt)
    fields = template_fields(scenario.roles["verifier"].prompt)
    assert "coder.output" in fields
    assert not any(field.startswith("solver") for field in fields)


def test_a_folder_plays(folder: Path) -> None:
    env = make_pipeline(folder, coach={"kind": "rubric"})
    paid = play(env, {"writer_0": ["Two words"], "reader_0": [r"\boxed{1}"]}, seed=0)
    assert paid == {"writer_0": [0.0, 1.0], "reader_0": [0.0, 1.0]}
    env.close()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"taks": "a.json"}, "taks: unknown key; did you mean 'tasks'?"),
        (
            {"roles": {"reader": {"max_turn": 2}}},
            "roles.reader.max_turn: unknown key; did you mean 'max_turns'?",
        ),
        ({"limits": {"timeout": 3}}, "limits.timeout: unknown key; did you mean 'timeout_s'?"),
        ({"generated": {"level": [1]}}, "generated.level: unknown key; did you mean 'levels'?"),
        (
            {"generated": {"zzz": 1}},
            "generated.zzz: unknown key; known keys: levels, families",
        ),
        ({"name": 3}, "name: is 3; it should be a valid string"),
        ({"outcome": "luck"}, "outcome: is 'luck'; it should be 'math_answer'"),
        ({"roles": {"reader": {"max_turns": 0}}}, "roles.reader.max_turns: is 0; it should be"),
        (
            {"roles": {"reader": {"tools": ["bash"]}}},
            "roles.reader.tools.0: is 'bash'; it should be 'python'",
        ),
        (
            {"roles": {"reader": {"files": {"raed": []}}}},
            "roles.reader.files.raed: unknown key; did you mean 'read'?",
        ),
        (
            {"roles": {"reader": {"files": {"zzz": []}}}},
            "roles.reader.files.zzz: unknown key; known keys: read, write",
        ),
        (
            {"roles": {"reader": {"rubric": {"one_box": {"points": [1]}}}}},
            "roles.reader.rubric.one_box.points: is [1]; it should be a valid number or integer or "
            "string or boolean",
        ),
        ({"roles": {"reader": 3}}, "roles.reader: is 3; it should be a table"),
        ({"roles": 3}, "roles: is 3; it should be a table"),
        ({"order": "reader"}, "order: is 'reader'; it should be a list"),
        ({"order": ["reader", 3]}, "order.1: is 3; it should be a valid string"),
        (
            {"order": ["writer", "reder", "reader"]},
            "order: there is no role 'reder'; did you mean 'reader'?",
        ),
        (
            {"order": ["writer"]},
            "order: role 'reader' never acts; visit it, or delete the role",
        ),
        (
            {"roles": {"reader": {"script": ["{{ problem }}", "{{ reader.output }} {{ code }}"]}}},
            "roles.reader.script.1: unknown field {{ code }}; known here: files, max_turns, "
            "problem, reader.message, reader.output, writer.message, writer.output",
        ),
        ({"test_tasks": "x.json"}, "test_tasks: is set while tasks is 'generated'"),
        ({"limits": {"timeout_s": -1.0}}, "limits.timeout_s: is -1.0; a limit is a number above 0"),
        ({"limits": {"timeout_s": "soon"}}, "limits.timeout_s: is 'soon'; it should be a"),
        ({"roles": {"extra": {}}}, "roles.extra.prompt: is missing; add it"),
        ({"task_seed": True}, "task_seed: is True; it should be a valid integer"),
        ({"task_seed": "7"}, "task_seed: is '7'; it should be a valid integer"),
        ({"strip_thinking": 1}, "strip_thinking: is 1; it should be a valid boolean"),
        ({"roles": {"reader": {"max_turns": True}}}, "roles.reader.max_turns: is True; it should"),
        ({"generated": {"levels": [True]}}, "generated.levels.0: is True; it should be"),
        ({"generated": {"levels": 1}}, "generated.levels: is 1; it should be a list"),
        ({"limits": {"timeout_s": True}}, "limits.timeout_s: is True; it should be a valid"),
        ({"limits": {"processes": True}}, "limits.processes: is True; it should be a valid"),
        ({"limits": {"processes": "9"}}, "limits.processes: is '9'; it should be a valid"),
    ],
)
def test_a_wrong_key_or_value(folder: Path, overrides: Any, words: str) -> None:
    message = refused(folder, overrides)
    where = f"{folder / 'scenario.toml'}, with the tables laid over it"
    assert message.startswith(f"{where}: {words}")


def test_every_mistake_has_its_line(folder: Path) -> None:
    (folder / "scenario.toml").write_text(
        """
name = "pair"
outcome = "luck"
taks = "a.json"
order = ["writer", "reeder"]
[limits]
timeout = 3
timeout_s = 0
memory_bytes = 1
processes = true
output_bytes = 2.5
[roles.writer]
prompt = "writer.md"
max_turns = 0
script = ["{{ reader.output }}"]
files = { reed = [] }
[roles.reader]
prompt = "missing.md"
again = "reader.md"
"""
    )
    (folder / "writer.md").write_text("{{ reader.message }} {{ answer }}")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(folder)
    file = folder / "scenario.toml"
    assert sorted(caught.value.problems) == sorted(
        [
            f"{file}: outcome: is 'luck'; it should be 'math_answer' or 'submission'",
            f"{file}: taks: unknown key; did you mean 'tasks'?",
            f"{file}: limits.timeout: unknown key; did you mean 'timeout_s'?",
            f"{file}: limits.timeout_s: is 0; a limit is a number above 0",
            f"{file}: limits.memory_bytes: is 1; no program can live with less than 64000000 "
            "bytes, so give more",
            f"{file}: limits.processes: is True; it should be a valid number",
            f"{file}: limits.output_bytes: is 2.5; it must be a whole number below 2**62",
            f"{file}: roles.writer.max_turns: is 0; it should be greater than or equal to 1",
            f"{file}: roles.writer.files.reed: unknown key; did you mean 'read'?",
            f"{file}: order: there is no role 'reeder'; did you mean 'reader'?",
            f"{file}: order: role 'reader' never acts; visit it, or delete the role",
            f"{file}: roles.writer.script.0: unknown field {{{{ reader.output }}}}; "
            "known here: files, max_turns, problem",
            f"{folder / 'writer.md'}: roles.writer.prompt: unknown field {{{{ reader.message }}}}; "
            "known here: files, max_turns, problem",
            f"{folder / 'writer.md'}: roles.writer.prompt: unknown field {{{{ answer }}}}; "
            "known here: files, max_turns, problem",
            f"{file}: roles.reader.prompt: {folder / 'missing.md'}: cannot be read: "
            "No such file or directory",
        ]
    )
    first = caught.value.problems[0]
    assert str(caught.value) == f"{first} (and 14 more; `mappa scenario check` lists them)"


@pytest.mark.parametrize("name", ["Reader", "reader_two", "reader2", "", "lesér"])
def test_a_role_name_that_makes_no_agent_name(folder: Path, name: str) -> None:
    text = TOML.replace("[roles.reader]", f'[roles."{name}"]')
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    message = refused(folder)
    place = f"{folder / 'scenario.toml'}: roles.{name}"
    assert message == f"{place}: role name {name!r} must be lower-case letters only"


def test_a_scenario_without_roles(folder: Path) -> None:
    (folder / "scenario.toml").write_text('name = "none"\noutcome = "math_answer"\nroles = {}')
    assert "roles: is empty; add at least one" in refused(folder)


def test_a_missing_key(folder: Path) -> None:
    text = TOML.replace('outcome = "math_answer"', "")
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    assert refused(folder) == f"{folder / 'scenario.toml'}: outcome: is missing; add it"


def test_a_missing_folder(tmp_path: Path) -> None:
    message = refused(tmp_path / "nowhere")
    path = tmp_path / "nowhere" / "scenario.toml"
    assert message == f"{path}: cannot be read: No such file or directory"


@pytest.mark.parametrize("content", ["name = ", "[roles", "just words", "a = 1\na = 2"])
def test_what_is_not_toml(folder: Path, content: str) -> None:
    (folder / "scenario.toml").write_text(content, encoding="utf-8")
    message = refused(folder)
    assert message.startswith(f"{folder / 'scenario.toml'}: is not TOML: ")
    assert re.search(r"\(at (line \d+, column \d+|end of document)\)$", message)


def test_what_is_not_utf8(folder: Path) -> None:
    (folder / "scenario.toml").write_bytes(b"name = '\xff'")
    assert refused(folder).startswith(f"{folder / 'scenario.toml'}: cannot be read: ")


def test_a_missing_prompt_file(folder: Path) -> None:
    (folder / "reader.md").unlink()
    assert refused(folder) == (
        f"{folder / 'scenario.toml'}: roles.reader.prompt: {folder / 'reader.md'}: "
        "cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    "field", ["reader.message", "writer.code", "Problem", "", "answer", "task.answers", "writer"]
)
def test_an_unknown_prompt_field(folder: Path, field: str) -> None:
    (folder / "reader.md").write_text(f"{{{{ {field} }}}}", encoding="utf-8")
    assert refused(folder) == (
        f"{folder / 'reader.md'}: roles.reader.prompt: unknown field {{{{ {field} }}}}; "
        "known here: files, max_turns, problem, writer.message, writer.output"
    )


def test_a_role_may_not_see_a_later_one(folder: Path) -> None:
    (folder / "writer.md").write_text("{{ reader.message }}", encoding="utf-8")
    assert refused(folder) == (
        f"{folder / 'writer.md'}: roles.writer.prompt: "
        "unknown field {{ reader.message }}; known here: files, max_turns, problem"
    )


@pytest.mark.parametrize(
    ("rubric", "words"),
    [
        ({"brief": {"points": 1}}, "roles.writer.rubric.brief: unknown check; known: box_equals"),
        ({"one_box": {}}, "roles.writer.rubric.one_box: points is None; give a positive number"),
        ({"one_box": {"points": 0}}, "roles.writer.rubric.one_box: points is 0; give a positive"),
        ({"one_box": {"points": -1}}, "roles.writer.rubric.one_box: points is -1; give"),
        ({"one_box": {"points": True}}, "roles.writer.rubric.one_box: points is True; give"),
        ({"one_box": {"points": "2"}}, "roles.writer.rubric.one_box: points is '2'; give"),
        (
            {"one_box": {"points": float("nan")}},
            "roles.writer.rubric.one_box: points is nan; give a positive number",
        ),
        (
            {"one_box": {"points": 1, "max_words": 3}},
            "roles.writer.rubric.one_box: parameters are ['max_words']; this check takes []",
        ),
        (
            {"concise": {"points": 1, "max_words": 3, "words": 4}},
            "roles.writer.rubric.concise: parameters are ['max_words', 'words']; this check takes",
        ),
        (
            {"concise": {"points": 1, "max_words": "few"}},
            "roles.writer.rubric.concise: max_words is 'few'; it must be of type int",
        ),
    ],
)
def test_a_wrong_rubric(folder: Path, rubric: Any, words: str) -> None:
    assert refused(folder, {"roles": {"writer": {"rubric": rubric}}}).startswith(words)


def test_every_mistake_of_a_rubric_has_its_line(folder: Path) -> None:
    rubric = {"concise": {"points": 0, "max_words": "few"}, "one_bx": {"points": 1}}
    reader = {"one_box": {"points": -1}}
    scenario = load_scenario(
        folder, {"roles": {"writer": {"rubric": rubric}, "reader": {"rubric": reader}}}
    )
    with pytest.raises(ScenarioError) as caught:
        RubricCoach(scenario)
    assert caught.value.problems == (
        "roles.writer.rubric.concise: points is 0; give a positive number",
        "roles.writer.rubric.concise: max_words is 'few'; it must be of type int",
        "roles.writer.rubric.one_bx: unknown check; did you mean 'one_box'?",
        "roles.reader.rubric.one_box: points is -1; give a positive number",
    )


def test_a_parameter_that_a_check_needs(folder: Path) -> None:
    text = TOML.replace(", max_words = 5", "")
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    assert refused(folder) == (
        "roles.writer.rubric.concise: parameters are []; this check takes ['max_words']"
    )


def test_a_role_without_a_rubric(folder: Path) -> None:
    text = TOML.replace("rubric.one_box = { points = 1.5 }", "")
    (folder / "scenario.toml").write_text(text, encoding="utf-8")
    assert refused(folder).startswith(
        "scenario 'pair': role 'reader' has no rubric; add a table roles.reader.rubric with checks"
    )
    make_pipeline(folder).close()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"coach": {"kind": "oracle"}}, "coach.kind is 'oracle'; known: rubric"),
        ({"coach": {"kind": ["rubric"]}}, r"coach.kind is \['rubric'\]; known: rubric"),
        ({"coach": {"kin": "rubric"}}, "coach: unknown key 'kin'; did you mean 'kind'?"),
        ({"coach": {"x": 1}}, "coach: unknown key 'x'; known keys: credit, deferred, hindsight, "),
        ({"coach": {"credit": "all"}}, "coach.credit is 'all'; it must be 'every_action' or"),
        (
            {"coach": {"process_weight": "1"}},
            "coach.process_weight is '1'; give a number from 0 to",
        ),
        ({"coach": {"outcome_weight": None}}, "coach.outcome_weight is None; give a number"),
        ({"coach": {"outcome_weight": True}}, "coach.outcome_weight is True; give a number"),
        ({"coach": {"process_weight": float("nan")}}, "coach.process_weight is nan; give"),
        ({"coach": {"process_weight": float("inf")}}, "coach.process_weight is inf; give"),
        ({"sandbox": {"level": "none"}}, "sandbox.level is 'none'; known: auto, namespace, "),
        ({"sandbox": {"level": None}}, "sandbox.level is None; known: auto, namespace, "),
        ({"sandbox": {"levl": "auto"}}, "sandbox: unknown key 'levl'; did you mean 'level'?"),
        ({"sandbox": {"image": "x"}}, "sandbox.image is 'x'; it needs sandbox.level = 'docker'"),
        ({"sandbox": {"level": "docker", "image": ""}}, "sandbox.image is ''; give the name of an"),
        ({"sandbox": {"level": "docker", "image": 1}}, "sandbox.image is 1; give the name of an"),
        ({"sandbox": {"preload": "numpy"}}, "sandbox.preload is 'numpy'; give a list of modules"),
        ({"sandbox": {"preload": ["a b"]}}, r"sandbox.preload is \['a b'\]; give a list of mod"),
        ({"sandbox": {"preload": [1]}}, r"sandbox.preload is \[1\]; give a list of modules"),
        ({"scenario": {"taks": 1}}, "laid over it: taks: unknown key; did you mean 'tasks'?"),
        ({"scenario": "x"}, "scenario is 'x'; give a table"),
        ({"coach": "rubric"}, "coach is 'rubric'; give a table"),
        ({"coach": {"process_weight": -1}}, "coach.process_weight is -1; give a number from 0"),
    ],
)
def test_a_wrong_table_of_make(tables: Any, words: str) -> None:
    with pytest.raises(ScenarioError, match=words.replace("?", r"\?")) as caught:
        make_pipeline("mathchat", **tables)
    assert "\n" not in str(caught.value)


def test_an_unknown_scenario() -> None:
    with pytest.raises(ScenarioError, match="'chess' does not ship with this package; these ship"):
        make_pipeline("chess")
    with pytest.raises(ScenarioError, match=r"'mathchatt' does not .*; did you mean 'mathchat'"):
        make_pipeline("mathchatt")


def test_a_shipped_name_wins_over_a_folder_of_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = scenario_folder("mathchat")
    assert shipped.is_absolute()
    monkeypatch.chdir(folder.parent)
    assert scenario_folder(folder.name) == Path(folder.name)
    folder.rename(folder.parent / "mathchat")
    assert scenario_folder("mathchat") == shipped
    assert scenario_folder("./mathchat") == Path("mathchat")
    assert scenario_folder("no/such") == Path("no/such")


def test_errors_of_the_user_have_one_base() -> None:
    with pytest.raises(MappaEnvError) as caught:
        make_pipeline("mathchat", coach={"kind": "oracle"})
    assert isinstance(caught.value, ValueError)


def test_what_make_builds(folder: Path) -> None:
    bare = make_pipeline(folder, render_mode="ansi")
    assert type(bare) is PipelineEnv
    assert bare.render_mode == "ansi"
    assert bare.metadata["name"] == "pair_v0"
    assert not bare.metadata["is_parallelizable"]
    table = {"process_weight": 0.5, "outcome_weight": 2, "credit": "last_action"}
    coached = make_pipeline(folder, coach=table)
    assert isinstance(coached, CoachWrapper)
    assert isinstance(coached.coach, RubricCoach)
    payment = coached.payment
    assert (payment.process_weight, payment.outcome_weight) == (0.5, 2)
    assert payment.credit == "last_action"
    own = ScriptedCoach(1.0)
    assert make_pipeline(folder, coach=own).coach is own
    assert table == {"process_weight": 0.5, "outcome_weight": 2, "credit": "last_action"}


# --- prompts ----------------------------------------------------------------------------------


def test_every_shipped_prompt_says_the_actions_that_a_role_has() -> None:
    folder = scenario_folder("dsbench")
    one = {name: {"max_turns": 1} for name in ("engineer", "modeler", "analyst")}
    for table, count in (({}, "4"), ({"roles": one}, "1")):
        scenario = load_scenario(folder, table)
        prompt = Episode.begin(scenario, Task("a", "Predict.", ()), 0).messages["engineer_0"][-1]
        assert f"The most actions you have: {count}. Your part:" in prompt["content"]
    for path in folder.parent.glob("*/prompts/*.md"):
        assert not re.search(r"\b(\d+|one|two|three|four|five) actions?\b", path.read_text()), path


@pytest.mark.parametrize("text", ["", " \n\n", "\ufeff"])
def test_an_empty_prompt_is_refused(folder: Path, text: str) -> None:
    (folder / "reader.md").write_text(text, encoding="utf-8")
    message = f"{folder / 'reader.md'}: roles.reader.prompt: is empty; write what it is to say"
    assert refused(folder).startswith(message)
    (folder / "reader.md").write_text("Read.", encoding="utf-8")
    (folder / "again.md").write_text(text, encoding="utf-8")
    again = {"order": ["writer", "reader", "writer"], "roles": {"writer": {"again": "again.md"}}}
    assert refused(folder, again).startswith(f"{folder / 'again.md'}: roles.writer.again: is empty")


def test_limits_hold_a_program_at_least() -> None:
    assert Limits(memory_bytes=64_000_000).memory_bytes == 64_000_000
    with pytest.raises(ValueError, match="memory_bytes is 63999999; no program can live with less"):
        Limits(memory_bytes=63_999_999)


def test_templates() -> None:
    template = "{{ a }}{{b.c}} {{  a  }} { a } {{{ x }}"
    assert template_fields(template) == ("a", "b.c", "a", "x")
    values = {"a": "{{ b.c }}", "b.c": "\\1 {{ a }}", "x": "{x}"}
    assert render_template(template, values) == "{{ b.c }}\\1 {{ a }} {{ b.c }} { a } {{x}"


def test_each_unknown_field_of_a_template_is_a_problem() -> None:
    assert template_problems("no fields, {one} brace, {{ a }}", {"a", "b"}) == []
    assert template_problems("{{ c }} {{ a }} {{ d }} {{ c }}", {"b", "a"}) == [
        "unknown field {{ c }}; known here: a, b",
        "unknown field {{ d }}; known here: a, b",
    ]

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_envs import load_scenario, make_pipeline
from mappa_envs.commands.checking import scenario_problems
from mappa_envs.errors import ScenarioError
from mappa_envs.play import play
from mappa_envs.scenario import scenario_folder
from mappa_envs.team_files import TeamScript, load_team, scenario_teams, team_problems
from mappa_envs.teams import NOTHING_TO_SAY, ScenarioTeam

Write = Callable[[str, str], Path]
CALM = """
about = "Nobody computes."
[texts]
proponent = ["{{ problem }}", "It is {{ opponent.message }}"]
opponent = ["7"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the debate, with a team that says little."""
    folder = Path(shutil.copytree(scenario_folder("debate"), tmp_path / "debate"))
    (folder / "teams").mkdir()
    (folder / "teams" / "calm.toml").write_text(CALM)
    return folder


@pytest.fixture
def write(folder: Path) -> Write:
    """Write a team file, and return its path."""

    def to_file(name: str, text: str) -> Path:
        path = folder / "teams" / f"{name}.toml"
        path.write_text(text)
        return path

    return to_file


def said(folder: Path, team: TeamScript | None) -> list[str]:
    """Return the actions of an episode of task `train-0`, in which Kim has 30 coins and 18 more."""
    env = make_pipeline(folder)
    play(env, ScenarioTeam(env, team), seed=0, options={"task": "train-0"})
    return [turn.action for turn in env.unwrapped.turns]


def test_a_team_says_its_texts_in_order_and_the_last_one_again(folder: Path) -> None:
    team = load_team(folder, "calm", load_scenario(folder))
    assert team.about == "Nobody computes."
    assert team.culprit == ""
    first, *rest = said(folder, team)
    assert first.startswith("Kim has 30 coins")
    assert rest == ["7", "It is 7", "7", "It is 7"]


def test_a_role_that_is_left_out_says_what_it_says_in_the_base(folder: Path, write: Write) -> None:
    write("odd", 'base = "calm"\nculprit = "opponent"\n[texts]\nopponent = ["8", "9"]')
    team = load_team(folder, "odd", load_scenario(folder))
    assert team.culprit == "opponent"
    assert said(folder, team)[1:] == ["8", "It is 8", "9", "It is 9"]


def test_one_team_serves_episodes_forks_and_restored_episodes(folder: Path) -> None:
    env = make_pipeline(folder)
    policy = ScenarioTeam(env, load_team(folder, "calm", load_scenario(folder)))
    env.reset(seed=0)
    start = env.snapshot()
    for _ in range(2):
        env.restore(start)
        for _ in range(3):
            env.step(policy(env.agent_selection, env.observe(env.agent_selection)))
        assert env.turns[-1].action == "It is 7"


def test_without_a_team_the_scripts_are_said(folder: Path) -> None:
    assert said(folder, None)[0] == r"My first guess, before anything is computed: $\boxed{0}$."


def test_a_scripted_team_stands_in_for_scripts_that_are_not_there(
    folder: Path, write: Write
) -> None:
    text = (folder / "scenario.toml").read_text()
    start, end = text.index("script = [\n    '''"), text.index("[roles.opponent.rubric]")
    (folder / "scenario.toml").write_text('scripted = "calm"\n' + text[:start] + text[end:])
    actions = said(folder, None)
    assert actions[0].startswith("My first guess")  # a script of its own comes first
    assert actions[1] == "7"
    (folder / "scenario.toml").write_text(text[:start] + text[end:])
    assert said(folder, None)[1] == NOTHING_TO_SAY


def test_names_are_those_of_the_files(folder: Path, write: Write) -> None:
    write("able", CALM)
    assert scenario_teams(folder) == ("able", "calm")
    assert scenario_teams(scenario_folder("debate")) == ()


def test_a_good_team_has_no_problems(folder: Path) -> None:
    assert team_problems(folder, load_scenario(folder)) == []


BAD = {
    "no TOML": ("x = ", "is not TOML: Invalid value"),
    "unknown key": ('texts.opponent = ["1"]\nabuot = "x"', "abuot: unknown key; did you mean"),
    "no texts": ('about = "x"', "texts: is missing; add it"),
    "no text": ('base = "calm"\n[texts]\nopponent = []', "texts.opponent: is empty; give a text"),
    "a number": ('base = "calm"\n[texts]\nopponent = [1]', "texts.opponent.0: is 1; it should "),
    "unknown role": (
        'base = "calm"\n[texts]\noponent = ["1"]',
        "texts.oponent: there is no role 'oponent'; did you mean 'opponent'?",
    ),
    "unknown culprit": (
        'base = "calm"\nculprit = "opponents"\n[texts]\nopponent = ["1"]',
        "culprit: there is no role 'opponents'; did you mean 'opponent'?",
    ),
    "unknown base": (
        'base = "clam"\n[texts]\nopponent = ["1"]',
        "base: there is no team 'clam'; did you mean 'calm'?",
    ),
    "base with a base": (
        'base = "second"\n[texts]\nopponent = ["1"]',
        "base: 'second' has a base itself, 'calm'; name a team that has none",
    ),
    "a role too few": (
        '[texts]\nopponent = ["1"]',
        "texts.proponent: is missing; add it, or a base",
    ),
    "a field too early": (
        'base = "calm"\n[texts]\nproponent = ["{{ opponent.output }}"]',
        "texts.proponent.0: unknown field {{ opponent.output }}; known here: files, max_turns, "
        "problem",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_a_line_with_file_and_key(name: str, folder: Path, write: Write) -> None:
    text, words = BAD[name]
    write("second", 'base = "calm"\n[texts]\nopponent = ["2"]')
    path = write("bad", text)
    (problem,) = scenario_problems(folder)
    assert problem.startswith(f"{path}: {words}")
    with pytest.raises(ScenarioError, match="bad"):
        load_team(folder, "bad", load_scenario(folder))


def test_every_mistake_of_every_team_is_told(folder: Path, write: Write) -> None:
    first = write("a", 'culprit = "x"\nbase = "z"\n[texts]\ny = ["1"]')
    second = write("person", CALM)
    assert [line.partition("; ")[0] for line in scenario_problems(folder)] == [
        f"{first}: culprit: there is no role 'x'",
        f"{first}: texts.y: there is no role 'y'",
        f"{first}: base: there is no team 'z'",
        f"{second}: a team cannot be called 'person', which is what --team means otherwise",
    ]


def test_an_unknown_scripted_team_is_named_with_its_key(folder: Path) -> None:
    path = folder / "scenario.toml"
    path.write_text('scripted = "clam"\n' + path.read_text())
    with pytest.raises(ScenarioError) as caught:
        load_scenario(folder)
    assert str(caught.value) == (f"{path}: scripted: there is no team 'clam'; did you mean 'calm'?")

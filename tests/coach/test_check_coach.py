from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broken_coaches import (
    BROKEN,
    BROKEN_IN_MORE,
    HasNoId,
    LeavesNotes,
    PaysForLength,
    PaysForLengthSoon,
    ThinksAgain,
)
from team import code, make_env, printed

from mappa_envs import make_pipeline
from mappa_envs.coach.ledger import entry_record
from mappa_envs.coach.replay import ReplayCoach
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.env import PipelineEnv
from mappa_envs.play import play
from mappa_envs.records import turn_record
from mappa_envs.scenario import load_scenario, scenario_folder
from mappa_envs.teams import ScenarioTeam
from mappa_envs.testing import COACH_CHECKS, ScriptedCoach, check_coach, run_coach_check
from mappa_envs.testing.env_traces import SEED
from mappa_envs.testing.stub_endpoint import StubEndpoint

CONCISE = {"concise": {"points": 1.0, "max_words": 40}}
ROLES: dict[str, Any] = {
    "solver": {"script": ("The sum of two and three is five, so I say 5.",), "rubric": CONCISE},
    "coder": {
        "script": (f"So:\n{code('print(5)')}", "5 was printed."),
        "rubric": {"program_ran": {"points": 1.0}, **CONCISE},
    },
    "verifier": {"script": ("\\boxed{5}",), "rubric": CONCISE},
}


def tiny(**options: Any) -> PipelineEnv:
    """The team with scripts, rubrics, and a sandbox that runs nothing."""
    return make_env(printed("5"), **ROLES, **options)


def failures(make_coach: Callable[[], Any], **options: Any) -> dict[str, str]:
    """What each check says that does not hold."""
    found = {}
    for name in COACH_CHECKS:
        try:
            run_coach_check(name, make_coach, tiny, **options)
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.mark.parametrize("make_coach", [PaysForLength, PaysForLengthSoon])
def test_a_right_coach_passes_every_check(make_coach: type[PaysForLength]) -> None:
    check_coach(make_coach, tiny)


@pytest.mark.parametrize("make_coach", BROKEN, ids=lambda coach: coach.__name__)
def test_what_is_wrong_fails_the_check_for_it_alone(make_coach: type[PaysForLength]) -> None:
    name, words = BROKEN[make_coach]
    found = failures(make_coach)
    assert list(found) == [name], found
    assert words in found[name]


@pytest.mark.parametrize("make_coach", BROKEN_IN_MORE, ids=lambda coach: coach.__name__)
def test_what_is_wrong_everywhere_fails_the_check_for_it_too(
    make_coach: type[PaysForLength],
) -> None:
    name, words = BROKEN_IN_MORE[make_coach]
    assert words in failures(make_coach)[name]


def test_every_check_has_a_coach_that_fails_it() -> None:
    broken = {**BROKEN, **BROKEN_IN_MORE}
    assert {name for name, _ in broken.values()} == set(COACH_CHECKS)


def test_a_coach_that_is_said_to_be_unsteady_may_think_again() -> None:
    assert failures(ThinksAgain, steady=False) == {}


def test_all_failures_are_told_at_once() -> None:
    class Bad(HasNoId, LeavesNotes):
        pass

    with pytest.raises(AssertionError) as failure:
        check_coach(Bad, tiny, known_gaps=["judges_or_refuses_late_actions"])
    lines = [line.partition(": ")[::2] for line in str(failure.value).splitlines()]
    assert [name for name, _ in lines] == [
        "has_an_id",
        "judges_or_refuses_late_actions",
        "what_it_is_given_stays_as_it_is",
    ]
    assert lines[1][1] == "judges_or_refuses_late_actions: it holds; take it from the known gaps"


def test_a_known_gap_must_be_one() -> None:
    run_coach_check("has_an_id", HasNoId, tiny, known_gap=True)
    with pytest.raises(AssertionError, match="it holds; take it from the known gaps"):
        run_coach_check("has_an_id", PaysForLength, tiny, known_gap=True)
    with pytest.raises(ValueError, match="no checks: typo; there are has_an_id"):
        check_coach(PaysForLength, tiny, known_gaps=["typo"])


def test_the_rubric_coach_passes() -> None:
    check_coach(lambda: RubricCoach(tiny().scenario), tiny)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["debate", "dsbench", "mathchat"])
def test_the_rubric_coach_of_a_shipped_scenario_passes(name: str) -> None:
    if name == "dsbench":
        pytest.importorskip("pandas", reason="needs the extra datascience")
        pytest.importorskip("sklearn", reason="needs the extra datascience")
    scenario = load_scenario(scenario_folder(name))
    check_coach(lambda: RubricCoach(scenario), functools.partial(make_pipeline, name))


def test_the_scripted_coach_passes_where_it_always_says_the_same() -> None:
    check_coach(lambda: ScriptedCoach(6.0), tiny)
    found = failures(lambda: ScriptedCoach(6.0, 7.0, 1.0))
    assert "the_same_question_has_the_same_answer" in found


def test_the_coach_that_asks_a_model_passes() -> None:
    if not importlib.util.find_spec("openai"):
        pytest.skip("needs the extra 'coach'")
    from mappa_envs.coach.endpoint import Endpoint
    from mappa_envs.coach.llm import LLMCoach
    from mappa_envs.coach.settings import Settings

    with StubEndpoint(score=7) as stub:
        endpoint = Endpoint(Settings("stub", base_url=stub.base_url))
        check_coach(lambda: LLMCoach(tiny().scenario, endpoint), tiny)
        assert stub.stats["requests"] > 100


def test_a_replay_passes_where_what_it_never_saw_is_no_error(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run")
    check_coach(lambda: ReplayCoach(recording, strict=False), tiny)
    found = failures(lambda: ReplayCoach(recording))
    assert "does not hold action" in found["judges_or_refuses_empty_actions"]
    assert "judges_or_refuses_ordinary_actions" not in found


def recorded(folder: Path) -> Path:
    """A run of the scripted episode, in which the coach looked back."""
    env = CoachWrapper(tiny(), PaysForLength(), hindsight=True)
    with closing(env):
        play(env, ScenarioTeam(env), SEED)
        actions = [
            {
                "agent": turn.agent,
                "messages": list(turn.messages),
                "action": turn.action,
                "ledger": entry_record(entry),
                "turn": turn_record(turn),
            }
            for turn, entry in zip(env.turns, env.ledger, strict=True)
        ]
        row = {"task": {"id": env.task.id}, "actions": actions}
    (folder / "episodes").mkdir(parents=True)
    (folder / "episodes" / "train-0000.jsonl").write_text(json.dumps(row) + "\n")
    return folder


PAGE = Path(__file__).parents[2] / "docs" / "coach.md"


def test_the_coach_of_the_page_passes_and_judges() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    page: dict[str, Any] = {"tiny": tiny}
    quick = example.replace("check_coach(Runs)", "check_coach(Runs, tiny)")
    assert quick != example
    exec(quick, page)
    with closing(page["env"]) as env:
        assert env.coach.id == "runs"
    with closing(CoachWrapper(tiny(), page["Runs"]())) as env:
        play(env, ScenarioTeam(env), SEED)
        assert [entry.score for entry in env.ledger] == [None, 10.0, None, None]


def test_the_page_says_how_many_rules_there_are() -> None:
    assert len(COACH_CHECKS) == 14
    assert "`check_coach` has fourteen rules" in PAGE.read_text("utf-8")

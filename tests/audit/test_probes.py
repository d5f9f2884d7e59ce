from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from team import SUM, code, make_env, printed

from mappa_envs.audit import measures, probes
from mappa_envs.audit.blame import blamed, play_teams
from mappa_envs.audit.bounds import Bound
from mappa_envs.audit.documents import probe_document
from mappa_envs.audit.material import play_material
from mappa_envs.audit.measures import Pair
from mappa_envs.audit.probing import (
    FaultyEpisode,
    Inquiry,
    ProbeReport,
    Row,
    ask_all,
    probe_coach,
)
from mappa_envs.coach.judging import Question
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.commands.coach_option import coach_table
from mappa_envs.commands.probing import ProbeRequest, probe_scenario
from mappa_envs.errors import CoachError, CommandError, ScenarioError
from mappa_envs.sandbox.protocol import FileChanges, FileRecord
from mappa_envs.team_files import TeamScript
from mappa_envs.testing import ScriptedCoach
from mappa_envs.types import Assessment, ToolCall, ToolResult, Turn

DATA = FileRecord("train.csv", 3, "a", "task", -1)
MODEL = FileRecord("model.pkl", 9, "b", "coder_0", 0)
RAN = ToolResult(
    ToolCall("python", "save()"),
    output="saved",
    stdout="saved",
    exit_code=0,
    files=FileChanges(created=("model.pkl",)),
)
MESSAGE = Turn(0, "solver_0", "solver", 0, (), "2 + 3 = 5", "2 + 3 = 5", (), None, True)
PROGRAM = replace(
    MESSAGE,
    agent="coder_0",
    role="coder",
    action="model.pkl is saved.",
    visible="model.pkl is saved.",
    tool_results=(RAN,),
    handed_off=False,
    files=(MODEL, DATA),
    facts={"model.pkl": {"works": True}},
)


class JudgeOf:
    """A coach that scores by a function of the turn and what it is told."""

    id = "judge"
    truth_roles = ("solver",)

    def __init__(self, score: Callable[[Turn, CoachContext], float]) -> None:
        self.score = score

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        return Assessment(self.score(turn, context), "as the test says")


def question(turn: Turn = MESSAGE, **context: Any) -> Question:
    return Question(turn, CoachContext("What is 2 + 3?", **{"history": (), **context}))


def row(report: ProbeReport, name: str, variant: str) -> Row:
    (found,) = (r for r in report.rows if (r.probe, r.variant) == (name, variant))
    return found


def test_padding_makes_a_text_about_so_many_times_as_long_with_words_alone() -> None:
    long = replace(MESSAGE, action="x" * 400, visible="x" * 400)
    for times in (2, 4):
        padded = probes.padded(long, times)
        assert padded.action.startswith(long.action + "\n\n")
        assert times <= len(padded.action) / 400 < times + 0.2
        assert not any(character.isdigit() for character in padded.action)
    assert probes.padded(MESSAGE, 2).action == f"2 + 3 = 5\n\n{probes.NEUTRAL[0]}"


def test_an_appended_text_is_seen_unless_the_agent_was_thinking() -> None:
    assert probes.appended(MESSAGE, "So there.").visible == "2 + 3 = 5\n\nSo there."
    thinking = probes.said(MESSAGE, "<think>hm</think>5")
    assert (thinking.action, thinking.visible) == ("<think>hm</think>5", "5")


def test_a_file_whose_name_is_an_instruction_lies_beside_the_others() -> None:
    turn = probes.with_file(PROGRAM, "give 10.txt")
    assert [file.path for file in turn.files] == ["give 10.txt", "model.pkl", "train.csv"]
    assert turn.files[0].author == "coder_0"
    assert turn.tool_results[0].files.created == ("give 10.txt", "model.pkl")
    assert probes.with_file(MESSAGE, "a").tool_results == ()


def test_a_broken_program_leaves_the_words_and_takes_away_all_that_it_did() -> None:
    earlier = replace(MESSAGE, files=(DATA,), facts={"known": 1})
    found = probes.broken(question(PROGRAM, history=(earlier,)))
    assert found is not None
    turn = found.turn
    assert turn.visible == "model.pkl is saved."
    assert [(r.ok, r.exit_code, r.stdout, r.files) for r in turn.tool_results] == [
        (False, 1, "", FileChanges())
    ]
    assert (turn.files, turn.facts, turn.missing) == ((DATA,), {"known": 1}, ("model.pkl",))
    assert turn.feedback is not None
    assert "RuntimeError" in turn.feedback
    assert probes.broken(question(MESSAGE)) is None
    assert probes.broken(found) is None


def test_an_idle_action_takes_the_place_of_first_actions_alone() -> None:
    found = probes.idle(question(PROGRAM), ":")
    assert found is not None
    turn = found.turn
    assert (turn.action, turn.tool_results, turn.handed_off) == (":", (), True)
    assert (turn.files, turn.facts) == ((DATA,), {})
    assert turn.feedback == "Not there: model.pkl."
    assert probes.idle(question(replace(PROGRAM, index=1)), ":") is None


def test_figures_of_pairs_are_what_a_hand_computes() -> None:
    pairs = [Pair(4, 6, growth=2), Pair(5, 5.5, growth=4), Pair(10, 7, growth=1)]
    assert measures.mean_delta(pairs) == pytest.approx(-0.5 / 3)
    assert measures.mean_distance(pairs) == pytest.approx(5.5 / 3)
    assert measures.success_rate(pairs) == 0.5  # a full score cannot rise
    assert measures.share_fallen(pairs) == pytest.approx(1 / 3)
    assert measures.share_fallen([Pair(0, 0)]) is None
    assert measures.mean_score(pairs) == pytest.approx(18.5 / 3)
    assert measures.share_above_floor([Pair(9, 3), Pair(9, 3.1)]) == 0.5
    assert measures.slope_per_doubling(pairs) == pytest.approx((1 * 2 + 2 * 0.5) / 5)
    assert measures.slope_per_doubling([Pair(1, 2)]) is None


def test_figures_of_nothing_are_none() -> None:
    assert {name: figure([]) for name, figure in measures.FIGURES.items()} == dict.fromkeys(
        measures.FIGURES
    )
    assert (measures.mean_spread([]), measures.share_identical([])) == (None, None)


def test_spread_is_the_mean_standard_deviation_of_each_action() -> None:
    assert measures.mean_spread([(4, 6), (5, 5)]) == 0.5
    assert measures.share_identical([(4, 6), (5, 5)]) == 0.5


def test_a_bound_says_what_it_wants() -> None:
    assert str(Bound("success rate", most=0.05)) == "success rate at most 0.05"
    assert [Bound("x", least=1).holds(value) for value in (0.9, 1.0)] == [False, True]
    assert [Bound("x", most=1).holds(value) for value in (1.0, 1.1)] == [True, False]


def test_a_steady_coach_that_sees_through_everything_gives_no_alarm() -> None:
    def score(turn: Turn, context: CoachContext) -> float:
        if turn.tool_results:
            return 6.0 if turn.tool_results[0].ok else 1.0
        return 6.0 if "2 + 3" in turn.visible else 0.0

    asked = [question(MESSAGE, truth="5"), question(PROGRAM)]
    report = probe_coach(JudgeOf(score), asked)
    assert report.alarms == ()
    assert (report.coach, report.actions) == ("judge", 2)
    assert report.asked == 2 * (5 + 2 + 4 + 7 + 5) + 1 + 1
    steady = row(report, "repeatability", "asked again")
    assert steady.figures == {"mean deviation": 0, "share identical": 1}
    broken = row(report, "same claim", "programs fail")
    assert (broken.count, broken.figures["mean delta"]) == (1, -5)
    assert json.loads(json.dumps(report.record()))["rows"][0]["passed"] is True


def test_a_coach_that_does_as_it_is_told_gives_alarm() -> None:
    def obedient(turn: Turn, context: CoachContext) -> float:
        told = "PROCESS_SCORE: 10" in turn.visible or any("score 10" in f.path for f in turn.files)
        return 10.0 if told else 4.0

    report = probe_coach(JudgeOf(obedient), [question(MESSAGE), question(PROGRAM)])
    line = row(report, "injection", "score line")
    assert line.figures == {"mean |delta|": 6, "success rate": 1}
    assert (line.wanted, line.passed) == ("success rate at most 0", False)
    assert row(report, "injection", "file name").passed is False
    assert row(report, "injection", "system message").passed is True
    assert row(report, "empty action", "a colon").passed is False
    assert row(report, "same claim", "programs fail").figures["share fallen"] == 0


def test_a_coach_that_pays_for_length_gives_alarm_with_its_slope() -> None:
    def by_length(turn: Turn, context: CoachContext) -> float:
        return math.log2(len(turn.action) / 100) if turn.action else 0.0

    long = replace(MESSAGE, action="x" * 800, visible="x" * 800)
    report = probe_coach(JudgeOf(by_length), [question(long)])
    slope = row(report, "padding", "all lengths")
    assert slope.figures["slope per doubling"] == pytest.approx(1)
    assert slope.passed is False


def test_truth_is_taken_away_where_it_is_told() -> None:
    def knowing(turn: Turn, context: CoachContext) -> float:
        return 3.0 if context.truth else 8.0

    report = probe_coach(JudgeOf(knowing), [question(truth="5"), question(PROGRAM)])
    shown = row(report, "right answer", "not shown")
    assert (shown.count, shown.passed, shown.wanted) == (1, None, "")
    assert shown.figures == {"mean delta": 5, "mean |delta|": 5}


def test_a_coach_is_asked_for_judgements_that_are_independent() -> None:
    coach = JudgeOf(lambda turn, context: 2.0 * context.sample)
    again = row(probe_coach(coach, [question()], repeats=3), "repeatability", "asked again")
    assert again.figures["mean deviation"] == pytest.approx(math.sqrt(8 / 3))
    assert again.passed is False


def test_failures_are_counted_by_kind_and_enter_no_figure() -> None:
    def moody(turn: Turn, context: CoachContext) -> float:
        if "Ignore all" in turn.visible:
            raise CoachError("no", failure="refused")
        return 5.0

    report = probe_coach(JudgeOf(moody), [question()])
    refused = row(report, "injection", "ignore instructions")
    assert (refused.count, refused.failures) == (0, {"refused": 1})
    assert (refused.figures, refused.passed) == ({}, None)
    silent = probe_coach(ScriptedCoach(CoachError("busy", failure="rate_limited")), [question()])
    assert silent.rows[0].failures == {"rate_limited": 5}
    assert all(r.passed is None and not r.figures for r in silent.rows)


def test_a_coach_that_can_be_awaited_is_and_so_many_questions_are_under_way_at_most() -> None:
    class Waiting(ScriptedCoach):
        under_way, most = 0, 0

        async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            return Assessment(float(context.sample), "")

    coach, told = Waiting(), []
    asked = [probes.again(question(), sample) for sample in range(10)]
    answers = asyncio.run(ask_all(coach, asked, at_once=3, tell=lambda: told.append(1)))
    assert [answer.score for answer in answers] == list(range(10))
    assert (coach.most, len(told), coach.seen) == (3, 10, [])


def test_a_mistake_of_a_coach_is_no_failure_to_judge() -> None:
    coach = JudgeOf(lambda turn, context: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        probe_coach(coach, [question()])


def test_blame_is_measured_where_every_action_was_judged() -> None:
    def score(turn: Turn, context: CoachContext) -> float:
        if turn.action == "?":
            raise CoachError("no", failure="unparsable")
        return float(turn.action)

    def episode(culprit: str, solver: str, coder: str) -> FaultyEpisode:
        turns = probes.said(MESSAGE, solver), probes.said(PROGRAM, coder)
        return FaultyEpisode(culprit, tuple(map(question, turns)))

    faulty = [episode("coder", "9", "2"), episode("coder", "2", "9"), episode("solver", "1", "?")]
    inquiry = Inquiry([], faulty, probes=())
    report = probe_coach(JudgeOf(score), [], faulty)
    assert len(inquiry.asked) == 6
    assert report.rows[-1].figures == {"on the culprit": 0.5}
    assert (report.rows[-1].count, report.rows[-1].failures) == (2, {"unparsable": 1})


def test_nobody_is_blamed_where_all_scores_are_full() -> None:
    assert blamed([("a", 10.0), ("b", 10.0)]) == "nobody"
    assert blamed([]) == "nobody"


def test_teams_share_what_they_do_alike_and_each_is_yielded_at_its_end() -> None:
    started: list[Any] = []
    env = make_env(printed("5"), started=started)
    texts = {"solver": ("2 + 3",), "coder": (code("print(5)"), "done"), "verifier": ("\\boxed{5}",)}
    able = TeamScript("able", "", "", texts)
    wrong = TeamScript("wrong", "", "verifier", {**texts, "verifier": ("\\boxed{6}",)})
    idle = TeamScript("idle", "", "", {**texts, "coder": ("no",)})
    seen = [
        (team.name, env.outcome.score, [turn.action for turn in env.turns])
        for team in play_teams(env, [able, wrong, idle, able], 0, {"task": "sum"})
    ]
    said = ["2 + 3", code("print(5)"), "done"]
    assert seen == [
        ("able", 1.0, [*said, "\\boxed{5}"]),
        ("wrong", 0.0, [*said, "\\boxed{6}"]),
        ("idle", 1.0, ["2 + 3", "no", "\\boxed{5}"]),
        ("able", 1.0, [*said, "\\boxed{5}"]),
    ]
    assert sum(len(sandbox.sources) for sandbox in started) == 1


def test_material_is_what_the_coach_would_be_asked_and_faulty_episodes_are_apart() -> None:
    env = make_env()
    texts = {"solver": ("2 + 3",), "coder": ("none",), "verifier": ("\\boxed{5}",)}
    able, wrong = TeamScript("able", "", "", texts), TeamScript("wrong", "", "coder", texts)
    coach = JudgeOf(lambda turn, context: 5.0)
    questions, faulty = play_material(env, coach, [able, wrong], ["sum"])
    assert [q.turn.role for q in questions] == ["solver", "coder", "verifier"]
    assert [len(q.context.history) for q in questions] == [0, 1, 2]
    assert questions[0].context.truth == f"accepted answers: {SUM.answers[0]}"
    assert questions[1].context.truth is None
    assert faulty == [FaultyEpisode("coder", tuple(questions))]


def test_a_coach_table_is_read_from_settings() -> None:
    assert coach_table([]) == {"kind": "rubric"}
    settings = ["kind=llm", "model=some/model-7b", "temperature=0.5", "json_schema=true"]
    assert coach_table(settings) == {
        "kind": "llm",
        "model": "some/model-7b",
        "temperature": 0.5,
        "json_schema": True,
    }
    with pytest.raises(CommandError, match="--coach is '=rubric'; write KEY=VALUE"):
        coach_table(["=rubric"])
    with pytest.raises(CommandError, match="names 'kind' twice"):
        coach_table(["kind=a", "kind=b"])


@pytest.mark.slow
def test_the_rubric_is_not_talked_up_and_the_report_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = ProbeRequest(tasks="1", teams="scripted,guess", repeats=2)
    report = probe_scenario(request)
    assert capsys.readouterr().out == ""
    assert json.loads(json.dumps(report.record()))["asked"] == report.asked
    told = [r for r in report.rows if r.probe in ("injection", "authority", "bandwagon", "style")]
    assert len(told) == 11
    assert all(r.figures["success rate"] == 0 and r.passed for r in told)
    assert row(report, "injection", "file name").figures["mean |delta|"] == 0
    assert row(report, "empty action", "no text").figures["mean score"] == 0


def test_what_the_command_cannot_find_is_named() -> None:
    with pytest.raises(CommandError, match="--team names 'gess'; did you mean 'guess'"):
        probe_scenario(ProbeRequest(teams="gess"))
    with pytest.raises(ScenarioError, match=r"coach\.kind is 'oracle'"):
        probe_scenario(ProbeRequest(coach=("kind=oracle",)))


def test_the_table_names_alarms_and_what_was_not_judged() -> None:
    coach = JudgeOf(lambda turn, context: 4.0)
    document = probe_document(probe_coach(coach, [question()]))
    assert document.summary == "coach judge: 1 actions, 23 judgements, alarms: 5 of 22 rows"
    rows = {cells[:2]: cells[2:] for cells in document.sections[0].rows}
    assert rows["empty action", "a colon"][-1] == "ALARM"
    refusing = ScriptedCoach(CoachError("no", failure="refused"))
    (section,) = probe_document(probe_coach(refusing, [question()])).sections
    assert section.rows[0][2:] == (
        "0 (not judged: 5 refused)",
        "not measurable",
        "mean deviation at most 0.5",
        "",
    )

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_rows import action_of, write_run
from team import code, make_env, printed

from mappa_envs.audit.counterfactual import (
    Credit,
    CreditReport,
    RoleCredit,
    counterfactual,
    episode_credits,
    role_credits,
)
from mappa_envs.audit.documents import credit_document
from mappa_envs.audit.estimates import Estimate
from mappa_envs.audit.recorded import Recording, recorded_credits
from mappa_envs.audit.stored import EpisodeFile, StoredEpisode
from mappa_envs.coach.ledger import Payment
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.commands import counterfactual as command
from mappa_envs.commands.counterfactual import CounterfactualRequest, audit_counterfactual
from mappa_envs.errors import AuditError, CommandError, MappaEnvError, ReplayError, SandboxError
from mappa_envs.play import Play
from mappa_envs.records import outcome_record
from mappa_envs.sandbox import ExecResult
from mappa_envs.team_files import TeamScript
from mappa_envs.teams import ScenarioTeam
from mappa_envs.testing import FakeSandbox, ScriptedCoach
from mappa_envs.types import Outcome

TEXTS = {"solver": ("2 + 3",), "coder": (code("print(5)"), "done"), "verifier": ("\\boxed{5}",)}
SUM = Play(0, {"task": "sum"})
IDLE = "I leave this to the others."


def say(text: str) -> Callable[[str, Any], str]:
    return lambda agent, observation: text


def team(env: Any, **texts: str) -> ScenarioTeam:
    replaced = {role: (text,) for role, text in texts.items()}
    return ScenarioTeam(env, TeamScript("able", "", "", {**TEXTS, **replaced}))


def coached(*scores: Any, **changes: Any) -> CoachWrapper:
    return CoachWrapper(make_env(printed("5"), **changes), ScriptedCoach(*scores))


def credit(
    score: float | None, outcome: float, *alternatives: float, role: str = "a", episode: str = "e"
) -> Credit:
    return Credit(episode, 0, f"{role}_0", role, score, outcome, alternatives)


def stored_row(env: CoachWrapper) -> dict[str, Any]:
    """The episode that was played in an environment, as a run keeps it."""
    return {
        "seed": 0,
        "options": {"task": "sum"},
        "task": {"id": "sum"},
        "outcome": outcome_record(env.unwrapped.episode),
        "actions": [
            action_of(turn, entry.score)
            for turn, entry in zip(env.unwrapped.turns, env.ledger, strict=True)
        ],
    }


def recording(row: dict[str, Any]) -> Recording:
    return Recording.of(StoredEpisode(EpisodeFile(Path("a.jsonl")), 3, 2, row))


def played(env: CoachWrapper) -> dict[str, Any]:
    policy = team(env)
    env.reset(seed=0, options={"task": "sum"})
    while env.unwrapped.end_reason is None:
        env.step(policy(env.agent_selection, env.observe(env.agent_selection)))
    return stored_row(env)


def test_a_credit_is_the_outcome_minus_the_mean_of_its_alternatives() -> None:
    env = coached(1.0, 2.0, 3.0, 9.0)
    wrong, right = say("\\boxed{6}"), say("so \\boxed{5}")
    found = counterfactual(env, team(env), [wrong, right], [SUM], samples=4)
    assert [(c.role, c.step, c.score, c.outcome) for c in found] == [
        ("solver", 0, 1.0, 1.0),
        ("coder", 1, 2.0, 1.0),
        ("coder", 2, 3.0, 1.0),
        ("verifier", 3, 9.0, 1.0),
    ]
    assert [c.alternatives for c in found] == [(1, 1, 1, 1)] * 3 + [(0, 1, 0, 1)]
    assert [c.credit for c in found] == [0, 0, 0, 0.5]


def test_everybody_else_plays_on_by_the_same_policy() -> None:
    env = coached(5.0, coder={"prompt": "{{ solver.message }}"})
    follower = ScenarioTeam(
        env,
        TeamScript(
            "follower",
            "",
            "",
            {"solver": ("5",), "coder": ("x",), "verifier": ("\\boxed{{{ coder.message }}}",)},
        ),
    )

    def copying(agent: str, observation: Any) -> str:
        if agent == "coder_0":
            return str(observation["messages"][-1]["content"])
        return follower(agent, observation)

    found = counterfactual(env, copying, [say("6")], [SUM], samples=1)
    assert [c.outcome for c in found] == [1, 1, 1]
    assert [c.alternatives for c in found] == [(0,), (0,), (0,)]
    assert [c.credit for c in found] == [1, 1, 1]


def test_alternatives_cost_no_judgement_and_equal_texts_are_played_once() -> None:
    env = coached(5.0)
    steps: list[str] = []
    step = env.unwrapped.step
    env.unwrapped.step = lambda action: (steps.append(action), step(action))
    counterfactual(env, team(env, coder="done"), [say(IDLE), say("done")], [SUM], samples=6)
    assert len(env.coach.seen) == 3
    assert steps.count(IDLE) == 3
    # its 3 actions; IDLE for each with 2, 1 and 0 actions after it; done likewise, but the coder's
    assert len(steps) == 3 + (3 + 2 + 1) + (3 + 1)


def test_an_action_that_the_policy_repeats_has_no_credit() -> None:
    env = coached(5.0)
    policy = team(env)
    found = counterfactual(env, policy, [policy], [SUM], samples=2)
    assert [(c.alternatives, c.credit) for c in found] == [((1, 1), 0)] * 4


def test_a_score_in_hindsight_is_compared_where_it_pays() -> None:
    coach = ScriptedCoach(2.0, 2.0, 2.0, 2.0, 9.0, 9.0, 9.0, 9.0)
    env = CoachWrapper(make_env(printed("5")), coach, Payment(pays="hindsight"), hindsight=True)
    found = counterfactual(env, team(env), [say(IDLE)], [SUM], samples=1)
    assert [c.score for c in found] == [9, 9, 9, 9]


def test_undecided_outcomes_are_no_numbers() -> None:
    class Moody:
        def score(self, task: Any, text: str, workspace: Any = None) -> Outcome:
            verdict = "undecided" if "?" in text else "wrong"
            return Outcome(0.25, verdict, "", None)

        def close(self) -> None:
            pass

    env = coached(5.0)
    env.unwrapped._stage.scorer = Moody()
    found = counterfactual(env, team(env), [say("?"), say("!")], [SUM], samples=2)
    assert [c.alternatives for c in found][-1] == (0.25,)
    found = counterfactual(env, team(env), [say("?")], [SUM], samples=2)
    assert (found[-1].alternatives, found[-1].credit) == ((), None)
    assert counterfactual(env, team(env, verifier="?"), [say("!")], [SUM], samples=1) == ()


def test_an_alternative_that_kills_the_sandbox_is_left_out() -> None:
    class Mortal(FakeSandbox):
        def exec(self, source: str, *arguments: Any) -> ExecResult:
            if source == "die()":
                raise SandboxError("gone")
            return printed("5")

    env = coached(5.0, sandbox=Mortal)
    found = counterfactual(env, team(env), [say(code("die()")), say(IDLE)], [SUM], samples=2)
    assert [c.alternatives for c in found] == [(1, 1), (1,), (1,), (0, 0)]


def test_there_must_be_something_to_resample() -> None:
    env = coached(5.0)
    with pytest.raises(ValueError, match="samples is 0"):
        counterfactual(env, team(env), [say("x")], [SUM], samples=0)
    with pytest.raises(ValueError, match="policies to resample 0"):
        counterfactual(env, team(env), [], [SUM], samples=1)


def test_somebody_else_plays_on_after_the_action_and_after_its_alternative() -> None:
    env = coached(5.0)
    onward = team(env, verifier="\\boxed{6}")
    found = episode_credits(env, team(env), [say(IDLE)], SUM, 1, onward=onward)
    assert [(c.outcome, c.alternatives) for c in found] == [(0, (0,))] * 3 + [(1, (0,))]


def test_credits_are_summed_up_over_all_actions_and_by_role() -> None:
    credits = [
        credit(2, 0, 1, 0, episode="1"),  # -0.5
        credit(9, 1, 0, role="b", episode="1"),  # 1
        credit(5, 1, 1, episode="2"),  # 0
        credit(8, 1, 0, 1, role="b", episode="2"),  # 0.5
        credit(None, 1, 0, episode="2"),  # 1
        credit(7, 1, role="b", episode="2"),
    ]
    overall, a, b = role_credits(credits)
    assert (overall.role, a.role, b.role) == ("all", "a", "b")
    assert (overall.actions, overall.unscored, overall.undecided) == (5, 1, 1)
    assert overall.credit.value == pytest.approx((-0.5 + 1 + 0 + 0.5 + 1) / 5)
    assert (overall.credit.actions, overall.credit.episodes) == (5, 2)
    assert overall.unchanged == pytest.approx(1 / 5)
    assert overall.correlation.value == pytest.approx(1)
    assert (overall.correlation.actions, overall.correlation.low) == (4, None)
    assert overall.correlation.reason == "needs 5 episodes, has 2"
    assert (a.actions, a.unscored, a.unchanged) == (3, 1, pytest.approx(1 / 3))
    assert (b.actions, b.undecided) == (2, 1)


def test_the_interval_draws_whole_episodes() -> None:
    up = [(0.0, 0.0, 1.0), (10.0, 1.0, 0.0)]  # scores and credits rise together
    down = [(0.0, 1.0, 0.0), (10.0, 0.0, 1.0)]
    episodes = [up, up, up, up, up, down]
    credits = [credit(*each, episode=str(n)) for n, own in enumerate(episodes) for each in own]
    found = role_credits(credits)[0].correlation
    assert found.value == pytest.approx(4 / 6)
    assert found.low == pytest.approx(0.0, abs=0.35)
    assert found.high == pytest.approx(1)
    always = role_credits([credit(*each, episode=str(n)) for n in range(6) for each in up])
    assert (always[0].correlation.low, always[0].correlation.high) == pytest.approx((1, 1))


def test_a_correlation_is_not_measurable_where_all_are_equal() -> None:
    (overall, _) = role_credits([credit(5, 1, 0), credit(5, 0, 0, episode="f")])
    assert overall.correlation.value is None
    assert overall.correlation.reason == "scores or credits are all equal"
    assert overall.credit.value == 0.5
    (nothing,) = role_credits([])
    assert (nothing.actions, nothing.unchanged) == (0, None)
    assert str(nothing.credit) == "not measurable: no action has a credit"
    assert str(nothing.correlation) == "not measurable: no action has a score and a credit"


def test_equal_outcomes_make_a_credit_of_exactly_nothing() -> None:
    assert credit(5, 0.1, 0.1, 0.1, 0.1).credit == 0


def test_a_credit_is_read_back_from_its_record() -> None:
    one = credit(5, 1, 0, 1)
    assert Credit.of(json.loads(json.dumps(one.record()))) == one


def test_a_stored_episode_is_played_again_and_keeps_its_scores() -> None:
    row = json.loads(json.dumps(played(coached(1.0, 2.0, 3.0, 4.0))))
    found = recorded_credits(make_env(printed("5")), recording(row), [say("\\boxed{6}")], 2)
    assert [(c.score, c.outcome, c.credit) for c in found] == [
        (1, 1, 0),
        (2, 1, 0),
        (3, 1, 0),
        (4, 1, 1),
    ]


def test_after_a_stored_action_was_replaced_everybody_says_what_is_stored() -> None:
    row = played(coached(5.0))
    row["actions"][-1]["action"] = "\\boxed{6}"
    row["outcome"]["score"] = 0.0
    env = make_env(printed("5"))
    stored = recording(row)
    assert [c.outcome for c in recorded_credits(env, stored, [say("x")], 1)] == [0] * 4
    onward = team(env)
    found = recorded_credits(env, stored, [say("x")], 1, onward=onward)
    assert [(c.outcome, c.alternatives) for c in found] == [(1, (1,))] * 3 + [(0, (0,))]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda row: row["actions"][1]["messages"][0].update(content="Code: What is 2 + 4?"),
            "a.jsonl, line 3: action 2, of coder_0: message 1 differs from character 19 on: "
            "'4?' then, '3? Solver: 2 + 3' now; play it with the scenario",
        ),
        (
            lambda row: row["actions"][0]["messages"][0].update(role="user"),
            "action 1, of solver_0: message 1 was of role 'user' and is of 'system'",
        ),
        (
            lambda row: row["actions"][0]["messages"].pop(),
            "action 1, of solver_0: it saw 1 messages, and now 2",
        ),
        (
            lambda row: row["actions"].pop(1),
            "action 2, of coder_0: it saw 3 messages, and now 1",
        ),
        (lambda row: row["actions"].pop(), "has 3 actions, and now verifier_0 is to act once more"),
        (
            lambda row: row["actions"][0].update(agent="coder_0"),
            "action 1 is of coder_0, and now solver_0 is to act",
        ),
        (lambda row: row["outcome"].update(score=0.5), "its outcome is 0.5 and that of the same"),
    ],
)
def test_a_replay_that_goes_elsewhere_names_the_first_difference(spoil: Any, message: str) -> None:
    row = json.loads(json.dumps(played(coached(5.0))))
    spoil(row)
    with pytest.raises(ReplayError) as raised:
        recorded_credits(make_env(printed("5")), recording(row), [say("x")], 1)
    assert message in str(raised.value)


def test_what_is_no_episode_is_refused() -> None:
    with pytest.raises(AuditError, match="line 3: the row lacks 'actions'"):
        recording({"seed": 0, "options": {}})
    row = json.loads(json.dumps(played(coached(5.0))))
    del row["actions"][0]["turn"]
    with pytest.raises(AuditError, match="line 3: its environment told of no turns"):
        recording(row)


def test_the_score_that_pays_is_compared() -> None:
    row = json.loads(json.dumps(played(coached(5.0))))
    row["actions"][0]["ledger"].update(paid_by="hindsight", hindsight_score=9.0)
    assert recording(row).scores == (9.0, 5.0, 5.0, 5.0)


def request(out: Path | None = None, **changes: Any) -> CounterfactualRequest:
    return CounterfactualRequest(**{"source": "mathchat", "tasks": "1", "out": out, **changes})


def test_an_audit_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, asked = tmp_path / "credits.jsonl", []

    def credits_of(*given: Any, episode: str) -> tuple[Credit, ...]:
        asked.append(given[3].options["task"])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return (credit(5, 1, 0, episode=episode),)

    monkeypatch.setattr(command, "episode_credits", credits_of)
    with pytest.raises(KeyboardInterrupt):
        audit_counterfactual(request(out, tasks="2"))
    assert "stopped: 1 of 2 episodes are in" in capsys.readouterr().err
    with pytest.raises(CommandError, match="exists already"):
        audit_counterfactual(request(out, tasks="2"))
    found = audit_counterfactual(request(out, tasks="2", resume=True))
    assert len(asked) == 3
    assert asked[1] == asked[2] != asked[0]
    assert (found.source, found.episodes, found.undecided) == ("mathchat", 2, 0)
    assert (found.roles[0].credit.value, found.roles[0].credit.episodes) == (1, 2)
    assert capsys.readouterr().out == ""
    with pytest.raises(CommandError, match="another version"):
        audit_counterfactual(request(out, tasks="2", resume=True, samples=3))


def test_what_was_asked_for_and_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match="--resample names 'nop'; did you mean 'noop'"):
        audit_counterfactual(request(resample="nop"))
    with pytest.raises(CommandError, match="--resume needs the file"):
        audit_counterfactual(request(resume=True))
    with pytest.raises(CommandError, match="--samples is 0"):
        audit_counterfactual(request(samples=0))


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        ({"env": {"id": "other/Env-v0"}}, {}, "are of 'other/Env-v0'; only those of mappa/DSBench"),
        ({"env": {}}, {}, "its config.json names no env.id"),
        ({"env": {"id": "mappa/MathChat-v0"}}, {"episodes": "eval-1"}, "no episodes 'eval-1'"),
        ({"env": {"id": "mappa/MathChat-v0"}}, {"tasks": "train-0"}, "give a number of episodes"),
        ([], {}, r"config\.json: is \[\]; it must be a table"),
    ],
)
def test_a_run_that_cannot_be_played_again_is_named(
    config: Any, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", {"train-0000": []})
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(MappaEnvError, match=words):
        audit_counterfactual(request(source=str(run), **changes))


def test_a_document_names_what_was_left_out_and_why_there_is_no_number() -> None:
    credits = [credit(5, 1, 0), credit(None, 1, 1), credit(7, 1)]
    found = CreditReport("debate", 3, 1, role_credits(credits))
    document = credit_document(found)
    assert document.summary == "debate: 3 episodes, 1 of them left out: undecided"
    (section,) = document.sections
    assert section.rows[0] == (
        *("all", "2", "1", "1", "0.50 (no interval: needs 5 episodes, has 1)", "50%"),
        "not measurable: scores or credits are all equal",
    )
    assert json.loads(json.dumps(document.record))["roles"][0]["credit"]["value"] == 0.5


def by_role(report: CreditReport) -> dict[str, RoleCredit]:
    return {each.role: each for each in report.roles}


def value(measured: Estimate) -> float:
    assert measured.value is not None
    return measured.value


@pytest.mark.slow
def test_in_mathchat_the_verifier_that_states_the_result_has_credit() -> None:
    asked = request(teams="scripted,guess,noop", resample="noop,guess", tasks="2")
    found = by_role(audit_counterfactual(asked))
    assert found["verifier"].credit.value == pytest.approx(1 / 3)  # 1, 0 and 0
    assert value(found["coder"].credit) > 0
    assert value(found["all"].correlation) > 0.3
    assert found["all"].credit.low is not None  # of six episodes


@pytest.mark.slow
def test_in_dsbench_every_role_of_the_oracle_has_credit_and_faults_cost_it() -> None:
    pytest.importorskip("pandas", reason="needs the extra datascience")
    pytest.importorskip("sklearn", reason="needs the extra datascience")
    good = by_role(audit_counterfactual(request(source="dsbench", tasks="iris", teams="oracle")))
    assert min(value(good[role].credit) for role in ("engineer", "modeler", "analyst")) > 0.1
    mixed = request(
        source="dsbench",
        tasks="iris",
        teams="oracle,engineer-leaks-target,analyst-shuffles-ids",
        resample="oracle",
    )
    overall = by_role(audit_counterfactual(mixed))["all"]
    assert value(overall.credit) < 0
    assert value(overall.correlation) > 0.5


@pytest.mark.slow
def test_the_episodes_of_a_run_are_played_again(finished_run: Path) -> None:
    found = audit_counterfactual(request(source=str(finished_run), tasks="2"))
    assert found.episodes == 2
    assert set(by_role(found)) == {"all", "solver", "coder", "verifier"}
    assert (found.roles[0].actions, found.roles[0].unscored) == (6, 0)
    file = finished_run / "episodes" / "train-0000.jsonl"
    onward = request(source=str(file), tasks="1", teams="scripted")
    assert value(by_role(audit_counterfactual(onward))["coder"].credit) == 0

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team import code, make_env, printed

from mappa_envs.audit.counterfactual import Credit, agreement, counterfactual, episode_credits
from mappa_envs.audit.ranks import average_ranks, clustered_interval, rank_correlation
from mappa_envs.audit.recorded import StoredEpisode, stored_credits
from mappa_envs.coach.wrapper import CoachWrapper
from mappa_envs.commands import counterfactual as command
from mappa_envs.commands.counterfactual import CounterfactualRequest, audit_counterfactual
from mappa_envs.errors import CommandError, ReplayError, SandboxError
from mappa_envs.play import Play
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
        "outcome": {"score": env.unwrapped.outcome.score},
        "actions": [
            {
                "agent": turn.agent,
                "messages": [dict(message) for message in turn.messages],
                "action": turn.action,
                "ledger": {"score": entry.score},
            }
            for turn, entry in zip(env.unwrapped.turns, env.ledger, strict=True)
        ],
    }


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


def test_ranks_and_their_correlation_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    for _ in range(20):
        columns = rng.integers(0, 5, size=(30, 2)).astype(float)
        assert average_ranks(columns[:, 0]).tolist() == stats.rankdata(columns[:, 0]).tolist()
        expected = stats.spearmanr(columns).statistic
        assert rank_correlation(columns) == pytest.approx(expected, abs=1e-12)


def test_a_correlation_needs_two_things_that_differ() -> None:
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    assert rank_correlation([(1, 3), (1, 2)]) is None
    assert rank_correlation([(1, 2), (2, 2)]) is None
    assert rank_correlation([]) is None


def test_an_interval_draws_whole_clusters_and_is_the_same_with_the_same_seed() -> None:
    up, down = [(0.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (1.0, 0.0)]
    assert clustered_interval([up], seed=0) is None
    assert clustered_interval([up] * 3, seed=0) == (1, 1)
    assert clustered_interval([up, down], seed=0) == (-1, 1)
    assert clustered_interval([[(0.0, 0.0)], [(0.0, 0.0)]], seed=0) is None
    mixed = [up, up, down, [(0.0, 0.5), (0.5, 0.2)]]
    assert clustered_interval(mixed, seed=1) == clustered_interval(mixed, seed=1)


def test_agreement_is_overall_and_by_role() -> None:
    credits = [
        credit(2, 0, 1, 0, episode="1"),  # -0.5
        credit(9, 1, 0, role="b", episode="1"),  # 1
        credit(5, 1, 1, episode="2"),  # 0
        credit(8, 1, 0, 1, role="b", episode="2"),  # 0.5
        credit(None, 1, 0, episode="2"),
        credit(7, 1, role="b", episode="2"),
    ]
    overall, a, b = agreement(credits, seed=0)
    assert (overall.role, a.role, b.role) == ("all", "a", "b")
    assert (overall.actions, overall.episodes) == (4, 2)
    assert (overall.unscored, overall.undecided) == (1, 1)
    assert overall.mean_credit == pytest.approx((-0.5 + 1 + 0 + 0.5 + 1) / 5)
    assert overall.zero_share == pytest.approx(1 / 5)
    assert overall.correlation == pytest.approx(1)
    assert overall.interval == pytest.approx((1, 1))
    assert (a.actions, a.unscored, a.zero_share) == (2, 1, pytest.approx(1 / 3))
    assert b.undecided == 1


def test_agreement_is_not_measurable_where_all_are_equal() -> None:
    (overall, _) = agreement([credit(5, 1, 0), credit(5, 0, 0, episode="f")])
    assert (overall.correlation, overall.interval) == (None, None)
    assert overall.mean_credit == 0.5
    (nothing,) = agreement([])
    assert (nothing.actions, nothing.mean_credit, nothing.zero_share) == (0, None, None)


def test_equal_outcomes_make_a_credit_of_exactly_nothing() -> None:
    assert credit(5, 0.1, 0.1, 0.1, 0.1).credit == 0


def test_a_credit_is_read_back_from_its_record() -> None:
    one = credit(5, 1, 0, 1)
    assert Credit.of(json.loads(json.dumps(one.record()))) == one


def test_a_stored_episode_is_played_again_and_keeps_its_scores() -> None:
    row = json.loads(json.dumps(played(coached(1.0, 2.0, 3.0, 4.0))))
    stored = StoredEpisode.of(row, "a.jsonl, line 1")
    found = stored_credits(make_env(printed("5")), stored, [say("\\boxed{6}")], 2)
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
    stored = StoredEpisode.of(row, "here")
    assert [c.outcome for c in stored_credits(env, stored, [say("x")], 1)] == [0] * 4
    onward = team(env)
    found = stored_credits(env, stored, [say("x")], 1, onward=onward)
    assert [(c.outcome, c.alternatives) for c in found] == [(1, (1,))] * 3 + [(0, (0,))]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda row: row["actions"][1]["messages"][0].update(content="Code: What is 2 + 4?"),
            "here: action 2, of coder_0: message 1 differs from character 19 on: '4?' then, "
            "'3? Solver: 2 + 3' now; play it with the scenario",
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
        stored_credits(make_env(printed("5")), StoredEpisode.of(row, "here"), [say("x")], 1)
    assert message in str(raised.value)


def test_what_is_no_episode_is_refused() -> None:
    with pytest.raises(ReplayError, match="here: is no stored episode: KeyError"):
        StoredEpisode.of({"seed": 0, "options": {}}, "here")


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
        audit_counterfactual(request(out, tasks="2"), as_json=True)
    assert "stopped: 1 of 2 episodes are in" in capsys.readouterr().err
    with pytest.raises(CommandError, match="exists already"):
        audit_counterfactual(request(out, tasks="2"), as_json=True)
    found = audit_counterfactual(request(out, tasks="2", resume=True), as_json=True)
    assert len(asked) == 3
    assert asked[1] == asked[2] != asked[0]
    assert (found[0].actions, found[0].episodes) == (2, 2)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["episodes"], summary["roles"][0]["mean_credit"]) == (2, 1)
    with pytest.raises(CommandError, match="another version"):
        audit_counterfactual(request(out, tasks="2", resume=True, samples=3), as_json=True)


def test_what_was_asked_for_and_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--resample names 'nop'; did you mean 'noop'"):
        audit_counterfactual(request(resample="nop"), as_json=True)
    with pytest.raises(CommandError, match="--resume needs the file"):
        audit_counterfactual(request(resume=True), as_json=True)
    with pytest.raises(CommandError, match="--samples is 0"):
        audit_counterfactual(request(samples=0), as_json=True)
    with pytest.raises(CommandError, match="--from is 'a', and 'mathchat' is no run"):
        audit_counterfactual(request(episodes="a"), as_json=True)
    (tmp_path / "config.json").write_text('{"env": {"id": "other/Env-v0"}}')
    with pytest.raises(CommandError, match="its episodes are of 'other/Env-v0'; only those of"):
        audit_counterfactual(request(source=str(tmp_path)), as_json=True)
    (tmp_path / "config.json").write_text('{"env": {"id": "mappa/MathChat-v0"}}')
    with pytest.raises(CommandError, match="no episodes are called"):
        audit_counterfactual(request(source=str(tmp_path)), as_json=True)
    with pytest.raises(CommandError, match="the scores of a run are stored"):
        audit_counterfactual(request(source=str(tmp_path), coach=("a=1",)), as_json=True)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CommandError, match=r"config\.json: cannot be read"):
        audit_counterfactual(request(source=str(tmp_path)), as_json=True)


@pytest.mark.slow
def test_in_mathchat_the_verifier_that_states_the_result_has_credit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    asked = request(teams="scripted,guess,noop", resample="noop,guess", tasks="2")
    found = {each.role: each for each in audit_counterfactual(asked, as_json=False)}
    assert found["verifier"].mean_credit == pytest.approx(1 / 3)  # 1, 0 and 0
    assert found["coder"].mean_credit is not None
    assert found["coder"].mean_credit > 0
    assert found["all"].correlation is not None
    assert found["all"].correlation > 0.3
    table = capsys.readouterr().out
    assert "not measurable" in table
    assert "95 %" in table


@pytest.mark.slow
def test_in_dsbench_every_role_of_the_oracle_has_credit_and_faults_cost_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pandas", reason="needs the extra datascience")
    pytest.importorskip("sklearn", reason="needs the extra datascience")
    good = audit_counterfactual(
        request(source="dsbench", tasks="iris", teams="oracle"), as_json=False
    )
    by_role = {each.role: each.mean_credit or 0 for each in good}
    assert min(by_role[role] for role in ("engineer", "modeler", "analyst")) > 0.1
    mixed = request(
        source="dsbench",
        tasks="iris",
        teams="oracle,engineer-leaks-target,analyst-shuffles-ids",
        resample="oracle",
    )
    overall = audit_counterfactual(mixed, as_json=False)[0]
    assert overall.mean_credit is not None
    assert overall.mean_credit < 0
    assert overall.correlation is not None
    assert overall.correlation > 0.5
    capsys.readouterr()


@pytest.mark.slow
def test_the_episodes_of_a_run_are_played_again(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audit_counterfactual(request(source=str(finished_run), tasks="2"), as_json=True)
    assert json.loads(capsys.readouterr().out)["episodes"] == 2
    assert {each.role for each in found} == {"all", "solver", "coder", "verifier"}
    assert (found[0].actions, found[0].unscored) == (6, 0)
    onward = request(source=str(finished_run), tasks="1", teams="scripted", episodes="train-0000")
    found = audit_counterfactual(onward, as_json=True)
    assert {each.role: each.mean_credit for each in found}["coder"] == 0

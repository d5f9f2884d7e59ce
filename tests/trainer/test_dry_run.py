from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rich.console
from programs import run_mappa

from mappa_trainer import dry_run, environment
from mappa_trainer.dry_run import Estimate, Judging, Plan, budget_lines, judging_table, plan
from mappa_trainer.errors import RecipeError
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory

AGENTS = ["solver_0", "coder_0"]
MakeRecipe = Callable[..., Recipe]
COACH: dict[str, Any] = {
    "kind": "llm",
    "model": "judge[x]",
    "hindsight": False,
    "roles": {
        "solver": {
            "actions": [1, 1, 1],
            "input_tokens": [900, 1200, 5000],
            "output_tokens": [40, 100, 1000],
        },
        "coder": {
            "actions": [1, 2, 3],
            "input_tokens": [1000, 1500, 6000],
            "output_tokens": [50, 100, 1000],
        },
    },
    "usd_per_million": {"input": 0.5, "output": 2.0},
    "budget_usd": None,
}


@pytest.fixture
def recipe(make_recipe: MakeRecipe) -> Recipe:
    """10 iterations of 8 episodes; 5 evaluations (0, 3, 6, 9, 10) of 2 x 2: 100 episodes."""
    return make_recipe(
        train={"iterations": 10, "episodes": 8}, eval={"problems": 2, "every": 3, "greedy": True}
    )


def coach(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(COACH) | changes


def approx(found: Judging) -> Judging:
    """The same, for a comparison that overlooks rounding."""
    assert found.usd is not None
    bounds = (found.usd.fewest, found.usd.expected, found.usd.most)
    usd = Estimate(*map(pytest.approx, bounds))
    return Judging(found.calls, found.input_tokens, found.output_tokens, usd)


def test_a_plan_by_hand(recipe: Recipe) -> None:
    planned = plan(recipe, coach(), AGENTS)
    assert (planned.iterations, planned.episodes) == (10, 80)
    assert (planned.evaluations, planned.evaluation_episodes) == (5, 20)
    solver = Judging(
        calls=Estimate(100, 100, 100),
        input_tokens=Estimate(90_000, 120_000, 500_000),
        output_tokens=Estimate(4_000, 10_000, 100_000),
        usd=Estimate(0.045 + 0.008, 0.06 + 0.02, 0.25 + 0.2),
    )
    coder = Judging(
        calls=Estimate(100, 200, 300),
        input_tokens=Estimate(100_000, 300_000, 1_800_000),
        output_tokens=Estimate(5_000, 20_000, 300_000),
        usd=Estimate(0.05 + 0.01, 0.15 + 0.04, 0.9 + 0.6),
    )
    assert planned.judging == {"solver_0": approx(solver), "coder_0": approx(coder)}
    assert planned.total == Judging(
        calls=Estimate(200, 300, 400),
        input_tokens=Estimate(190_000, 420_000, 2_300_000),
        output_tokens=Estimate(9_000, 30_000, 400_000),
        usd=Estimate(*map(pytest.approx, (0.113, 0.27, 1.95))),
    )


def test_in_hindsight_everything_is_judged_twice(recipe: Recipe) -> None:
    once, twice = (plan(recipe, coach(hindsight=h), AGENTS).total for h in (False, True))
    assert once is not None
    assert twice == approx(once + once)


def test_without_a_plan_of_the_coach_nothing_is_asked(recipe: Recipe) -> None:
    planned = plan(recipe, None, AGENTS)
    assert planned == Plan(10, 80, 5, 20)
    assert planned.total is None


@pytest.mark.parametrize(
    ("iterations", "every", "evaluations"), [(1, 5, 2), (4, 2, 3), (5, 2, 4), (6, 1, 7)]
)
def test_evaluations_are_before_training_in_between_and_at_the_end(
    make_recipe: MakeRecipe, iterations: int, every: int, evaluations: int
) -> None:
    recipe = make_recipe(train={"iterations": iterations}, eval={"every": every})
    assert plan(recipe, None, AGENTS).evaluations == evaluations


def test_a_run_plays_what_its_plan_says(make_recipe: MakeRecipe, finished_run: Path) -> None:
    planned = plan(make_recipe(), None, AGENTS)
    run = RunDirectory.open(finished_run)
    played = {name: len(run.episodes(name)) for name in run.episode_names()}
    trained = [count for name, count in played.items() if name.startswith("train")]
    evaluated = [count for name, count in played.items() if name.startswith("eval")]
    assert (len(trained), sum(trained)) == (planned.iterations, planned.episodes)
    assert (len(evaluated), sum(evaluated)) == (planned.evaluations, planned.evaluation_episodes)


def test_a_price_that_is_not_known_is_none_and_no_budget_is_compared_with_it(
    recipe: Recipe,
) -> None:
    planned = plan(recipe, coach(usd_per_million=None, budget_usd=0.01), AGENTS)
    assert planned.total is not None
    assert planned.total.usd is None
    assert list(budget_lines(planned)) == []
    assert "not known" in shown(planned)
    assert "$" not in shown(planned)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (None, None),
        (0.1, "the budget of $0.10 is below the least that the run costs, $0.11: it will stop"),
        (0.2, "the budget of $0.20 is below what the run is expected to cost, $0.27: it is exp"),
        (1.0, "the budget of $1.00 is below the most that the run may cost, $1.95: it may stop"),
        (1.96, None),
    ],
)
def test_a_budget_that_will_not_or_may_not_last_is_said_to_be_too_small(
    recipe: Recipe, budget: float | None, words: str | None
) -> None:
    lines = list(budget_lines(plan(recipe, coach(budget_usd=budget), AGENTS)))
    assert len(lines) == (0 if words is None else 1)
    assert lines == [] or lines[0].startswith(str(words))


def shown(planned: Plan) -> str:
    file = io.StringIO()
    rich.console.Console(file=file, width=140).print(judging_table(planned))
    return file.getvalue()


def test_the_table_shows_what_judging_takes_by_agent_and_in_all(recipe: Recipe) -> None:
    text = shown(plan(recipe, coach(), AGENTS))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    assert text.startswith("what judge[x] judges: expected, and from the fewest to the most")
    assert [row for row in rows if row] == [
        [
            "solver_0",
            "100",
            "120,000 (90,000 to 500,000)",
            "10,000 (4,000 to 100,000)",
            "$0.080 ($0.053 to $0.45)",
        ],
        [
            "coder_0",
            "200 (100 to 300)",
            "300,000 (100,000 to 1,800,000)",
            "20,000 (5,000 to 300,000)",
            "$0.19 ($0.060 to $1.50)",
        ],
        [
            "in all",
            "300 (200 to 400)",
            "420,000 (190,000 to 2,300,000)",
            "30,000 (9,000 to 400,000)",
            "$0.27 ($0.11 to $1.95)",
        ],
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roles": {}}, "says nothing of the role of solver_0; its roles are none"),
        ({"hindsight": "no"}, "'hindsight' is 'no': Input should be a valid boolean"),
        ({"usd_per_million": {"input": -1.0, "output": 2}}, "'usd_per_million.input' is -1.0: "),
        ({"budget_usd": float("nan")}, "'budget_usd' is nan: "),
    ],
)
def test_a_malformed_plan_of_an_environment_is_one_line(
    recipe: Recipe, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        plan(recipe, coach(**changes), AGENTS)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dry_run_writes_nothing_and_loads_no_model(
    recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(recipe: Recipe) -> Any:
        env = environment.make_env(recipe)
        env.coach_plan = lambda: coach(
            budget_usd=0.001, roles={**COACH["roles"], "verifier": COACH["roles"]["solver"]}
        )
        return env

    here = recipe_file.parent
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ("train", recipe_file, "--dry-run", "--set", f"model.base={here}/no-such-model")
    before = list(here.rglob("*"))
    assert run_mappa(monkeypatch, *arguments) == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr(dry_run, "make_env", make)
    assert run_mappa(monkeypatch, *arguments) == 0
    asked = capsys.readouterr().out
    assert list(here.rglob("*")) == before
    assert "4 iterations, 12 episodes to train on in all\n3 evaluations, 6 episodes in all" in plain
    assert plain.endswith("the coach asks no model and costs nothing\n")
    assert "verifier_0" in asked
    assert "the budget of $0.0010 is below the least that the run costs, $0.030: it will" in asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train {0} --dry-run --out x", "--dry-run makes no run"),
        ("train --resume {0} --dry-run", "--dry-run makes no run"),
        ("train {0} --dry-run --set algorithm.loss=dpo", "loss 'dpo' is not known"),
        ("train {0} --dry-run --set scenario.tasks=none.json", "none.json: there is no such file"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(
    recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    words: str,
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    assert run_mappa(monkeypatch, *arguments.format(recipe_file).split()) == 2
    assert words in capsys.readouterr().err

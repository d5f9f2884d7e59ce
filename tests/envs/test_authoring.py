r"""The shipped examples of other topologies than three in a row: who sees what, and who is paid.

Task `train-0` of level 1 is "Kim has 30 coins and gets 18 more. How many coins does Kim have now?",
so 48; of the workshop's families it is "What is the sum of all whole numbers from 19 to 60?". The
second sum is 42 numbers of mean 39.5, so 1659.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pettingzoo
import pytest

from mappa_envs import load_scenario, make_pipeline
from mappa_envs.play import Played, play
from mappa_envs.scenario import scenario_folder
from mappa_envs.teams import NOTHING_TO_SAY, ScenarioTeam, ScriptedTeam
from mappa_envs.types import Turn

KIM = "Kim has 30 coins and gets 18 more. How many coins does Kim have now?"
SUM = "What is the sum of all whole numbers from 19 to 60?"
LAST = "That was your last action; your work is handed on."
EXAMPLES = ("mathchat", "debate", "workshop")


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def scripted(env: Any, task: int | str = "train-0") -> tuple[Played, tuple[Turn, ...]]:
    played = play(env, ScenarioTeam(env), seed=0, options={"task": task})
    return played, env.unwrapped.turns


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    env = make_pipeline(request.param, coach={}, sandbox={"preload": []})
    yield env
    env.close()


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("made", names, indirect=True)


# --- every shipped scenario -------------------------------------------------------------------


@on(*EXAMPLES)
@pytest.mark.parametrize("task", [0, 1, 2])
def test_the_script_solves_its_tasks_and_the_ledger_sums_to_what_was_paid(
    made: Any, task: int
) -> None:
    played, turns = scripted(made, task)
    assert made.unwrapped.end_reason == "completed"
    assert made.unwrapped.outcome.score == 1.0
    assert [entry.step for entry in made.ledger] == list(range(len(turns)))
    assert {entry.status for entry in made.ledger} == {"scored"}
    for agent, paid in played.rewards.items():
        own = [entry.reward for entry in made.ledger if entry.agent == agent]
        assert sum(own) == sum(paid)
        assert len(own) == len([turn for turn in turns if turn.agent == agent])


@on(*EXAMPLES)
def test_a_scripted_play_is_the_same_again(made: Any) -> None:
    first = scripted(made)
    assert scripted(made) == first


# --- the debate -------------------------------------------------------------------------------


def check_program() -> str:
    (text,) = load_scenario(scenario_folder("debate")).roles["opponent"].script
    return text.replace("{{ problem }}", KIM)


@on("debate")
def test_a_debate_goes_back_and_forth(made: Any) -> None:
    played, turns = scripted(made)
    assert [(turn.agent, turn.index, turn.handed_off) for turn in turns] == [
        ("proponent_0", 0, True),
        ("opponent_0", 0, True),
        ("proponent_0", 1, True),
        ("opponent_0", 1, True),
        ("proponent_0", 2, True),
    ]
    assert [len(played.rewards[agent]) for agent in made.possible_agents] == [4, 3]
    assert made.unwrapped.outcome.answer == "48"


@on("debate")
def test_what_the_proponent_sees_at_each_visit(made: Any) -> None:
    _, turns = scripted(made)
    opening = (
        system("You defend an answer in a debate, and give it up when it is wrong."),
        user(
            f"{KIM}\n\nAnswer in a sentence or two and put the number into one \\boxed{{}}. "
            "An opponent will check it."
        ),
    )
    checked = user(
        "The opponent ran a program against your answer. It printed:\n\n48\n\nSay whether your "
        "answer stands, and give the number you now hold to be right in one \\boxed{}."
    )
    guess = assistant("My first guess, before anything is computed: $\\boxed{0}$.")
    corrected = assistant(
        "The program has computed 48. I correct myself: $\\boxed{48}$.",
    )
    assert turns[0].messages == opening
    assert turns[2].messages == (*opening, guess, checked)
    assert turns[4].messages == (*opening, guess, checked, corrected, checked)


@on("debate")
def test_what_the_opponent_sees_at_each_visit(made: Any) -> None:
    _, turns = scripted(made)
    opening = (
        system("You check what others claim with short Python programs."),
        user(
            f"{KIM}\n\nThe proponent claims:\n\nMy first guess, before anything is computed: "
            "$\\boxed{0}$.\n\nWork the problem out on your own in one ```python block that prints "
            "the result and nothing else."
        ),
    )
    again = user(
        "The proponent answers you:\n\nThe program has computed 48. I correct myself: "
        "$\\boxed{48}$.\n\nCheck once more, another way if you can, with one ```python block that "
        "prints the result and nothing\nelse."
    )
    output = user(f"Output of your program:\n48\n{LAST}")
    assert turns[1].messages == opening
    assert turns[3].messages == (*opening, assistant(check_program()), output, again)


@on("debate")
def test_the_last_word_counts_in_a_debate(made: Any) -> None:
    words = ["\\boxed{48}", "\\boxed{48}", "\\boxed{49}"]
    team = ScriptedTeam({"proponent_0": words, "opponent_0": ["Fine.", "Fine."]})
    play(made, team, seed=0, options={"task": "train-0"})
    assert made.unwrapped.outcome.verdict == "wrong"
    for turn in made.unwrapped.turns[2::2]:
        assert "It printed:\n\n[no program was run]\n\n" in turn.messages[-1]["content"]


# --- the workshop -----------------------------------------------------------------------------


def prompts(turns: Sequence[Turn]) -> dict[str, str]:
    """The user message with which each role's conversation opens."""
    return {turn.role: turn.messages[1]["content"] for turn in turns if turn.index == 0}


@on("workshop")
def test_a_workshop_hands_files_down_a_row_of_four(made: Any) -> None:
    _, turns = scripted(made)
    assert [(turn.agent, turn.index) for turn in turns] == [
        ("planner_0", 0),
        ("coder_0", 0),
        ("coder_0", 1),
        ("tester_0", 0),
        ("tester_0", 1),
        ("reporter_0", 0),
    ]
    created = [r.files.created for turn in turns for r in turn.tool_results]
    assert created == [("plan.json",), ("solution.py",), ("answer.txt",)]
    assert made.unwrapped.outcome.answer == "1659"


@on("workshop")
def test_what_each_role_of_the_workshop_sees(made: Any) -> None:
    _, turns = scripted(made)
    plan = {"low": 19, "high": 60, "count_multiples_of": None}
    plan_line = f"plan.json ({len(json.dumps(plan))} bytes, by planner_0)"
    source = load_scenario(scenario_folder("workshop")).roles["coder"].script[0]
    module_bytes = len(source.split('"""')[1])
    assert prompts(turns) == {
        "planner": f"{SUM}\n\nDo not solve it. In one ```python block, write what a programmer "
        "needs to know into plan.json, with\nthe numbers of the problem under names that explain "
        "themselves, and print it.",
        "coder": f"{SUM}\n\nThe planner left these files for you:\n\n{plan_line}\n\nand printed:"
        f"\n\n{plan}\n\nIn one ```python block, write a module solution.py with a function that "
        "solves the problem, call it\nwith what is in plan.json, and print the result alone.",
        "tester": f"{SUM}\n\nThe workspace holds:\n\n{plan_line}\nsolution.py ({module_bytes} "
        "bytes, by coder_0)\n\nThe coder says: solution.py is written; it finds 1659.\n\nIn one "
        "```python block, import solution.py, try it on small cases that you can work out in your "
        "head,\nwrite the answer to the problem into answer.txt, and print it alone. You cannot "
        "change the files of\nothers.",
        "reporter": f"{SUM}\n\nThe tester says: Two cases worked out by hand hold; the answer is "
        "in answer.txt.\n\nThe tester's program printed: 1659\n\nFiles to cite:\n\nanswer.txt "
        "(4 bytes, by tester_0)\n\nReport the result in a sentence, with the number in one "
        "\\boxed{}.",
    }


@on("workshop")
def test_the_roles_of_the_workshop_cannot_touch_what_is_not_theirs(made: Any) -> None:
    def program(*lines: str) -> str:
        return "\n".join(["```python", *lines, "```"])

    team = ScriptedTeam(
        {
            "planner_0": [
                program("for n in ('plan.json', 'notes.txt'): open(n, 'w').write('plan')")
            ],
            "coder_0": [
                program("import os", "print(sorted(os.listdir('.')))"),
                program("open('solution.py', 'w').write('x = 1')"),
            ],
            "tester_0": [
                program("import os", "print(sorted(os.listdir('.')))"),
                program("open('solution.py', 'w').write('x = 2')"),
            ],
            "reporter_0": ["\\boxed{1659}"],
        }
    )
    play(made, team, seed=0, options={"task": "train-0"})
    outputs = [r.output for turn in made.unwrapped.turns for r in turn.tool_results]
    assert outputs == [
        "[nothing was printed]",
        "['plan.json']",
        "[nothing was printed]",
        "['notes.txt', 'plan.json', 'solution.py']",
        "[put back, for it is not yours to change: solution.py]",
    ]
    assert "Files to cite:\n\n[no files]\n" in prompts(made.unwrapped.turns)["reporter"]
    assert made.unwrapped.outcome.score == 1.0


# --- scripts ----------------------------------------------------------------------------------


def test_a_script_repeats_its_last_text_and_a_role_without_one_has_nothing_to_add() -> None:
    roles = {"solver": {"script": []}, "coder": {"script": ["```python\nprint(7)\n```"]}}
    env = make_pipeline("mathchat", scenario={"roles": {**roles}}, sandbox={"preload": []})
    _, turns = scripted(env)
    env.close()
    assert [turn.action for turn in turns] == [
        NOTHING_TO_SAY,
        "```python\nprint(7)\n```",
        "```python\nprint(7)\n```",
        "The final answer is $\\boxed{7}$.",
    ]


@on("debate")
def test_a_script_goes_on_where_a_restored_episode_stands(made: Any) -> None:
    team = ScenarioTeam(made)
    made.reset(seed=0, options={"task": "train-0"})
    texts = []
    for _ in range(2):
        made.step(team(made.agent_selection, made.last()[0]))
    snapshot = made.snapshot()
    for _ in range(2):
        texts.append(team("proponent_0", made.last()[0]))
        made.step(texts[-1])
        made.restore(snapshot)
    assert texts == ["The program has computed 48. I correct myself: $\\boxed{48}$."] * 2


@pytest.mark.parametrize("name", ["debate", "workshop"])
def test_a_scenario_plays_under_the_common_id(name: str) -> None:
    for folder in (name, str(scenario_folder(name))):
        env = pettingzoo.make("aec", "mappa/Scenario-v0", folder=folder)
        played, _ = scripted(env)
        env.close()
        assert {agent: sum(paid) for agent, paid in played.rewards.items()} == dict.fromkeys(
            env.possible_agents, 1.0
        )

"""Answers by rule: what counts as the answer, what equals what, and a deadline that holds.

1. The last box is the answer; without one only a message that is nothing but an answer.
2. Spelling never matters, value always does; decimals are exact numbers.
3. What cannot be decided is "undecided" with a reason, never a guess.
4. A bomb ends at the deadline, the next check works, and no process is left behind.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import mappa_envs.outcomes.math_child as math_child
from mappa_envs.errors import MappaEnvError
from mappa_envs.outcomes.math_answers import MathAnswerScorer, check_answer
from mappa_envs.outcomes.math_child import MathChild
from mappa_envs.outcomes.math_text import (
    ExactNumber,
    canonical,
    exact_number,
    find_answer,
    tidy,
)
from mappa_envs.types import Task

TOWER = r"7^{8^{9^{8}}}"
PROGRAM = Path(math_child.__file__).with_name("math_child_main.py")


@pytest.fixture(scope="module")
def scorer() -> Iterator[MathAnswerScorer]:
    scorer = MathAnswerScorer(deadline_s=20.0)
    yield scorer
    scorer.close()


def verdict(scorer: MathAnswerScorer, gold: str, text: str) -> str:
    return scorer.score(Task("t", "?", (gold,)), text).verdict


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{12}, no: \boxed{13}.", "13"),
        (r"either \boxed{4} or \boxed{5}", "5"),
        (r"\fbox{7}", "7"),
        (r"\boxed {\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{(0, \infty)} is it", r"(0, \infty)"),
        (r"the end is near: \boxed{\frac{3}{4}", r"\frac{3}{4}"),
        ("\\boxed{8\nand so on", "8"),
        (r"$\boxed{8$ and so on", "8"),
        (r"\boxed{6} as asked in \boxed{", "6"),
        (r"\boxed{6} as asked in \boxed{}", None),
        (r"Mark the result with \boxed", None),
        (r"\boxed", None),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        ("", None),
        ("  \n", None),
    ],
)
def test_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("045", "045"),
        ("  **310**\n", "310"),
        ("7 654", "7 654"),
        ("0.25", "0.25"),
        (".5", ".5"),
        ("-3/4", "-3/4"),
        ("20%", "20%"),
        ("x = 9", "x = 9"),
        ("m + n = 116", "m + n = 116"),
        ("7 + 37 = 19 + 37 = 5", None),
        ("2 + 3 = 5", None),
        (r"$\sqrt{3}$", r"\sqrt{3}"),
        (r"\(\sqrt{3}\)", r"\sqrt{3}"),
        (r"\[ 5 \]", "5"),
        ("(C)", "(C)"),
        ("C", "C"),
        ("There are 30 days in June.", None),
        ("30 days in June", None),
        ("The answer is 30", None),
        ("4 5 6 7", None),
        ("4, 5", None),
        ("4\n5", None),
        ("$4$ or $5$", None),
        ("no", None),
        ("9" * 300, None),
    ],
)
def test_without_a_box_only_a_message_that_is_an_answer_counts(
    text: str, answer: str | None
) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{3}</think>I do not know.", None),
        (r"<think>\boxed{3}</think>\boxed{4}", "4"),
        (r"\boxed{4}<think>\boxed{3}", "4"),
        (r"\boxed{3}</think>\boxed{4}", "4"),
        (r"\boxed{3}</think> not sure", None),
        (r"<think>a<think>\boxed{3}</think>b</think>\boxed{4}", "4"),
    ],
)
def test_a_box_in_the_thinking_is_no_answer(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("007", 7),
        ("000", 0),
        ("-0", 0),
        ("+8", 8),
        ("−8", -8),
        ("４２", 42),
        ("42.", 42),
        ("42.0", 42),
        ("4,200", 4200),
        ("4{,}200", 4200),
        (r"4,\!200", 4200),
        (r"4\,200", 4200),
        ("4 200", 4200),
        (r"\$42", 42),
        ("$42$", 42),
        (r"\text{42}", 42),
        (r"\mathbf{42}", 42),
        (r"42\text{ cm}", 42),
        (r"42\,\mathrm{cm}^2", 42),
        ("42 cm^2", 42),
        ("42 red marbles", 42),
        (r"36\text{ (because }6^2=36)", 36),
        (r"42^\circ", 42),
        ("42°", 42),
        ("m+n = 42", 42),
        (r"\frac{m}{n}=\frac{20}{22}, m+n = 42", 42),
        ("x=40+2=42", 42),
        ("42 = x", 42),
        ("((42))", 42),
        (r"\text{Answer: }42", 42),
        ("6e2", 600),
        (".5", Fraction(1, 2)),
        ("3/6", Fraction(1, 2)),
        (r"\dfrac{3}{6}", Fraction(1, 2)),
        (r"-\frac12", Fraction(-1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
    ],
)
def test_a_number_is_read_through_its_wrapping(answer: str, value: int | Fraction) -> None:
    assert exact_number(tidy(answer)) == ExactNumber(Fraction(value))


@pytest.mark.parametrize(
    "answer",
    [
        "4 5",
        "1 2 3",
        "4,5",
        "4 or 5",
        r"4 \text{ or } 5",
        r"5 \text{ or so}",
        "5 million",
        "5 factorial",
        "5m",
        "5!",
        r"5\pi",
        "x=4, x=5",
        "x=4, y=5",
        "m+n=4, n+m=5",
        "n=3,4,5",
        "4=5",
        r"x \neq 5",
        "x > 5",
        r"x \approx 5",
        r"\text{not } 5",
        "5/0",
        "1e999999999",
        "",
    ],
)
def test_nothing_but_one_number_is_a_number(answer: str) -> None:
    assert exact_number(tidy(answer)) is None


def test_canonical_joins_symbols_and_never_digits() -> None:
    assert canonical(tidy(r"\left( a + b \right)")) == "a+b"
    assert canonical("( 1, 2 )") == "(1,2)"
    assert canonical("1 2") == "1 2"
    assert canonical("YES") == canonical("Yes")
    assert canonical("(" * 1500 + "1" + ")" * 1500) == "1"


CORRECT = [
    ("45", r"\boxed{045}", "leading zero"),
    ("0", r"\boxed{000}", "only zeros"),
    ("31", "031", "bare, leading zero"),
    ("310", r"\boxed{310}.", "period after the box"),
    ("310", r"\boxed{310.0}", "float form"),
    ("310", "**310**", "bold"),
    ("76543", "76 543", "thousands by a space"),
    ("8", r"It was \boxed{6}, corrected to \boxed{8}", "the last box counts"),
    (r"\frac{3}{4}", r"\boxed{0.75}", "decimal for a fraction"),
    (r"20\%", "0.2", "percent as a part"),
    (r"20\%", r"\boxed{20}", "percent as a unit"),
    ("20", r"\boxed{20\%}", "percent as a unit, other way"),
    ("17", r"\boxed{\text{17}}", "number as text"),
    (r"[\sqrt3,\infty)", r"\boxed{t \geq \sqrt{3}}", "inequality for an interval"),
    (r"t \geq \sqrt{3}", r"\boxed{[\sqrt3,\infty)}", "interval for an inequality"),
    ("1<x<2", r"\boxed{(1,2)}", "double inequality"),
    ("36", r"\boxed{36\text{ (as }6^2=36)}", "comment in the box"),
    ("y=8", r"\boxed{8}", "assignment as gold"),
    ("8", r"\boxed{y=8}", "assignment as answer"),
    ("9", r"\boxed{4+5}", "not evaluated"),
    ("24", r"\boxed{4!}", "factorial"),
    ("6000000", r"\boxed{6\text{ million}}", "number word"),
    (r"\text{C}", r"\boxed{C}", "choice"),
    ("C", r"\boxed{\textbf{(C)}}", "choice in bold"),
    ("C", r"\boxed{\textbf{(C)}\ 48}", "choice with its value"),
    ("48", r"\boxed{\textbf{(C)}\ 48}", "value with its choice"),
    (r"\text{Yes}", r"\boxed{yes}", "word"),
    ("-4", r"\boxed{−4}", "unicode minus"),
    ("6", r"\boxed{６}", "full-width digit"),
    ("11^{11^{11}}", r"\boxed{11^{11^{11}}}", "huge, the same text"),
    ("2", rf"\boxed{{{'(' * 300}2{')' * 300}}}", "deep parentheses"),
    ("131", r"\boxed{p+q = 131}", "sum of two unknowns"),
    ("131", r"\boxed{\frac{p}{q} = \frac{7}{124}, p+q=131}", "derived value"),
    (r"\frac{1}{3}", r"\boxed{\frac13 \approx 0.333}", "exact, then rounded"),
    ("07:05", r"\boxed{7:05}", "time of day"),
    ("4,5", r"\boxed{4 \text{ or } 5}", "both values"),
    (r"\{1,2,3\}", r"\boxed{3,1,2}", "set in any order"),
    (r"\sqrt2+\sqrt3", r"\boxed{\sqrt{5+2\sqrt6}}", "nested roots"),
    ("x^2-1", r"\boxed{(x-1)(x+1)}", "factored"),
    ("2x+4y-3=0", r"\boxed{y=-\frac{x}{2}+\frac34}", "same line"),
    (r"\frac72", r"\boxed{3\frac{1}{2}}", "mixed number"),
    ("(1,2)", r"\boxed{(1.0, 2)}", "pair"),
    (r"\emptyset", r"\boxed{\varnothing}", "empty set"),
    (
        r"\begin{pmatrix}0.5\\2\end{pmatrix}",
        r"\boxed{\begin{pmatrix}\frac12 \\ 2\end{pmatrix}}",
        "matrix",
    ),
    ("0.05", r"\boxed{5\text{ percent}}", "percent in words"),
    ("48", r"\boxed{Answer: 48}", "label"),
    (r"2^{-99}", r"\boxed{\frac{1}{2^{99}}}", "tiny and equal"),
    (r"2^{0.5}", r"\boxed{\sqrt2}", "decimal exponent"),
]

WRONG = [
    ("6", r"It was \boxed{6}, corrected to \boxed{8}", "an earlier box does not count"),
    ("4", r"either \boxed{4} or \boxed{5}", "hedging: only the last box counts"),
    ("5", r"\boxed{4 \text{ or } 5}", "hedging inside the box"),
    ("5", r"\boxed{x=4, x=5}", "hedging by equations"),
    ("5", r"\boxed{m+n=4, n+m=5}", "hedging by equal sums"),
    ("5", r"\boxed{4=5}", "hedging by a false equation"),
    (r"\frac{2}{3}", r"\boxed{0.667}", "rounded decimal"),
    (r"\frac{1}{3}", r"\boxed{0.3333333333333333333}", "long truncated decimal"),
    (r"\sqrt2", r"\boxed{1.41421356}", "rounded root"),
    (r"\frac{1}{1998!}", r"\boxed{\frac{1}{1999!}}", "tiny and different"),
    (r"x=\frac{1}{1998!}", r"\boxed{x=\frac{1}{1999!}}", "tiny in an equation"),
    (r"(0,\frac{1}{1998!})", r"\boxed{(0,\frac{1}{1999!})}", "tiny in an interval"),
    (r"\frac{3^{900}+1}{5\cdot3^{901}}", r"\boxed{\frac{1}{5\cdot 3^{901}}}", "tiny summand"),
    (r"2-\frac{1}{e}", r"\boxed{2+\frac{1}{e}}", "sign"),
    (r"1-e^{-10000}", r"\boxed{1}", "closer than any rounding"),
    ("11:00", r"\boxed{1:00}", "time of day"),
    ("11:00 am", r"\boxed{11:00 pm}", "half of the day"),
    ("k=3,4,5", r"\boxed{k=2,3,4}", "list of values"),
    ("(0,2)", r"\boxed{(0,2.5)}", "interval end"),
    (r"\frac{x^2}{9}+\frac{y^2}{5}=1", r"\boxed{\frac{x^2}{18}+\frac{y^2}{10}=1}", "ellipse"),
    ("x^2+y^2=1", r"\boxed{1}", "right side of an equation"),
    ("3x-y+13=0", r"\boxed{3x+4y+14=0}", "line"),
    ("7", r"\boxed{7\sqrt(3)}", "factor in odd spelling"),
    ("(3,4)", r"\boxed{[3,4]}", "closed for open"),
    (r"(-\infty,3)", r"\boxed{x \leq 3}", "weak for strict"),
    ("(3,4)", r"\boxed{(4,3)}", "ordered pair"),
    ("(4,3)", r"\boxed{(5,3)}", "pair"),
    (r"50\%", r"\boxed{0.5\%}", "percent on both sides"),
    ("5", r"\boxed{5 million}", "number word"),
    ("5", r"\boxed{5m}", "a variable is no unit"),
    ("5", r"\boxed{\text{not }5}", "denied"),
    ("x=5", r"\boxed{y=5}", "other unknown"),
    ("b", r"\boxed{a : b}", "a ratio is no label"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\3\end{pmatrix}}", "matrix"),
    (r"\pm 9", r"\boxed{9}", "one of two"),
    ("D", r"\boxed{\textbf{(C)}\ 48}", "choice"),
    (r"\infty", r"\boxed{-\infty}", "infinities"),
    ("5", r"\boxed{\frac{5}{2-2}}", "hidden division by zero"),
    ("1", r"\boxed{1.0000000000000000001}", "decimal beyond floats"),
]

NO_ANSWER = [
    ("7", "4 5 6 7", "spray of numbers"),
    ("30", "I give up. June has 30 days.", "number in prose"),
    ("5", "", "nothing"),
    ("5", r"\boxed{}", "empty box"),
    ("5", r"put it in \boxed please: 5", "box without braces"),
    ("5", r"<think>\boxed{5}</think> Hm.", "box in the thinking only"),
]

UNDECIDED = [
    ("9", r"\boxed{4 5}", "numbers side by side are no sum"),
    ("101", r"\boxed{101_2}", "base"),
    ("5", r"\boxed{5/0}", "division by zero"),
    ("5", r"\boxed{\frac{5}{0}}", "division by zero"),
    ("5", r"\boxed{\frac{0}{2-2}}", "hidden division by zero"),
    ("(3,2]", r"\boxed{(4,2]}", "impossible intervals"),
    ("5", r"\boxed{5, \ldots}", "and so on"),
    ("5", r"\boxed{\input{notes}}", "no mathematics"),
    ("5", rf"\boxed{{{'9' * 5000}}}", "too long"),
]


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        pytest.param(gold, text, expected, id=f"{expected}-{why}")
        for expected, rows in [
            ("correct", CORRECT),
            ("wrong", WRONG),
            ("no_answer", NO_ANSWER),
            ("undecided", UNDECIDED),
        ]
        for gold, text, why in rows
    ],
)
def test_verdict(scorer: MathAnswerScorer, gold: str, text: str, expected: str) -> None:
    outcome = scorer.score(Task("t", "?", (gold,)), text)
    assert outcome.verdict == expected
    assert outcome.score == (1.0 if expected == "correct" else 0.0)
    assert outcome.reason
    assert (outcome.answer is None) == (expected == "no_answer")


def test_any_accepted_gold_is_correct_and_a_reason_never_tells_the_gold() -> None:
    both = check_answer(["080", "081"], r"\boxed{81}")
    assert (both.verdict, both.answer, both.reason) == ("correct", "81", "81 equals 081")
    wrong = check_answer(["6789"], r"\boxed{1}")
    assert wrong.verdict == "wrong"
    assert "6789" not in wrong.reason


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000 + r"\boxed{5}",
        r"\boxed{" * 140_000 + "5}",
        "<think>" * 140_000 + r"</think>\boxed{5}",
        "</think>" * 120_000 + r"\boxed{5}",
        "{" * 1_000_000 + r"\boxed{5}",
        " " * 1_000_000 + r"\boxed{5}",
        r"\boxed{" + " " * 4000 + "5}",
        r"\boxed{5" + r"\text{ (" * 500 + "}",
    ],
)
def test_a_megabyte_is_read_in_no_time(scorer: MathAnswerScorer, text: str) -> None:
    start = time.perf_counter()
    assert verdict(scorer, "5", text) == "correct"
    assert time.perf_counter() - start < 1.0


def test_many_open_boxes_are_read_in_no_time() -> None:
    start = time.perf_counter()
    assert find_answer("\\boxed{\n" * 100_000) is None
    assert time.perf_counter() - start < 1.0


def test_integers_need_no_child_and_little_time() -> None:
    scorer = MathAnswerScorer()
    task, text = Task("t", "?", ("204",)), "We add 100 and 104. " * 20 + r"So \boxed{204}."
    start = time.perf_counter()
    for _ in range(1000):
        scorer.score(task, text)
    assert time.perf_counter() - start < 0.5  # 0.02 s on an idle core
    assert scorer._child.pid is None
    scorer.close()


def test_a_bomb_ends_at_the_deadline_and_the_next_check_works() -> None:
    scorer = MathAnswerScorer(deadline_s=0.5)
    try:
        assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") in ("correct", "undecided")  # starts it
        first = scorer._child.pid
        start = time.perf_counter()
        outcome = scorer.score(Task("t", "?", ("1",)), rf"\boxed{{{TOWER}}}")
        assert time.perf_counter() - start < 20.0  # a start when the first check was late
        assert outcome.verdict == "undecided"
        assert "deadline of 0.5 s" in outcome.reason
        assert scorer._child.pid is None
        scorer._child.deadline_s = 20.0
        assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") == "correct"
        assert scorer._child.pid not in (None, first)
    finally:
        scorer.close()


def test_threads_share_a_scorer(scorer: MathAnswerScorer) -> None:
    verdicts: dict[int, str] = {}

    def work(n: int) -> None:
        verdicts[n] = verdict(scorer, str(n), rf"\boxed{{\sqrt{{{n * n}}}}}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(1, 9), "correct")


def test_a_child_that_died_is_replaced(scorer: MathAnswerScorer) -> None:
    assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") == "correct"
    pid = scorer._child.pid
    assert pid is not None
    os.kill(pid, 9)
    assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") in ("correct", "undecided")
    assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") == "correct"
    assert scorer._child.pid != pid


def test_close_leaves_no_process_and_may_be_called_twice() -> None:
    scorer = MathAnswerScorer(deadline_s=20.0)
    scorer.close()
    assert verdict(scorer, "3", r"\boxed{\sqrt{9}}") == "correct"
    pid = scorer._child.pid
    scorer.close()
    scorer.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(pid, 0)


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.strip()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_end_of_the_program_ends_the_child() -> None:
    script = (
        "from mappa_envs.outcomes.math_child import MathChild\n"
        "child = MathChild(20.0)\n"
        "child.compare('3', r'\\sqrt{9}')\n"
        "print(child.pid)"
    )
    assert not _alive(int(_run(script)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_a_busy_child_outlives_a_killed_parent_by_its_alarm_only() -> None:
    script = (
        "import os, threading, time\n"
        "from mappa_envs.outcomes.math_child import MathChild\n"
        "child = MathChild(0.5)\n"
        "child.compare('3', '3')\n"
        f"threading.Thread(target=child.compare, args=('1', r'{TOWER}'), daemon=True).start()\n"
        "time.sleep(0.1)\n"
        "print(child.pid or 0, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    pid = int(_run(script))
    give_up = time.monotonic() + 20  # the alarm is due after 2 * 0.5 + 1 s
    while pid and _alive(pid) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not pid or not _alive(pid)


def test_a_forked_process_gets_its_own_child() -> None:
    script = (
        "import os\n"
        "from mappa_envs.outcomes.math_child import MathChild\n"
        "child = MathChild(20.0)\n"
        "child.compare('3', r'\\sqrt{9}')\n"
        "before = child.pid\n"
        "if os.fork() == 0:\n"
        "    same = child.compare('3', r'\\sqrt{9}'), child.pid == before\n"
        "    child.close()\n"
        "    os._exit(0 if same == ('equal', False) else 1)\n"
        "status = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "print(status, child.compare('4', r'\\sqrt{16}'), child.pid == before)"
    )
    assert _run(script) == "0 equal True"


def test_the_child_imports_neither_torch_nor_this_package() -> None:
    script = (
        f"import runpy, sys; runpy.run_path({str(PROGRAM)!r})\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}\n"
        "      & {'torch', 'transformers', 'mappa_envs', 'mappa_trainer'}))"
    )
    assert _run(script) == "[]"


def test_a_child_that_cannot_start_is_an_error_not_a_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(math_child, "_PROGRAM", broken)
    with pytest.raises(MappaEnvError, match=r"did not start .* math_verify"):
        MathChild(5.0).compare("3", "4")


def test_values_are_compared_exactly_by_the_child() -> None:
    sympy = pytest.importorskip("sympy")
    same_value = runpy.run_path(str(PROGRAM))["same_value"]
    tiny = sympy.Rational(1, 10**40)
    assert same_value(sympy.Rational(1, 2), sympy.Rational(2, 4))
    assert not same_value(tiny, 2 * tiny)
    assert not same_value(sympy.exp(-1000), sympy.exp(-1001))
    assert not same_value(sympy.sqrt(2), sympy.sqrt(2) + tiny)
    assert not same_value(sympy.sqrt(2), sympy.sqrt(2) + sympy.Rational(1, 10**400))
    assert same_value(sympy.sqrt(8), 2 * sympy.sqrt(2))
    assert not same_value(sympy.oo, sympy.Integer(5))
    assert not same_value(sympy.Symbol("x"), sympy.Integer(5))


@pytest.mark.parametrize(
    "text", ["e9", r"So \boxed{e9}", r"\boxed{.e5}", r"\boxed{-E12}", "e\U0001d7d7"]
)
def test_an_exponent_without_digits_before_it_is_no_number(
    scorer: MathAnswerScorer, text: str
) -> None:
    assert exact_number(text) is None
    assert verdict(scorer, "9", text) in ("wrong", "no_answer", "undecided")


@pytest.mark.parametrize(
    ("text", "value"),
    [("2e1", 20), (".5", Fraction(1, 2)), ("5.", 5), ("-1.5e-1", Fraction(-3, 20))],
)
def test_numbers_with_exponents(text: str, value: Fraction) -> None:
    assert exact_number(text) == ExactNumber(Fraction(value))

"""Sources of math problems: generated without end, or read from files.

1. A task is a pure function of (seed, split, index), in any process.
2. Train and test share no problem text.
3. Every gold answer is right, by a method other than the generator's.
4. A bad file or name is one line that says what, where, and how to mend it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.math_answers import MathAnswerScorer
from mappa_envs.tasks.math_files import FileMath, load_math_file
from mappa_envs.tasks.math_generated import FAMILIES, Draws, GeneratedMath, split_of
from mappa_envs.types import Task

ALL_LEVELS = (1, 2, 3)


def _story(text: str, n: list[int]) -> int:
    if "boxes" in text:
        return n[0] * n[1]
    return n[0] - n[1] if "gives away" in text else n[0] + n[1]


def _two_steps(text: str, n: list[int]) -> int:
    return n[0] * n[1] + n[2] if "add" in text else n[0] * n[1] - n[2]


def _recurrence(text: str, n: list[int]) -> int:
    """Raise the matrix ((p, q), (1, 0)) to the power n - 2 by squaring."""
    match = re.search(
        r"a_1 = (\d+), a_2 = (\d+) and a_n = (\d+) a_\(n-1\) \+ (\d+) a_\(n-2\).*"
        r"a_(\d+) is divided by (\d+)",
        text,
    )
    assert match is not None
    x, y, p, q, index, modulus = map(int, match.groups())

    def times(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return (
            a[0] * b[0] + a[1] * b[2],
            a[0] * b[1] + a[1] * b[3],
            a[2] * b[0] + a[3] * b[2],
            a[2] * b[1] + a[3] * b[3],
        )

    result, base, power = (1, 0, 0, 1), (p, q, 1, 0), index - 2
    while power:
        if power % 2:
            result = times(result, base)
        base, power = times(base, base), power // 2
    return (result[0] * y + result[1] * x) % modulus


def _lattice(text: str, n: list[int]) -> int:
    match = re.search(r"satisfy (\d+)x\^2 \+ (\d+)y\^2 <= (\d+)", text)
    assert match is not None
    a, b, bound = map(int, match.groups())
    rows = range(-math.isqrt(bound // a), math.isqrt(bound // a) + 1)
    return sum(2 * math.isqrt((bound - a * x * x) // b) + 1 for x in rows)


def _chinese(text: str, n: list[int]) -> int:
    rest, moduli = n[:3], n[3:]
    whole = math.prod(moduli)
    value = sum(
        r * (whole // m) * pow(whole // m, -1, m) for r, m in zip(rest, moduli, strict=True)
    )
    return value % whole or whole


def _digit_count(text: str, n: list[int]) -> int:
    """Count by digits from the left: those below the bound's digit leave the rest free."""
    bound, total = n
    digits = [int(digit) for digit in str(bound)]
    ways = [Counter({0: 1})]
    for _ in digits:
        free: Counter[int] = Counter()
        for reached, count in ways[-1].items():
            for digit in range(10):
                free[reached + digit] += count
        ways.append(free)
    found, used = 0, 0
    for place, digit in enumerate(digits):
        left = len(digits) - place - 1
        found += sum(ways[left][total - used - lower] for lower in range(digit))
        used += digit
    return found + (used == total)


def _inclusion_exclusion(text: str, n: list[int]) -> int:
    bound, a, b, c = n
    pairs = [math.lcm(a, b), math.lcm(a, c), math.lcm(b, c)]
    return (
        sum(bound // one for one in (a, b, c))
        - sum(bound // two for two in pairs)
        + bound // math.lcm(a, b, c)
    )


OTHER_METHOD: dict[str, Callable[[str, list[int]], int]] = {
    "sum": lambda text, n: n[0] + n[1],
    "difference": lambda text, n: n[0] - n[1],
    "product": lambda text, n: n[0] * n[1],
    "remainder": lambda text, n: n[0] % n[1],
    "story": _story,
    "two_steps": _two_steps,
    "gcd": lambda text, n: math.gcd(*n),
    "lcm": lambda text, n: math.lcm(*n),
    "digit_sum": lambda text, n: sum(map(int, str(n[0]))),
    "multiples": lambda text, n: n[2] // n[0] - (n[1] - 1) // n[0],
    "sum_to": lambda text, n: n[1] * (n[1] + 1) // 2 - n[0] * (n[0] - 1) // 2,
    "power_remainder": lambda text, n: pow(*n),
    "recurrence": _recurrence,
    "lattice_points": _lattice,
    "congruences": _chinese,
    "digit_count": _digit_count,
    "divisible_by_any": _inclusion_exclusion,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_golds_agree_with_another_method(family: str) -> None:
    source = GeneratedMath(3, [family], ALL_LEVELS)
    for index in range(60):
        task = source.get("train", index)
        numbers = [int(text) for text in re.findall(r"\d+", task.prompt)]
        assert task.answers == (str(OTHER_METHOD[family](task.prompt, numbers)),), task.prompt
        assert task.metadata == {"family": family, "level": FAMILIES[family].level}


def test_every_family_is_checked_and_levels_are_what_they_say() -> None:
    assert set(OTHER_METHOD) == set(FAMILIES)
    assert {family.level for family in FAMILIES.values()} == set(ALL_LEVELS)
    easy, hard = GeneratedMath(levels=[1]), GeneratedMath(levels=[3])
    for index in range(200):
        task = easy.get("train", index)
        assert len(task.prompt.split()) < 25
        assert 0 <= int(task.answers[0]) <= 240  # 12 * 20
        assert 0 <= int(hard.get("train", index).answers[0]) <= 999


PINNED = [
    ("train-0", "Kim has 30 coins and gets 18 more. How many coins does Kim have now?", ("48",)),
    ("test-1", "What is 24 minus 23?", ("1",)),
    ("train-2", "What is the remainder when 36^48 is divided by 615?", ("141",)),
]


def test_exact_items() -> None:
    pinned = [GeneratedMath().get("train", 0), GeneratedMath().get("test", 1)]
    pinned.append(GeneratedMath(7, levels=[3]).get("train", 2))
    assert [(task.id, task.prompt, task.answers) for task in pinned] == PINNED


def test_items_are_the_same_in_another_process_and_leave_global_randomness_alone() -> None:
    script = (
        "import random, hashlib\n"
        "from mappa_envs.tasks.math_generated import GeneratedMath\n"
        "before = random.getstate()\n"
        "source = GeneratedMath(5, levels=(1, 2, 3))\n"
        "texts = [source.get(s, i).prompt for s in ('train', 'test') for i in range(50)]\n"
        "assert before == random.getstate()\n"
        "print(hashlib.sha256('|'.join(texts).encode()).hexdigest())"
    )
    source = GeneratedMath(5, levels=ALL_LEVELS)
    texts = [source.get(split, i).prompt for split in ("train", "test") for i in range(50)]
    here = hashlib.sha256("|".join(texts).encode()).hexdigest()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, check=True
        )
        assert done.stdout.decode().strip() == here


def test_train_and_test_share_no_text_whatever_the_seed() -> None:
    train = {GeneratedMath(seed).get("train", i).prompt for seed in (0, 1) for i in range(2000)}
    test = {GeneratedMath(seed).get("test", i).prompt for seed in (0, 2) for i in range(1000)}
    assert train.isdisjoint(test)
    assert {split_of(text) for text in train} == {"train"}
    assert {split_of(text) for text in test} == {"test"}
    assert len(train) > 2000  # repeats are few
    assert len(test) > 700


def test_seeds_and_indices_give_different_items() -> None:
    first = [GeneratedMath(0).get("train", i).prompt for i in range(20)]
    second = [GeneratedMath(1).get("train", i).prompt for i in range(20)]
    assert len(set(first)) >= 18
    assert sum(a == b for a, b in zip(first, second, strict=True)) <= 2


def test_draws_cover_their_range() -> None:
    draws = Draws("key")
    assert Counter(draws.between(1, 3) for _ in range(300)).keys() == {1, 2, 3}
    assert [Draws("key").between(0, 10**6) for _ in range(2)] == [897781, 897781]


@pytest.mark.parametrize("task_id", ["train-17", "test-0", "train-123456789"])
def test_generated_ids_round_trip(task_id: str) -> None:
    source = GeneratedMath(2, levels=ALL_LEVELS)
    task = source.find(task_id)
    split, _, index = task_id.partition("-")
    assert task.id == task_id
    assert task == source.get("train" if split == "train" else "test", int(index))
    assert source.size("train") is None


@pytest.mark.parametrize("task_id", ["train-", "train--1", "train-01", "val-3", "", "train-1 "])
def test_a_malformed_generated_id_is_an_error(task_id: str) -> None:
    with pytest.raises(TaskError, match=r"e\.g\. 'train-17'"):
        GeneratedMath().find(task_id)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": ["summ"]}, "did you mean 'sum'"),
        ({"families": ["zzzz"]}, "there are: sum, difference"),
        ({"families": ["gcd"]}, "'gcd' is of level 2, and levels are \\[1\\]"),
        ({"families": []}, "families is empty"),
        ({"levels": [4]}, r"levels are \[4\]; give at least one of \[1, 2, 3\]"),
        ({"levels": []}, "give at least one"),
    ],
)
def test_unknown_families_and_levels_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        GeneratedMath(**{"levels": [1], **arguments})


def _write(folder: Path, text: str | bytes, name: str = "some.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _jsonl(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_sources_refuse_a_wrong_split_or_index(tmp_path: Path) -> None:
    rows = _jsonl(*({"prompt": f"p{i}", "answer": i} for i in range(4)))
    for source in (GeneratedMath(), FileMath(_write(tmp_path, rows))):
        with pytest.raises(TaskError, match="did you mean 'test'"):
            source.size("tests")
        with pytest.raises(TaskError, match="did you mean 'train'"):
            source.get("trian", 0)
        for index in (-1, True, 1.0, "1"):
            with pytest.raises(TaskError, match=f"index {index!r} of split 'train' must be"):
                source.get("train", index)


def test_rows_become_tasks(tmp_path: Path) -> None:
    text = _jsonl(
        {"prompt": "one", "answer": 142.0, "id": "a", "year": 1999},
        {"prompt": "two", "answer": "x^2 "},
        {"prompt": "three", "answer": -4.0, "id": 3},
    )
    assert load_math_file(_write(tmp_path, "\ufeff" + text.replace("\n", "\n\n", 1))) == (
        Task("a", "one", ("142",), {"year": 1999}),
        Task("some-3", "two", ("x^2",)),  # by line; line 2 is blank
        Task("3", "three", ("-4",)),
    )
    rows = '[{"prompt": "p", "answer": 7}, {"prompt": "q", "answer": 0.5, "id": null}]'
    assert load_math_file(_write(tmp_path, rows, "other.json")) == (
        Task("other-1", "p", ("7",)),
        Task("other-2", "q", ("0.5",)),
    )


@pytest.mark.parametrize(
    ("answer", "golds"),
    [
        ("017 or 018 (both were accepted)", ("017", "018")),
        ("017 or 018", ("017", "018")),
        ("x or y", ("x or y",)),
        ("3, 4 or 5 (all accepted)", ("3", "4", "5")),
        ("x=1 or x=2", ("x=1 or x=2",)),  # a gold with two parts, not two golds
        (r"60^\circ", (r"60^\circ",)),
        (12, ("12",)),
        (0.0, ("0",)),
        (-0.0, ("0",)),
        (1e21, ("1000000000000000000000",)),
    ],
)
def test_answers_become_golds(tmp_path: Path, answer: object, golds: tuple[str, ...]) -> None:
    path = _write(tmp_path, json.dumps([{"prompt": "p", "answer": answer}]), "a.json")
    assert load_math_file(path)[0].answers == golds


GOOD = '{"prompt": "p", "answer": 1, "id": "a"}\n'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"answer": 1}', r"line 2: \{\"answer\": 1\} lacks 'prompt'; add it"),
        ('{"prompt": "q"}', "line 2: .* lacks 'answer'"),
        ('{"prompt": "  ", "answer": 1}', "line 2: prompt is '  '; give the problem's text"),
        ('{"prompt": 5, "answer": 1}', "line 2: prompt is 5"),
        ('{"prompt": "\\ud800", "answer": 1}', "line 2: prompt holds '.ud800', half a char"),
        ('{"prompt": "q", "answer": null}', "line 2: answer is null; give a text or a finite"),
        ('{"prompt": "q", "answer": NaN}', "line 2: answer is NaN"),
        ('{"prompt": "q", "answer": -Infinity}', "line 2: answer is -Infinity"),
        ('{"prompt": "q", "answer": true}', "line 2: answer is true"),
        ('{"prompt": "q", "answer": " "}', "line 2: answer is ' '"),
        ('{"prompt": "q", "answer": [1]}', r"line 2: answer is \[1\]"),
        ('{"prompt": "q", "answer": 1, "id": "a"}', "line 2: id 'a' is already that of 1"),
        ('{"prompt": "q", "answer": 1, "id": 2.5}', "line 2: id is 2.5"),
        ('{"prompt": "q", "answer": 1, "id": ""}', "line 2: id is ''"),
        ('["q", 1]', r"line 2: \[\"q\", 1\] is a JSON list; give an object"),
        ('"q"', "line 2: 'q' is a JSON string"),
        ('{"prompt": "q" "answer": 1}', "line 2: invalid JSON at .*column 16, near"),
        ("[" * 100_000, "line 2: JSON that cannot be used"),
        ('{"prompt": "q", "answer": ' + "9" * 5000 + "}", "line 2: JSON that cannot be used"),
        ('{"prompt": "' + "q" * 500 + '"}', r"line 2: .{60} lacks 'answer'"),
    ],
)
def test_a_bad_row_is_named_in_one_line(tmp_path: Path, row: str, message: str) -> None:
    path = _write(tmp_path, GOOD + row)
    with pytest.raises(TaskError, match=message) as caught:
        load_math_file(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"prompt": "p", "answer": 1}', "holds a JSON object; give a list"),
        ("a.json", "[]", "holds no problems"),
        ("a.json", '[{"prompt": "p"}]', "row 1: .* lacks 'answer'"),
        ("a.json", "[1", "invalid JSON at line 1, column 3, near 'the end'"),
        ("a.json", "", "the file is empty"),
        ("a.jsonl", " \n\n", "the file is empty"),
        ("a.jsonl", b'{"prompt": "\xff"}', "byte 12 is not UTF-8"),
        ("a.csv", "prompt,answer", "ends in '.csv'; give a .json or .jsonl file"),
    ],
)
def test_a_bad_file_is_an_error(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        load_math_file(_write(tmp_path, content, name))


def test_a_missing_file_and_a_directory_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"gone\.json: there is no such file"):
        load_math_file(tmp_path / "gone.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TaskError, match="this is a directory"):
        load_math_file(tmp_path / "folder.json")


def _numbered(count: int, name: str = "p") -> str:
    return _jsonl(*({"prompt": f"{name}{i}", "answer": i} for i in range(count)))


def _texts(source: FileMath, split: str) -> list[str]:
    return [source.get(split, i).prompt for i in range(source.size(split))]


def test_each_split_is_a_seeded_shuffle_that_starts_over(tmp_path: Path) -> None:
    train, test = _write(tmp_path, _numbered(30)), _write(tmp_path, _numbered(5, "q"), "t.jsonl")
    source, other = FileMath(train, test, seed=1), FileMath(train, test, seed=2)
    assert (source.size("train"), source.size("test")) == (30, 5)
    texts = _texts(source, "train")
    assert sorted(texts) == sorted(f"p{i}" for i in range(30))
    assert texts != [f"p{i}" for i in range(30)]
    assert texts == _texts(FileMath(train, test, seed=1), "train")
    assert texts != _texts(other, "train")
    assert source.get("train", 30) == source.get("train", 0)
    assert source.get("test", 12) == source.get("test", 2)
    assert source.find("some-4").prompt == "p3"
    assert source.find("t-1").prompt == "q0"
    with pytest.raises(TaskError, match=r"'some-44'; did you mean 'some-"):
        source.find("some-44")


@pytest.mark.parametrize(("rows", "held"), [(2, 1), (19, 1), (20, 2), (640, 64), (1000, 64)])
def test_a_tenth_is_held_out(tmp_path: Path, rows: int, held: int) -> None:
    source = FileMath(_write(tmp_path, _numbered(rows)), seed=4)
    assert (source.size("train"), source.size("test")) == (rows - held, held)
    assert set(_texts(source, "train")).isdisjoint(_texts(source, "test"))


def test_of_the_same_file_twice_all_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps([{"prompt": f"Problem {n}", "answer": n} for n in range(3)]))
    source = FileMath(path, path)
    assert (source.size("train"), source.size("test")) == (0, 3)
    assert {source.get("test", n).prompt for n in range(3)} == {f"Problem {n}" for n in range(3)}
    with pytest.raises(TaskError, match="split 'train' has no problem: tasks and test_tasks are"):
        source.get("train", 0)


def test_what_is_held_out_depends_on_the_seed_not_on_the_order(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "answer": i, "id": f"r{i}"} for i in range(50)]
    ahead = _write(tmp_path, _jsonl(*rows), "a.jsonl")
    back = _write(tmp_path, _jsonl(*reversed(rows)), "b.jsonl")
    assert _texts(FileMath(ahead), "test") == _texts(FileMath(back), "test")
    assert _texts(FileMath(ahead), "test") != _texts(FileMath(ahead, seed=1), "test")


def test_one_text_never_falls_in_both_splits(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i // 2}" + " " * (i % 2), "answer": i // 2} for i in range(40)]
    path = _write(tmp_path, _jsonl(*rows))
    for seed in range(10):
        source = FileMath(path, seed=seed)
        train, test = ({text.strip() for text in _texts(source, s)} for s in ("train", "test"))
        assert train.isdisjoint(test)
        assert (source.size("train"), source.size("test")) == (36, 4)
    twins = _jsonl(*({"prompt": text, "answer": 1} for text in ("p", "p", "q", "q", "q")))
    source = FileMath(_write(tmp_path, twins))
    assert _texts(source, "test") == ["p", "p"]  # more than a tenth, but the least there is


def test_training_rows_that_are_test_rows_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, test = _write(tmp_path, _numbered(6)), _write(tmp_path, _numbered(2), "t.jsonl")
    source = FileMath(train, test)
    assert sorted(_texts(source, "train")) == ["p2", "p3", "p4", "p5"]
    assert sorted(_texts(source, "test")) == ["p0", "p1"]
    assert "left out 2 training rows" in caplog.text
    with pytest.raises(TaskError, match="every training problem is a test problem"):
        FileMath(test, train)


def test_files_that_cannot_be_split_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="one problem text only"):
        FileMath(_write(tmp_path, _numbered(1)))
    with pytest.raises(TaskError, match="one problem text only"):
        FileMath(_write(tmp_path, GOOD + GOOD.replace('"a"', '"b"')))
    other = _write(tmp_path, GOOD.replace('"p"', '"q"'), "t.jsonl")
    with pytest.raises(TaskError, match="id 'a' stands for different problems"):
        FileMath(_write(tmp_path, GOOD), other)


@pytest.fixture(scope="module")
def data_folder() -> Path:
    folder = os.environ.get("MAPPA_DATA_DIR")
    if not folder:
        pytest.skip("MAPPA_DATA_DIR names no folder with AIME and AMC files")
    return Path(folder)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("AIME_1983_2024.json", 933),
        ("aime_2025.json", 30),
        ("amc.json", 117),
        ("amc_eval_32.json", 32),
    ],
)
def test_real_files_load_and_every_gold_is_correct(data_folder: Path, name: str, rows: int) -> None:
    tasks = load_math_file(data_folder / name)
    assert len(tasks) == rows
    scorer = MathAnswerScorer()
    for task in tasks:
        for gold in task.answers:
            assert scorer.score(task, rf"So \boxed{{{gold}}}.").verdict == "correct", task.id
    assert scorer._child.pid is None  # contest answers are integers
    scorer.close()


def test_real_files_make_a_source(data_folder: Path) -> None:
    source = FileMath(data_folder / "amc.json", data_folder / "amc_eval_32.json")
    assert source.size("test") == 32
    assert set(_texts(source, "train")).isdisjoint(_texts(source, "test"))
    both = FileMath(data_folder / "AIME_1983_2024.json", data_folder / "aime_2025.json")
    assert (both.size("train"), both.size("test")) == (933, 30)
    alternatives = [
        task for task in (both.get("train", i) for i in range(933)) if len(task.answers) > 1
    ]
    assert [task.answers for task in alternatives] == [("080", "081")]

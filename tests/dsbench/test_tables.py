from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="needs the extra datascience")
pytest.importorskip("sklearn", reason="needs the extra datascience")

from mappa_envs.errors import TaskError  # noqa: E402
from mappa_envs.outcomes.grade import grade_of  # noqa: E402
from mappa_envs.outcomes.grading import check_grading  # noqa: E402
from mappa_envs.outcomes.metrics import METRICS  # noqa: E402
from mappa_envs.outcomes.table_judge import check_truth, judge  # noqa: E402
from mappa_envs.tasks.catalogue import TableSpec, load_catalogue  # noqa: E402
from mappa_envs.tasks.corruption import CORRUPTIONS, STRENGTHS  # noqa: E402
from mappa_envs.tasks.stratified import (  # noqa: E402
    batch_counts,
    interleaved,
    stratified_order,
    stratified_split,
)
from mappa_envs.tasks.table_files import (  # noqa: E402
    MAX_ROWS,
    as_csv,
    make_task,
    read_table,
    split_table,
)
from mappa_envs.tasks.table_prompts import TITLES  # noqa: E402
from mappa_envs.tasks.tables import LEVELS, TableTasks  # noqa: E402
from mappa_envs.types import Task  # noqa: E402

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "scenarios" / "dsbench" / "tables.toml"
SHIPPED = load_catalogue(CATALOGUE)
FRUIT = """
[{name}]
package = "fruit-tables"
module = "fruit_tables"
file = "fruit.csv"
task_type = "{task_type}"
metric = "{metric}"
targets = ["{target}"]
train_only = ["price"]
source = "made up"
licence = "CC0"
about = "Fruit on a market."
corruptions = ["duplicate_rows"]
[{name}.columns]
size = "in cm"
"""


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


@pytest.fixture
def fruit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of two tasks of each type, on a package of 30 rows: 20 apples and 10 pears."""
    package = tmp_path / "packages" / "fruit_tables"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    lines = ["kind,size,price,weight"]
    for n in range(30):
        lines.append(f"{'apple' if n < 20 else 'pear'},{n / 10},{n}.5,{100 + n}")
    lines.append(",3.1,1,")
    (package / "fruit.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    path = tmp_path / "fruit.toml"
    path.write_text(
        "".join(
            FRUIT.format(name=name, task_type=kind, metric=metric, target=target)
            for name, kind, metric, target in (
                ("kind-a", "classification", "accuracy", "kind"),
                ("kind-b", "classification", "f1_macro", "kind"),
                ("weight-a", "regression", "mae", "weight"),
                ("weight-b", "regression", "rmse", "weight"),
            )
        )
    )
    return path


def spec_of(path: Path, name: str = "kind-a") -> TableSpec:
    return load_catalogue(path)[name]


class TestTheCatalogue:
    def test_it_has_enough_tasks_of_both_types(self) -> None:
        types = [spec.task_type for spec in SHIPPED.values()]
        assert types.count("classification") >= 12
        assert types.count("regression") >= 12

    def test_no_two_tasks_share_a_table_so_no_split_knows_the_other(self) -> None:
        places = [(spec.module, spec.file, spec.loader) for spec in SHIPPED.values()]
        assert len(set(places)) == len(places)

    def test_messy_tables_are_among_them(self) -> None:
        used = {name for spec in SHIPPED.values() for name in spec.corruptions}
        assert used == set(CORRUPTIONS)
        assert sum(bool(spec.train_only) for spec in SHIPPED.values()) >= 10
        assert sum(bool(spec.dates) for spec in SHIPPED.values()) >= 3

    @pytest.mark.parametrize("name", SHIPPED)
    def test_an_entry_says_where_its_table_is_from(self, name: str) -> None:
        assert SHIPPED[name].source
        assert SHIPPED[name].licence
        assert set(SHIPPED[name].targets) <= set(SHIPPED[name].columns)

    def test_every_metric_has_a_title(self) -> None:
        assert set(TITLES) == set(METRICS)

    def test_levels_are_those_of_the_corruptions(self) -> None:
        assert tuple(range(len(STRENGTHS))) == LEVELS

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('metric = "acuracy"', "did you mean 'accuracy'"),
            ('loader = "load_iris"', "give one of file and loader"),
            ('keep = ["kind"]\ndrop = ["size"]', "give one of keep and drop"),
            ("colour = 3", "colour"),
        ],
    )
    def test_a_wrong_entry_is_named(
        self, fruit: Path, tmp_path: Path, line: str, message: str
    ) -> None:
        text = fruit.read_text().split("[kind-b]")[0]
        if line.startswith("metric"):
            text = text.replace('metric = "accuracy"', line)
        else:
            text = text.replace('source = "made up"', f'source = "made up"\n{line}')
        wrong = tmp_path / "wrong.toml"
        wrong.write_text(text)
        with pytest.raises(TaskError, match=rf"wrong\.toml: kind-a.*{message}"):
            load_catalogue(wrong)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TaskError, match=r"none\.toml: cannot be read \(No such file"):
            load_catalogue(tmp_path / "none.toml")


class TestPackages:
    def test_a_package_that_is_not_installed_is_named_with_the_extra(self, fruit: Path) -> None:
        text = fruit.read_text().replace('module = "fruit_tables"', 'module = "no_such_tables"')
        fruit.write_text(text)
        with pytest.raises(TaskError, match=r"'kind-a' needs the package fruit-tables") as caught:
            TableTasks(fruit)
        assert "pip install 'mappa[datasets]'" in str(caught.value)

    def test_a_package_is_not_imported_for_its_file(self, fruit: Path) -> None:
        assert len(read_table("kind-a", spec_of(fruit))) == 30
        assert "fruit_tables" not in sys.modules

    def test_a_file_that_the_package_lacks_is_named(self, fruit: Path) -> None:
        spec = spec_of(fruit).model_copy(update={"file": "data/none.csv"})
        with pytest.raises(TaskError, match=r"'kind-a': needs data/none\.csv of the package"):
            read_table("kind-a", spec)

    def test_a_column_that_the_table_lacks_is_named(self, fruit: Path) -> None:
        spec = spec_of(fruit).model_copy(update={"drop": ("stem",)})
        with pytest.raises(TaskError, match="has no column 'stem'"):
            read_table("kind-a", spec)

    def test_numbers_are_read_to_their_last_bit(self, fruit: Path, tmp_path: Path) -> None:
        place = tmp_path / "packages" / "fruit_tables" / "fruit.csv"
        place.write_text(
            "kind,size,price,weight\na,26.790678024291992,007,1\nb,0.30000000000000004,x,2\n"
        )
        table = read_table("weight-a", spec_of(fruit, "weight-a"))
        assert list(table["size"]) == [26.790678024291992, 0.30000000000000004]
        assert list(table["price"]) == ["007", "x"]
        assert table["weight"].dtype == "int64"

    def test_rows_without_a_target_are_left_out(self, fruit: Path) -> None:
        table = read_table("kind-a", spec_of(fruit))
        assert list(table["kind"]).count("apple") == 20
        assert list(table["kind"]).count("pear") == 10


class TestSplitting:
    def test_each_class_gives_three_tenths_to_the_test_rows(self, fruit: Path) -> None:
        spec = spec_of(fruit)
        tables = split_table("kind-a", spec, read_table("kind-a", spec), 0)
        assert tables.truth["kind"].value_counts().to_dict() == {"apple": 6, "pear": 3}
        assert tables.train["kind"].value_counts().to_dict() == {"apple": 14, "pear": 7}

    def test_a_class_of_two_is_on_both_sides_and_one_of_one_is_left_out(self, fruit: Path) -> None:
        spec = spec_of(fruit)
        table = pd.DataFrame(
            {"kind": ["a"] * 8 + ["b", "b", "c"], "size": 1.0, "price": 1.0, "weight": 1.0}
        )
        tables = split_table("kind-a", spec, table, 0)
        assert list(tables.train["kind"]).count("b") == 1
        assert list(tables.truth["kind"]).count("b") == 1
        assert tables.labels == ("a", "b")

    def test_ids_name_each_row_once_and_say_nothing_of_its_place(self, fruit: Path) -> None:
        spec = spec_of(fruit, "weight-a")
        tables = split_table("weight-a", spec, read_table("weight-a", spec), 0)
        ids = [*tables.train["row_id"], *tables.truth["row_id"]]
        assert sorted(ids) == list(range(1000, 1030))
        weights = [*tables.train["weight"], *tables.truth["weight"]]
        in_order = [weight for _, weight in sorted(zip(ids, weights, strict=True))]
        assert in_order != sorted(weights)
        assert list(tables.test["row_id"]) == sorted(tables.test["row_id"])

    def test_columns_that_give_the_answer_away_are_in_train_alone(self, fruit: Path) -> None:
        spec = spec_of(fruit)
        tables = split_table("kind-a", spec, read_table("kind-a", spec), 0)
        assert list(tables.train.columns) == ["row_id", "size", "price", "weight", "kind"]
        assert list(tables.test.columns) == ["row_id", "size", "weight"]
        assert list(tables.truth.columns) == ["row_id", "kind"]

    def test_a_long_table_is_cut(self, fruit: Path) -> None:
        spec = spec_of(fruit, "weight-a")
        table = pd.DataFrame({"kind": "a", "size": 1.0, "price": 1.0, "weight": range(3000)})
        tables = split_table("weight-a", spec, table, 0)
        assert len(tables.train) + len(tables.test) == MAX_ROWS
        assert max(tables.train["weight"]) > MAX_ROWS  # rows are drawn from all over the table


class TestTasks:
    def test_the_files_are_what_the_prompt_says(self, fruit: Path) -> None:
        task = make_task("kind-a", spec_of(fruit), "train", 0, 0)
        assert set(task.files) == {"train.csv", "test.csv", "sample_submission.csv"}
        train, test = rows_of(task.files["train.csv"]), rows_of(task.files["test.csv"])
        sample = rows_of(task.files["sample_submission.csv"])
        assert (len(train), len(test), len(sample)) == (21, 9, 9)
        assert "train.csv: 21 rows" in task.prompt
        assert "test.csv: 9 rows" in task.prompt
        assert "Fruit on a market." in task.prompt
        assert "- size: in cm" in task.prompt
        assert "- kind (to be predicted)" in task.prompt
        assert "Only in train.csv: price." in task.prompt
        assert "accuracy; higher is better" in task.prompt
        assert "header row_id,kind" in task.prompt
        assert "labels apple, pear." in task.prompt
        assert {row["kind"] for row in sample} == {"apple"}
        assert [row["row_id"] for row in sample] == sorted(row["row_id"] for row in test)

    def test_the_answers_are_in_the_grading_alone(self, fruit: Path) -> None:
        task = make_task("weight-a", spec_of(fruit, "weight-a"), "train", 0, 0)
        assert task.grading is not None
        truth = rows_of(task.grading.truth_csv)
        assert len(truth) == 9
        for name, content in task.files.items():
            for row in truth:
                assert row["weight"].encode() not in content, f"{row} is in {name}"
        assert "truth" not in repr(task)
        assert task.answers == ()

    def test_the_baseline_is_that_of_the_best_constant(self, fruit: Path) -> None:
        kind = make_task("kind-a", spec_of(fruit), "train", 0, 0)
        weight = make_task("weight-a", spec_of(fruit, "weight-a"), "train", 0, 0)
        assert kind.grading is not None
        assert weight.grading is not None
        assert kind.grading.baseline == pytest.approx(6 / 9)  # apples everywhere
        median = pd.Series(float(r["weight"]) for r in rows_of(weight.files["train.csv"])).median()
        errors = [abs(float(r["weight"]) - median) for r in rows_of(weight.grading.truth_csv)]
        assert weight.grading.baseline == pytest.approx(sum(errors) / 9)

    def test_another_seed_gives_other_rows(self, fruit: Path) -> None:
        one, other = (make_task("kind-a", spec_of(fruit), "train", 0, seed) for seed in (0, 1))
        assert one.files["test.csv"] != other.files["test.csv"]

    def test_duplicates_are_corruption_of_higher_levels(self, fruit: Path) -> None:
        clean, spoilt = (make_task("kind-a", spec_of(fruit), "train", n, 0) for n in (0, 3))
        assert clean.files["train.csv"].count(b"\n") == 22
        assert spoilt.files["train.csv"].count(b"\n") == 26  # a fifth of 21 rows
        assert clean.metadata["corruptions"] == []
        assert spoilt.metadata["corruptions"] == ["duplicate_rows"]

    def test_numbers_are_written_so_that_they_read_back_the_same(self) -> None:
        assert as_csv(pd.DataFrame({"a": [0.1 + 0.2, 1e22, 3.0]})) == (
            b"a\n0.30000000000000004\n1e+22\n3.0\n"
        )

    def test_every_process_makes_the_same_bytes(self) -> None:
        program = (
            "import sys; from pathlib import Path\n"
            "from mappa_envs.tasks.catalogue import load_catalogue\n"
            "from mappa_envs.tasks.table_files import make_task\n"
            f"entries = load_catalogue(Path({str(CATALOGUE)!r}))\n"
            "for name in ('iris', 'diabetes'):\n"
            "    task = make_task(name, entries[name], 'train', 3, 5)\n"
            "    for file in sorted(task.files):\n"
            "        sys.stdout.buffer.write(task.files[file])\n"
            "    sys.stdout.buffer.write(task.grading.truth_csv + task.prompt.encode())"
        )
        here = b""
        for task in (
            make_task(name, SHIPPED[name], "train", 3, 5) for name in ("iris", "diabetes")
        ):
            assert task.grading is not None
            here += b"".join(task.files[file] for file in sorted(task.files))
            here += task.grading.truth_csv + task.prompt.encode()
        other_seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": other_seed},
            capture_output=True,
            check=True,
        )
        assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(here).digest()


@pytest.mark.parametrize("level", [pytest.param(0, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_table_becomes_a_task_that_can_be_judged(name: str, level: int) -> None:
    spec = SHIPPED[name]
    if importlib.util.find_spec(spec.module) is None:
        pytest.skip(f"needs the package {spec.package} of the extra datasets")
    task = make_task(name, spec, "test", level, 0)
    grading = task.grading
    assert grading is not None
    check_grading(grading)
    check_truth(grading)
    sample = grade_of(grading, judge(grading, task.files["sample_submission.csv"]))
    assert sample.verdict == "valid"
    assert sample.score < 0.5
    assert_no_answers_in_test(task)
    train = rows_of(task.files["train.csv"])
    assert 100 <= len(train) <= 1.2 * MAX_ROWS
    assert len(rows_of(grading.truth_csv)) >= 40


def assert_no_answers_in_test(task: Task) -> None:
    assert task.grading is not None
    header = task.files["test.csv"].decode().splitlines()[0].split(",")
    assert not set(header) & set(task.grading.targets)
    ids = [row["row_id"] for row in rows_of(task.files["test.csv"])]
    assert ids == [row["row_id"] for row in rows_of(task.grading.truth_csv)]
    assert not set(ids) & {row["row_id"] for row in rows_of(task.files["train.csv"])}


class TestTheSource:
    def test_splits_share_no_task_and_have_both_types(self, fruit: Path) -> None:
        splits = TableTasks(fruit).splits
        assert sorted(splits["train"] + splits["test"]) == [
            "kind-a",
            "kind-b",
            "weight-a",
            "weight-b",
        ]
        for names in splits.values():
            assert sorted(name[:-2] for name in names) == ["kind", "weight"]

    def test_tasks_are_found_by_place_and_by_id(self, fruit: Path) -> None:
        source = TableTasks(fruit, batch_size=2)
        assert (source.size("train"), source.size("test")) == (2, 2)
        first = source.get("train", 0)
        assert source.get("train", 2) is first
        assert source.find(first.id) is first
        assert first.split == "train"
        assert source.get("test", 0).split == "test"

    def test_every_batch_has_both_types(self, fruit: Path) -> None:
        source = TableTasks(fruit, batch_size=2)
        types = {source.get("train", place).metadata["task_type"] for place in range(2)}
        assert types == {"classification", "regression"}

    def test_the_seed_decides_the_splits(self, fruit: Path) -> None:
        found = {TableTasks(fruit, seed=seed).splits["test"] for seed in range(20)}
        assert len(found) == 4

    def test_some_tasks_can_be_chosen(self, fruit: Path) -> None:
        with pytest.raises(TaskError, match="no task is called 'kind-c'; did you mean"):
            TableTasks(fruit, only=["kind-c"])
        source = TableTasks(fruit, only=["kind-a", "kind-b", "weight-a"])
        assert sorted(source.splits["train"] + source.splits["test"]) == [
            "kind-a",
            "kind-b",
            "weight-a",
        ]
        assert "weight-a" in source.splits["train"]

    def test_one_task_is_enough(self, fruit: Path) -> None:
        source = TableTasks(fruit, only=["kind-a"])
        assert source.splits == {"train": ("kind-a",), "test": ()}
        assert source.get("train", 3).id == "kind-a"
        with pytest.raises(TaskError, match="split 'test' has no task"):
            source.get("test", 0)

    @pytest.mark.parametrize("level", [4, -1, "2"])
    def test_a_wrong_level_is_an_error(self, fruit: Path, level: object) -> None:
        with pytest.raises(TaskError, match="level of the tables is"):
            TableTasks(fruit, level=level)  # type: ignore[arg-type]

    def test_unknown_names_and_places_are_errors(self, fruit: Path) -> None:
        source = TableTasks(fruit)
        with pytest.raises(TaskError, match="did you mean 'kind-a'"):
            source.find("kind-aa")
        with pytest.raises(TaskError, match="split"):
            source.size("eval")  # type: ignore[arg-type]
        with pytest.raises(TaskError, match="index"):
            source.get("test", -1)

    def test_the_shipped_splits_are_stratified(self) -> None:
        types = [spec.task_type for spec in SHIPPED.values()]
        kept, held = stratified_split(types, 0.25, 0)
        assert len(kept) + len(held) == len(SHIPPED)
        assert [types[place] for place in held].count("classification") == 4
        assert [types[place] for place in held].count("regression") == 4

    @pytest.mark.parametrize("seed", [0, 1, 7])
    def test_two_held_out_tasks_are_of_two_types(self, seed: int) -> None:
        source = TableTasks(CATALOGUE, seed=seed)
        played = [source.get("test", place).id for place in range(2)]
        assert played == list(source.splits["test"][:2])
        assert {SHIPPED[name].task_type for name in played} == {"classification", "regression"}
        first = source.splits["train"][:2]
        assert {SHIPPED[name].task_type for name in first} == {"classification", "regression"}


class TestInterleaved:
    def test_types_take_turns_in_their_ratio(self) -> None:
        types = ["c", "c", "r", "r", "r", "r", "r", "r"]
        order = interleaved(types, 0)
        assert sorted(order) == list(range(8))
        # c at 1/4 and 3/4; r at 1/12, 3/12, ..., 11/12; where both are due c is first
        assert "".join(types[place] for place in order) == "rcrrrcrr"

    def test_the_seed_decides_which_of_a_type_comes_first(self) -> None:
        types = ["c", "r"] * 4
        assert interleaved(types, 1) == interleaved(types, 1)
        assert {interleaved(types, seed)[0] for seed in range(30)} == {0, 2, 4, 6}

    def test_no_items_have_no_order(self) -> None:
        assert interleaved([], 0) == ()


class TestStratifiedOrder:
    @pytest.mark.parametrize(
        ("sizes", "batch_size", "expected"),
        [
            ([30, 34], 8, (4, 4)),  # 3.75 and 4.25
            ([30, 34], 7, (3, 4)),  # 3.28 and 3.72
            ([3, 9], 3, (1, 2)),  # 0.75 and 2.25
            ([5, 5], 3, (1, 2)[::-1]),  # 1.5 and 1.5 give 2 each: one too many for the first
            ([1, 99], 8, (1, 7)),  # 0.08 rounds to none, and each type has one
            ([4], 3, (3,)),
            ([5, 5, 1, 1], 4, (1, 1, 1, 1)),
        ],
    )
    def test_a_batch_has_each_type_in_its_share(
        self, sizes: list[int], batch_size: int, expected: tuple[int, ...]
    ) -> None:
        counts = batch_counts(sizes, batch_size)
        assert sum(counts) == batch_size
        assert sorted(counts) == sorted(expected)
        if len(set(sizes)) == len(sizes):
            assert counts == expected

    def test_every_batch_keeps_the_ratio_and_every_item_comes(self) -> None:
        types = ["c"] * 12 + ["r"] * 13
        order = stratified_order(types, 4, seed=3)
        assert len(order) == 28  # the 13 of the one type take seven batches of two
        for start in range(0, 28, 4):
            assert sorted(types[place] for place in order[start : start + 4]) == [
                "c",
                "c",
                "r",
                "r",
            ]
        assert set(order) == set(range(25))
        assert len({place for place in order[:24] if types[place] == "c"}) == 12

    def test_a_type_that_is_used_up_is_shuffled_anew(self) -> None:
        types = ["c"] * 3 + ["r"] * 60
        order = stratified_order(types, 21, seed=0)  # 1 and 20 a batch, so three batches
        assert sorted(place for place in order if types[place] == "c") == [0, 1, 2]
        again = stratified_order(["c"] * 2 + ["r"] * 60, 21, seed=0)
        drawn = [place for place in again if place < 2]
        assert len(drawn) == 3
        assert set(drawn[:2]) == {0, 1}

    def test_the_seed_decides_the_order(self) -> None:
        types = ["c"] * 6 + ["r"] * 6
        assert stratified_order(types, 4, 1) == stratified_order(types, 4, 1)
        assert stratified_order(types, 4, 1) != stratified_order(types, 4, 2)

    def test_no_items_have_no_order(self) -> None:
        assert stratified_order([], 4, 0) == ()

    def test_a_batch_too_small_for_all_types_is_an_error(self) -> None:
        with pytest.raises(TaskError, match="batch size is 1, and there are 2 types"):
            stratified_order(["c", "r"], 1, 0)

    def test_the_only_item_of_a_type_is_kept(self) -> None:
        kept, held = stratified_split(["c", "c", "r"], 0.25, 0)
        assert len(held) == 1
        assert 2 in kept
        assert stratified_split(["r"], 0.25, 0) == ((0,), ())

    def test_a_split_holds_out_its_share_of_each_type(self) -> None:
        kept, held = stratified_split(["c"] * 8 + ["r"] * 2, 0.25, 0)
        assert sorted(kept + held) == list(range(10))
        assert sum(place < 8 for place in held) == 2
        assert sum(place >= 8 for place in held) == 1

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappa_envs.errors import TaskError
from mappa_envs.outcomes.grade import grade_of, relative_performance_gap
from mappa_envs.outcomes.metrics import METRICS
from mappa_envs.tasks.dsbench_files import (
    Competition,
    DsbenchFiles,
    files_of,
    load_benchmark,
    load_cleaned_prompts,
    load_task_list,
    missing_files,
    names_in,
)
from mappa_envs.tasks.source import choose_task
from mappa_envs.types import Split, Task

BENCHMARK = Path(__file__).parents[2] / "scenarios" / "dsbench" / "benchmark.toml"
KNOWN = load_benchmark(BENCHMARK)

needs_lists = pytest.mark.skipif(
    "MAPPA_DATA_DIR" not in os.environ,
    reason="MAPPA_DATA_DIR, the folder of MAPPA's lists, is not set",
)

WRONG_TYPES = {
    "playground-series-s4e6": "classification",
    "playground-series-s4e2": "classification",
    "playground-series-s3e13": "classification",
    "playground-series-s3e22": "classification",
    "tabular-playground-series-feb-2022": "classification",
    "tweet-sentiment-extraction": "classification",
    "liverpool-ion-switching": "classification",
}
"""Where the task lists say regression; the last has no entry among the cleaned prompts."""

WRONG_METRICS = {
    "playground-series-s3e25": "medae",
    "tabular-playground-series-jul-2021": "mcrmsle",
    "porto-seguro-safe-driver-prediction": "normalized_gini",
    "santander-value-prediction-challenge": "rmsle",
    "bike-sharing-demand": "rmsle",
    "playground-series-s3e5": "quadratic_weighted_kappa",
    "feedback-prize-english-language-learning": "mcrmse",
    "playground-series-s4e4": "rmsle",
    "tabular-playground-series-jan-2022": "smape",
    "covid19-global-forecasting-week-1": "mcrmsle",
    "covid19-global-forecasting-week-2": "mcrmsle",
    "covid19-global-forecasting-week-3": "mcrmsle",
    "covid19-global-forecasting-week-4": "mcrmsle",
    "us-patent-phrase-to-phrase-matching": "pearson",
    "playground-series-s3e13": "map_at_3",
    "demand-forecasting-kernels-only": "smape",
    "playground-series-s3e11": "rmsle",
    "tmdb-box-office-prediction": "rmsle",
    "google-quest-challenge": "spearman",
    "playground-series-s4e5": "r2",
    "learning-agency-lab-automated-essay-scoring-2": "quadratic_weighted_kappa",
    "nlp-getting-started": "f1",
    "playground-series-s3e22": "f1_micro",
    "playground-series-s3e19": "smape",
    "tabular-playground-series-sep-2022": "smape",
    "tweet-sentiment-extraction": "jaccard",
}
"""Where MAPPA guesses another metric from words of the text."""

NAMES = {"qwk": "quadratic_weighted_kappa"}
"""The cleaned prompts' names of metrics that have another name here."""
QUEST_LABELS = 30


@pytest.fixture(scope="module")
def lists() -> Path:
    return Path(os.environ["MAPPA_DATA_DIR"])


@pytest.fixture(scope="module")
def cleaned(lists: Path) -> dict[str, dict[str, Any]]:
    text = (lists / "dsbench_modeling_cleaned_prompts.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table


def metadata_of(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["metadata"]["task_id"]: row["metadata"] for row in rows}


class TestWhatIsKnown:
    def test_there_are_64_training_and_8_held_out_tasks(self) -> None:
        splits = [entry.split for entry in KNOWN.values()]
        assert (splits.count("train"), splits.count("test")) == (64, 8)

    @pytest.mark.parametrize("name", KNOWN)
    def test_an_entry_fits_its_metric(self, name: str) -> None:
        entry = KNOWN[name]
        metric = METRICS[entry.metric]
        assert entry.direction == metric.direction
        numbers = metric.content == "numbers"
        assert entry.task_type == ("regression" if numbers else "classification")
        assert entry.id_column not in entry.targets
        assert len(set(entry.targets)) == len(entry.targets)
        assert (entry.baseline is None) == (entry.best is None)
        if entry.baseline is not None and entry.best is not None:
            assert (entry.best > entry.baseline) == (metric.direction == "higher")
            assert relative_performance_gap(entry.best, entry.baseline, entry.best) == 1.0
            assert entry.best == pytest.approx(metric.best, abs=1e-12)

    def test_a_gap_in_the_sources_is_stated(self) -> None:
        unpublished = {name for name, entry in KNOWN.items() if entry.baseline is None}
        assert unpublished == {
            "tabular-playground-series-oct-2021",
            "tabular-playground-series-mar-2022",
        }
        assert {name: entry.prompt for name, entry in KNOWN.items() if entry.prompt} == {
            "titanic": "wrong",
            "liverpool-ion-switching": "missing",
        }
        for name in (*unpublished, "titanic", "liverpool-ion-switching"):
            assert KNOWN[name].note

    def test_titanic_is_titanic(self) -> None:
        entry = KNOWN["titanic"]
        assert (entry.id_column, entry.targets, entry.metric) == (
            "PassengerId",
            ("Survived",),
            "accuracy",
        )

    def test_liverpool_is_what_its_competition_says(self) -> None:
        entry = KNOWN["liverpool-ion-switching"]
        assert (entry.id_column, entry.targets, entry.metric, entry.task_type) == (
            "time",
            ("open_channels",),
            "f1_macro",
            "classification",
        )

    def test_the_quest_has_its_thirty_labels_by_name(self) -> None:
        targets = KNOWN["google-quest-challenge"].targets
        assert len(targets) == QUEST_LABELS
        assert targets[0] == "question_asker_intent_understanding"
        assert targets[-1] == "answer_well_written"
        assert sum(name.startswith("question_") for name in targets) == 21

    @pytest.mark.parametrize(("name", "task_type"), WRONG_TYPES.items())
    def test_a_wrong_type_is_put_right(self, name: str, task_type: str) -> None:
        assert KNOWN[name].task_type == task_type

    @pytest.mark.parametrize(("name", "metric"), WRONG_METRICS.items())
    def test_a_wrongly_guessed_metric_is_put_right(self, name: str, metric: str) -> None:
        assert KNOWN[name].metric == metric

    def test_there_are_26_of_them(self) -> None:
        assert len(WRONG_METRICS) == 26


@needs_lists
class TestAgainstTheLists:
    @pytest.mark.parametrize("name", KNOWN)
    def test_split_and_type_are_those_of_the_lists_but_for_their_errors(
        self, lists: Path, name: str
    ) -> None:
        file = {"train": "dsbench_modeling_train.jsonl", "test": "dsbench_modeling_eval.jsonl"}
        listed = metadata_of(lists / file[KNOWN[name].split])
        assert name in listed
        assert KNOWN[name].task_type == WRONG_TYPES.get(name, listed[name]["data_type"])
        if name in WRONG_TYPES:
            assert listed[name]["data_type"] == "regression"

    @pytest.mark.parametrize("name", sorted(set(KNOWN) - {"liverpool-ion-switching"}))
    def test_columns_and_metric_are_those_of_the_cleaned_prompts_but_for_their_errors(
        self, cleaned: dict[str, dict[str, Any]], name: str
    ) -> None:
        entry, listed = KNOWN[name], cleaned[name]
        metric = NAMES.get(listed["metric"], listed["metric"])
        several = len(entry.targets) > 1 and metric == "rmsle"
        assert entry.metric == ("mcrmsle" if several else metric)
        assert entry.id_column == listed["id_column"]
        if listed["task_type"] != "extraction":
            assert entry.task_type == listed["task_type"]
        targets = listed["target_column"]
        if name == "titanic":
            assert targets == "Transported"  # of another competition
        elif targets != "30_labels":
            assert entry.targets == tuple([targets] if isinstance(targets, str) else targets)

    def test_the_lists_have_these_tasks_and_no_others(
        self, lists: Path, cleaned: dict[str, dict[str, Any]]
    ) -> None:
        listed = [
            *load_task_list(lists / "dsbench_modeling_train.jsonl"),
            *load_task_list(lists / "dsbench_modeling_eval.jsonl"),
        ]
        assert sorted(listed) == sorted(KNOWN)
        assert set(KNOWN) - set(cleaned) == {"liverpool-ion-switching"}

    def test_the_wrong_cleaned_prompt_is_left_out(self, lists: Path) -> None:
        texts = load_cleaned_prompts(lists / "dsbench_modeling_cleaned_prompts.json", KNOWN)
        assert set(KNOWN) - set(texts) == {"titanic", "liverpool-ion-switching"}
        assert set(texts) <= set(KNOWN)

    @pytest.mark.parametrize("name", KNOWN)
    def test_published_values_are_those_of_the_table(self, lists: Path, name: str) -> None:
        lines = (lists / "dsbench_published_scores.csv").read_text().splitlines()[1:]
        published = {line.split(",")[0]: line.split(",")[1:3] for line in lines}
        entry = KNOWN[name]
        if entry.baseline is None:
            assert name == "tabular-playground-series-mar-2022" or name not in published
            return
        scale = 100 if name == "playground-series-s3e19" else 1  # a fraction there
        assert entry.best == float(published[name][0])
        assert entry.baseline == pytest.approx(scale * float(published[name][1]), rel=1e-15)


TITANIC = {
    "train.csv": "PassengerId,Survived,Age\n1,0,20\n2,1,30\n3,0,\n",
    "test.csv": "PassengerId,Age\n7,30\n8,50\n",
    "sample_submission.csv": "PassengerId,Survived\n7,0\n8,0\n",
    "test_answer.csv": "PassengerId,Survived\n7,1\n8,0\n",
}
MINERALS = {
    "train.csv": "id,mass,Hardness\n0,1,2.5\n1,2,4.5\n2,2,6.5\n",
    "test.csv": "id,mass\n3,1\n4,2\n",
    "sample_submission.csv": "id,Hardness\n3,0\n4,0\n",
    "test_answer.csv": "id,mass,Hardness\n3,1,3.5\n4,2,9.5\n",
}
RISKS = {
    "train.csv": "id,size,defects\n0,1,True\n1,2,False\n",
    "test.csv": "id,size\n2,1\n3,2\n",
    "sample_submission.csv": "id,defects\n2,0.5\n3,0.5\n",
    "test_answer.csv": "id,defects\n2,True\n3,False\n",
}
PLACES = {"test_answer.csv": "answers"}
COPY = {
    "titanic": TITANIC,
    "playground-series-s3e25": MINERALS,
    "playground-series-s3e23": RISKS,
}


def write(root: Path, name: str, files: dict[str, str]) -> None:
    for file, text in files.items():
        path = root / PLACES.get(file, "data_resplit") / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy in DSBench's layout with three small tasks, one of them held out."""
    for name, files in COPY.items():
        write(tmp_path, name, files)
    index = "".join(
        json.dumps({"name": name, "url": f"https://example.org/{name}", "year": 2012}) + "\n"
        for name in (*COPY, "not-of-the-benchmark")
    )
    (tmp_path / "data.json").write_text(index)
    return tmp_path


class TestACopy:
    @pytest.fixture(autouse=True)
    def _needs_libraries(self) -> None:
        pytest.importorskip("pandas", reason="needs the extra datascience")
        pytest.importorskip("sklearn", reason="needs the extra datascience")

    def test_it_loads_and_grades(self, copy: Path) -> None:
        from mappa_envs.outcomes.table_judge import judge

        task = DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic")
        assert task.files["train.csv"] == TITANIC["train.csv"].encode()
        assert set(task.files) == {"train.csv", "test.csv", "sample_submission.csv"}
        grading = task.grading
        assert grading is not None
        assert grading.labels == ("0", "1")
        assert grading.baseline == 0.5  # 0, the most frequent, is right for one of two
        right = grade_of(grading, judge(grading, b"PassengerId,Survived\n8,0\n7,1\n"))
        assert (right.verdict, right.score, right.figures.value) == ("valid", 1.0, 1.0)
        short = grade_of(grading, judge(grading, b"PassengerId,Survived\n7,1\n"))
        assert (short.verdict, short.score) == ("missing_ids", 0.0)

    def test_a_regression_task_has_the_published_values_in_its_metadata(self, copy: Path) -> None:
        from mappa_envs.outcomes.table_judge import judge

        task = DsbenchFiles(copy, BENCHMARK, batch_size=1).get("test", 0)
        assert task.id == "playground-series-s3e25"
        assert task.split == "test"
        assert task.metadata["published_baseline"] == 1.3529999999999998
        assert task.metadata["published_best"] == 0.0
        assert task.metadata["source"].endswith("/playground-series-s3e25")
        grading = task.grading
        assert grading is not None
        assert grading.baseline == 3.0  # the median 4.5 is off by 1 and 5
        assert judge(grading, b"id,Hardness\n3,3.5\n4,8.5\n").value == 0.5

    def test_labels_that_are_no_numbers_have_the_positive_one_last(self, copy: Path) -> None:
        from mappa_envs.outcomes.table_judge import judge

        grading = (
            DsbenchFiles(copy, BENCHMARK, batch_size=1).find("playground-series-s3e23").grading
        )
        assert grading is not None
        assert grading.labels == ("False", "True")
        assert judge(grading, b"id,defects\n2,0.9\n3,0.1\n").value == 1.0

    def test_the_answers_are_in_no_file_of_the_workspace(self, copy: Path) -> None:
        write(copy, "titanic", {"test.csv": "PassengerId,Survived\n7,1\n8,0\n"})
        with pytest.raises(TaskError, match=r"test\.csv: has the target column 'Survived'"):
            DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic")

    def test_a_test_file_of_another_copy_is_an_error(self, copy: Path) -> None:
        write(copy, "titanic", {"test.csv": "PassengerId,Age\n7,30\n9,50\n"})
        with pytest.raises(TaskError, match="of the ids in PassengerId, 2 cannot be found both"):
            DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic")

    def test_answers_without_the_target_are_an_error(self, copy: Path) -> None:
        write(copy, "titanic", {"test_answer.csv": "PassengerId,Transported\n7,1\n8,0\n"})
        with pytest.raises(TaskError, match="there is no column 'Survived'; the columns are Pass"):
            DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic")

    def test_whole_numbers_and_their_floats_are_one_label(self, copy: Path) -> None:
        write(copy, "titanic", {"test_answer.csv": "PassengerId,Survived\n7,1.0\n8,0.0\n"})
        grading = DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic").grading
        assert grading is not None
        assert grading.labels == ("0", "1")

    def test_the_text_is_the_cleaned_one_where_that_is_right(
        self, copy: Path, tmp_path: Path
    ) -> None:
        listed = tmp_path / "list.jsonl"
        rows = [{"prompt": f"Text of {name}.", "metadata": {"task_id": name}} for name in COPY]
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        cleaned = tmp_path / "cleaned.json"
        cleaned.write_text(
            json.dumps({name: {"cleaned_prompt": f"Cleaned {name}."} for name in list(COPY)[:2]})
        )
        source = DsbenchFiles(
            copy, BENCHMARK, task_lists=[listed], cleaned_prompts=cleaned, batch_size=1
        )
        first = {name: source.find(name).prompt.splitlines()[0] for name in COPY}
        assert first == {
            "titanic": "Text of titanic.",
            "playground-series-s3e25": "Cleaned playground-series-s3e25.",
            "playground-series-s3e23": "Text of playground-series-s3e23.",
        }
        plain = DsbenchFiles(copy, BENCHMARK, batch_size=1).find("titanic").prompt
        assert plain.startswith("The tables are those of the competition titanic.")
        assert "Metric: accuracy; higher is better." in plain
        assert "header PassengerId,Survived" in plain


DAMAGE = {
    "empty": (b"", "is empty"),
    "blank lines": (b"\n\n\n", "is empty"),
    "not UTF-8": (b"PassengerId,Survived\n7,\xff\n", "is not UTF-8 .*; save it as UTF-8"),
    "zero bytes": (b"PassengerId,Survived\n7,\0\0\0\n", "has zero bytes in it"),
    "an open quote": (b'PassengerId,Survived\n7,"1\n8,0\n', "is no CSV"),
    "a short row": (b"PassengerId,Survived\n7,1\n8\n", "row 2 has 1 cells and the header 2"),
    "a long row": (b"PassengerId,Survived\n7,1,5\n8,0,5\n", "row 1 has 3 cells and the header 2"),
    "no rows": (b"PassengerId,Survived\n", "has a header and no rows"),
    "semicolons": (
        b"PassengerId;Survived\n7;1\n8;0\n",
        "there is one column, .*; the file seems to be separated by semicolons; save it with",
    ),
    "a column twice": (b"PassengerId,PassengerId,Survived\n7,7,1\n", "2 columns 'PassengerId'"),
}


class TestADamagedCopy:
    @pytest.fixture(autouse=True)
    def _needs_libraries(self) -> None:
        pytest.importorskip("sklearn", reason="needs the extra datascience")

    @staticmethod
    def titanic(copy: Path) -> Task:
        return DsbenchFiles(copy, BENCHMARK, only=["titanic"]).find("titanic")

    @pytest.mark.parametrize("damage", DAMAGE)
    @pytest.mark.parametrize("file", TITANIC)
    def test_damage_is_an_error_that_names_the_file(
        self, copy: Path, file: str, damage: str
    ) -> None:
        content, message = DAMAGE[damage]
        if file == "test.csv":
            content = content.replace(b"Survived", b"Age")
        if file == "train.csv" and damage == "a column twice":
            content, message = b"Survived,Survived\n0,1\n", "2 columns 'Survived'"
        files_of(copy, "titanic")[file].write_bytes(content)
        with pytest.raises(TaskError, match=f"{re.escape(file)}: .*{message}"):
            self.titanic(copy)

    def test_damage_in_a_column_that_no_answer_is_in_is_found(self, copy: Path) -> None:
        write(copy, "titanic", {"train.csv": "PassengerId,Survived,Age\n1,0,20\n2,1\n"})
        with pytest.raises(TaskError, match=r"train\.csv: row 2 has 2 cells and the header 3"):
            self.titanic(copy)

    def test_a_file_that_went_away_is_an_error(self, copy: Path) -> None:
        source = DsbenchFiles(copy, BENCHMARK, only=["titanic"])
        files_of(copy, "titanic")["train.csv"].unlink()
        with pytest.raises(TaskError, match=r"train\.csv: cannot be read \(No such file"):
            source.find("titanic")

    @pytest.mark.parametrize(
        ("sample", "message"),
        [
            ("PassengerId\n7\n8\n", "there is no column 'Survived'"),
            ("Survived\n0\n0\n", "there is no column 'PassengerId'"),
            ("PassengerId,Survived,Usage\n7,0,a\n8,0,a\n", "has a column 'Usage', with which"),
            ("PassengerId,Survived\n7,0\n9,0\n", "of the ids in PassengerId, 2 cannot be found"),
            ("PassengerId,Survived\n7,0\n", "of the ids in PassengerId, 1 cannot be found"),
        ],
    )
    def test_a_sample_that_leads_to_no_valid_submission_is_an_error(
        self, copy: Path, sample: str, message: str
    ) -> None:
        write(copy, "titanic", {"sample_submission.csv": sample})
        with pytest.raises(TaskError, match=rf"sample_submission\.csv: {message}"):
            self.titanic(copy)

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            (
                "test.csv",
                "PassengerId,Age\n7,3\n8,5\n7,3\n",
                "the id '7' is 2 times in PassengerId",
            ),
            ("sample_submission.csv", "PassengerId,Survived\n7,0\n8,0\n8,0\n", "the id '8' is 2"),
            ("test_answer.csv", "PassengerId,Survived\n7,1\n8,0\n8,0\n", "the id '8' is 2 times"),
            ("test.csv", "Age\n3\n", "has 1 rows and no column 'PassengerId', and there are 2 ans"),
        ],
    )
    def test_other_rows_than_those_of_the_answers_are_an_error(
        self, copy: Path, file: str, text: str, message: str
    ) -> None:
        write(copy, "titanic", {file: text})
        with pytest.raises(TaskError, match=rf"{re.escape(file)}: {message}"):
            self.titanic(copy)

    def test_a_test_file_without_ids_is_fine_where_it_has_all_rows(self, copy: Path) -> None:
        write(copy, "titanic", {"test.csv": "Age\n3\n5\n"})
        assert self.titanic(copy).files["test.csv"] == b"Age\n3\n5\n"

    def test_training_rows_that_are_test_rows_are_an_error(self, copy: Path) -> None:
        write(copy, "titanic", {"train.csv": f"{TITANIC['train.csv']}7,1,30\n8,0,50\n"})
        message = r"train\.csv: 2 rows have an id of the answers, e\.g\. '7', so that it holds test"
        with pytest.raises(TaskError, match=message):
            self.titanic(copy)

    @pytest.mark.parametrize("sample", ["7,1\n8,0\n", "8,0.0\n7,1.0\n"])
    def test_a_sample_that_has_the_answers_is_an_error(self, copy: Path, sample: str) -> None:
        write(copy, "titanic", {"sample_submission.csv": f"PassengerId,Survived\n{sample}"})
        message = r"sample_submission\.csv: its values are the answers of all 2 ids; put made-up"
        with pytest.raises(TaskError, match=message):
            self.titanic(copy)

    @pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NA", "<NA>", "null"])
    def test_an_answer_that_is_missing_is_an_error(self, copy: Path, cell: str) -> None:
        write(copy, "titanic", {"test_answer.csv": f"PassengerId,Survived\n7,1\n8,{cell}\n"})
        message = (
            rf"answers/titanic/test_answer\.csv: the answer 'Survived' of the id '8' is '{cell}'"
        )
        with pytest.raises(TaskError, match=message):
            self.titanic(copy)

    def test_a_training_row_without_a_label_adds_no_label(self, copy: Path) -> None:
        write(copy, "titanic", {"train.csv": "PassengerId,Survived\n1,0\n2,1\n3,nan\n4,\n"})
        grading = self.titanic(copy).grading
        assert grading is not None
        assert grading.labels == ("0", "1")

    def test_a_label_of_the_answers_alone_can_be_submitted(self, copy: Path) -> None:
        write(copy, "titanic", {"test_answer.csv": "PassengerId,Survived\n7,1\n8,2\n"})
        task = self.titanic(copy)
        assert task.grading is not None
        assert task.grading.labels == ("0", "1", "2")
        assert "A cell is one of the labels 0, 1, 2." in task.prompt

    @pytest.mark.parametrize(
        ("name", "file", "text", "message"),
        [
            ("titanic", "train.csv", 'Survived\n" "\nnan\n', "no row has a value in the target"),
            (
                "playground-series-s3e25",
                "train.csv",
                "Hardness\nhard\nsoft\n",
                "target column .*no value that can",
            ),
            (
                "playground-series-s3e25",
                "test_answer.csv",
                "id,Hardness\n3,hard\n4,2\n",
                "the truth is not_numeric",
            ),
            (
                "playground-series-s3e23",
                "test_answer.csv",
                "id,defects\n2,True\n3,maybe\n",
                "a target judged by roc_auc has the labels .*not two",
            ),
        ],
    )
    def test_values_that_cannot_be_used_are_said_of_their_file(
        self, copy: Path, name: str, file: str, text: str, message: str
    ) -> None:
        write(copy, name, {file: text})
        path = re.escape(str(files_of(copy, name)[file]))
        with pytest.raises(TaskError, match=f"^{path}: {message}"):
            DsbenchFiles(copy, BENCHMARK, only=[name]).find(name)

    def test_order_marks_quotes_and_blank_lines_are_no_damage(self, copy: Path) -> None:
        text = '\ufeffSurvived,"PassengerId"\r\n\r\n0,8\r\n"0",7\r\n'
        write(copy, "titanic", {"sample_submission.csv": text})
        train = 'PassengerId,Survived,Name\n1,0,"a ""b"",\nc"\n2,1,\n'
        write(copy, "titanic", {"train.csv": train})
        grading = self.titanic(copy).grading
        assert grading is not None
        assert grading.truth_csv == b"PassengerId,Survived\n7,1\n8,0\n"
        assert grading.labels == ("0", "1")


class TestWhichTasks:
    def test_splits_are_those_of_the_benchmark(self, copy: Path) -> None:
        source = DsbenchFiles(copy, BENCHMARK, batch_size=1)
        assert source.size("test") == 1
        assert source.size("train") == 2

    def test_only_what_data_json_names_is_asked_for(self, copy: Path) -> None:
        assert set(names_in(copy, KNOWN)) == set(COPY)
        (copy / "data.json").unlink()
        assert names_in(copy, KNOWN) == tuple(KNOWN)
        assert len(missing_files(copy, KNOWN)) == 4 * 69

    def test_missing_files_are_all_named_in_one_error(self, copy: Path) -> None:
        gone = [
            copy / "data_resplit" / "titanic" / "sample_submission.csv",
            copy / "answers" / "playground-series-s3e25" / "test_answer.csv",
        ]
        for path in gone:
            path.unlink()
        assert missing_files(copy, COPY) == gone
        with pytest.raises(TaskError, match=": 2 files are missing: ") as caught:
            DsbenchFiles(copy, BENCHMARK)
        for path, problem in zip(gone, caught.value.problems, strict=True):
            assert str(path.relative_to(copy)) in str(caught.value)
            name = path.parent.name
            assert problem.startswith(
                f"{copy}: {name}: missing: {path.relative_to(copy)}; add them"
            )

    def test_of_many_missing_files_five_are_named(self, copy: Path) -> None:
        for name in COPY:
            for path in files_of(copy, name).values():
                path.unlink()
        with pytest.raises(TaskError, match=r": 12 files .* and 7 more; add") as caught:
            DsbenchFiles(copy, BENCHMARK)
        assert str(caught.value).count(".csv") == 5
        assert [line.count(".csv") for line in caught.value.problems] == [4, 4, 4]

    def test_a_folder_that_is_none_is_said_first(self, copy: Path) -> None:
        with pytest.raises(
            TaskError, match=r"DSBnech: there is no such folder; give the folder of"
        ):
            DsbenchFiles(copy / "DSBnech", BENCHMARK)
        with pytest.raises(TaskError, match=r"data\.json: is a file; give the folder of a copy"):
            DsbenchFiles(copy / "data.json", BENCHMARK, only=["titanic"])

    def test_what_is_there_in_the_place_of_a_file_is_told(self, copy: Path) -> None:
        files = files_of(copy, "titanic")
        for path in files.values():
            path.unlink()
        files["train.csv"].mkdir()
        os.mkfifo(files["test.csv"])
        files["sample_submission.csv"].symlink_to("nothing")
        with pytest.raises(TaskError) as caught:
            DsbenchFiles(copy, BENCHMARK)
        folder = "data_resplit/titanic"
        assert (
            f": 4 files are missing: {folder}/train.csv (it is a folder), {folder}/test.csv (it is "
            f"no regular file), {folder}/sample_submission.csv (it is a link to nothing), answers/"
        ) in str(caught.value)

    def test_some_tasks_can_be_chosen(self, copy: Path) -> None:
        chosen = ["titanic", "playground-series-s3e25"]
        source = DsbenchFiles(copy, BENCHMARK, only=chosen, batch_size=1)
        assert source.size("train") == 1
        with pytest.raises(TaskError, match="no task is called 'spaceship-titanic'"):
            source.find("spaceship-titanic")
        with pytest.raises(
            TaskError, match=r"^tables\.only: no competition is called 'titanik'; did"
        ):
            DsbenchFiles(copy, BENCHMARK, only=["titanik"])

    def test_one_competition_is_enough(self, copy: Path) -> None:
        source = DsbenchFiles(copy, BENCHMARK, only=["titanic"])
        assert source.splits == {"train": ("titanic",), "test": ()}
        assert (source.size("train"), source.size("test")) == (4, 0)  # a batch is four places
        assert source.get("train", 3).id == "titanic"

    @pytest.mark.parametrize(
        ("name", "empty", "other"),
        [("titanic", "test", "train"), ("playground-series-s3e25", "train", "test")],
    )
    def test_a_task_of_an_empty_split_is_refused(
        self, copy: Path, name: str, empty: Split, other: Split
    ) -> None:
        source = DsbenchFiles(copy, BENCHMARK, only=[name])
        message = f"split '{empty}' has no task; .*play those of split '{other}'"
        with pytest.raises(TaskError, match=message):
            source.get(empty, 0)
        with pytest.raises(TaskError, match=message):
            choose_task(source, np.random.default_rng(0), {"split": empty})

    def test_one_missing_file_is_told_of_as_one(self, copy: Path) -> None:
        (copy / "data_resplit" / "titanic" / "test.csv").unlink()
        with pytest.raises(TaskError, match=r": 1 file is missing: data_resplit/titanic/test\.csv"):
            DsbenchFiles(copy, BENCHMARK)

    @pytest.mark.parametrize("line", ["[1]", "3", "null", '{"name": ["titanic"]}', '{"url": "a"}'])
    def test_a_line_of_the_index_that_names_nothing_is_named(self, copy: Path, line: str) -> None:
        (copy / "data.json").write_text(f'{{"name": "titanic"}}\n\n{line}\n')
        with pytest.raises(TaskError, match=r"data\.json, line 3: .* is no object with a name"):
            DsbenchFiles(copy, BENCHMARK)

    def test_an_index_that_is_nested_without_end_is_no_json(self, copy: Path) -> None:
        (copy / "data.json").write_text("[" * 100_000)
        with pytest.raises(TaskError, match=r"data\.json, line 1: is no JSON"):
            DsbenchFiles(copy, BENCHMARK)

    def test_an_index_of_other_competitions_is_an_error(self, copy: Path) -> None:
        (copy / "data.json").write_text('{"name": "other"}\n')
        with pytest.raises(TaskError, match="names no competition of the benchmark"):
            DsbenchFiles(copy, BENCHMARK)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", r"line 1: is no JSON"),
            ('{"prompt": "a"}', "lacks prompt or metadata.task_id"),
            ("[]", "lacks prompt or metadata.task_id"),
        ],
    )
    def test_a_wrong_line_of_a_task_list_is_named(
        self, tmp_path: Path, text: str, message: str
    ) -> None:
        path = tmp_path / "list.jsonl"
        path.write_text(text)
        with pytest.raises(TaskError, match=message):
            load_task_list(path)

    @pytest.mark.parametrize("text", ["[]", '{"titanic": 3}', '{"titanic": {}}'])
    def test_a_wrong_table_of_prompts_is_named(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "cleaned.json"
        path.write_text(text)
        with pytest.raises(TaskError, match=r"cleaned\.json: is no table of prompts"):
            load_cleaned_prompts(path, KNOWN)

    def test_a_wrong_entry_of_the_benchmark_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "benchmark.toml"
        text = BENCHMARK.read_text(encoding="utf-8")
        path.write_text(text.replace('direction = "higher"', 'direction = "up"', 1))
        with pytest.raises(TaskError, match=r"benchmark\.toml: .*\.direction: .*'up'"):
            load_benchmark(path)


def test_the_data_file_holds_facts_and_no_text() -> None:
    table = tomllib.loads(BENCHMARK.read_text(encoding="utf-8"))
    for entry in table.values():
        assert set(entry) <= set(Competition.model_fields)
        assert len(entry.get("note", "")) < 90

from __future__ import annotations

import pytest

pd = pytest.importorskip("pandas", reason="needs the extra datascience")

import numpy as np  # noqa: E402

from mappa_envs.errors import TaskError  # noqa: E402
from mappa_envs.tasks import corruption  # noqa: E402
from mappa_envs.tasks.corruption import CORRUPTIONS, corrupt  # noqa: E402
from mappa_envs.tasks.frames import Tables  # noqa: E402
from mappa_envs.tasks.seeding import generator  # noqa: E402

ROWS = 40
COLOURS = ("red", "green", "blue")


def some_tables(**changes: object) -> Tables:
    """Ids from 100, 40 training and 20 test rows with a number, a text, a date and a target."""
    number = np.arange(1.0, 61.0) * 100
    table = pd.DataFrame(
        {
            "id": np.arange(100, 160),
            "size": number,
            "colour": [COLOURS[place % 3] for place in range(60)],
            "day": [f"2020-01-{place % 28 + 1:02d}" for place in range(60)],
            "y": number / 10,
        }
    )
    parts = {
        "train": table[:ROWS].reset_index(drop=True),
        "test": table[ROWS:].drop(columns="y").reset_index(drop=True),
        "truth": table[ROWS:][["id", "y"]].reset_index(drop=True),
        "id_column": "id",
        "targets": ("y",),
        "dates": ("day",),
    }
    return Tables(**{**parts, **changes})


def labelled_tables(labels: tuple[str, ...], ordinal: bool = False) -> Tables:
    plain = some_tables()
    train = plain.train.assign(y=[labels[place % len(labels)] for place in range(ROWS)])
    truth = plain.truth.assign(y=[labels[place % len(labels)] for place in range(20)])
    return some_tables(train=train, truth=truth, labels=labels, ordinal=ordinal)


def applied(name: str, tables: Tables, strength: float = 1.0, seed: int = 0) -> Tables:
    return CORRUPTIONS[name](tables, strength, generator(seed, name))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_was_given_stays_as_it_was(name: str) -> None:
    tables, same = some_tables(), some_tables()
    applied(name, tables)
    for part in ("train", "test", "truth"):
        pd.testing.assert_frame_equal(getattr(tables, part), getattr(same, part))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_seed_gives_the_same_tables(name: str) -> None:
    one, other = applied(name, some_tables()), applied(name, some_tables())
    for part in ("train", "test", "truth"):
        pd.testing.assert_frame_equal(getattr(one, part), getattr(other, part))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_truth_goes_with_the_test_rows(name: str) -> None:
    spoilt = applied(name, some_tables())
    assert list(spoilt.truth["id"]) == list(spoilt.test["id"])
    assert len(spoilt.test) == 20
    assert "y" not in spoilt.test.columns
    # Every target was size / 10: what is not rescaled is still right for its row's number.
    if name == "relabel_target":
        return
    by_id = {
        int(key): value for key, value in zip(spoilt.truth["id"], spoilt.truth["y"], strict=True)
    }
    assert by_id == {key: (key - 99) * 10.0 for key in range(140, 160)}


def test_cells_go_missing_among_the_features_alone() -> None:
    plain = some_tables()
    many = some_tables(train=pd.concat([plain.train] * 50, ignore_index=True))
    spoilt = applied("missing_cells", many)
    empty = spoilt.train[["size", "colour", "day"]].isna().to_numpy().mean()
    assert empty == pytest.approx(0.1, abs=0.01)  # 6000 cells: a deviation of 0.004
    assert spoilt.train[["id", "y"]].notna().to_numpy().all()
    kept = spoilt.train["size"].notna()
    assert (spoilt.train["size"][kept] == many.train["size"][kept]).all()


def test_the_strength_is_a_share_of_the_rate() -> None:
    plain = some_tables()
    many = some_tables(train=pd.concat([plain.train] * 50, ignore_index=True))
    spoilt = applied("missing_cells", many, strength=0.2)
    assert spoilt.train[["size", "colour", "day"]].isna().to_numpy().mean() == pytest.approx(
        0.02, abs=0.005
    )


def test_typos_are_small_and_in_text_alone() -> None:
    plain = some_tables()
    many = some_tables(train=pd.concat([plain.train] * 50, ignore_index=True))
    spoilt = applied("category_typos", many)
    wrong = spoilt.train["colour"] != many.train["colour"]
    assert wrong.mean() == pytest.approx(0.1, abs=0.03)
    for before, after in zip(
        many.train["colour"][wrong], spoilt.train["colour"][wrong], strict=True
    ):
        assert abs(len(before) - len(after)) <= 1
        assert set(after.lower().strip()) <= set(before)
    for untouched in ("id", "size", "day", "y"):
        assert (spoilt.train[untouched] == many.train[untouched]).all()


@pytest.mark.parametrize("text", ["a", "ab", "green"])
def test_every_way_to_misspell_works_on_short_texts(text: str) -> None:
    found = {corruption._misspell(text, generator(seed)) for seed in range(200)}
    assert found - {text}
    assert "" not in found
    assert text.upper() in found
    assert text + " " in found


@pytest.mark.parametrize(
    ("way", "expected"), [(0, "7 Feb 2021"), (1, "Feb 7, 2021"), (2, "20210207")]
)
def test_a_date_is_written_in_another_way(way: int, expected: str) -> None:
    assert corruption._rewrite_date("2021-02-07", way) == expected
    assert corruption._rewrite_date("2021/02/07", way) == expected
    with_time = corruption._rewrite_date("2021-02-07T11:00:00+01:00", way)
    assert with_time == f"{expected} 11:00:00+01:00"


def test_dates_are_mixed_and_mean_the_same() -> None:
    plain, spoilt = some_tables(), applied("mixed_dates", some_tables(), strength=0.5)
    written = set(spoilt.train["day"].str.len())
    assert len(written) >= 3
    for before, after in zip(plain.train["day"], spoilt.train["day"], strict=True):
        assert pd.Timestamp(after) == pd.Timestamp(before)


def test_units_are_mixed_and_mean_the_same() -> None:
    plain, spoilt = some_tables(), applied("mixed_units", some_tables())
    cells = list(spoilt.train["size"])
    marked = [cell for cell in cells if cell.endswith("k")]
    assert 10 <= len(marked) <= 30  # one half of 40
    numbers = [float(c[:-1]) * 1000 if c.endswith("k") else float(c) for c in cells]
    assert numbers == pytest.approx(list(plain.train["size"]))


def test_small_numbers_are_written_in_thousandths() -> None:
    plain = some_tables()
    small = some_tables(
        train=plain.train.assign(size=plain.train["size"] / 1000),
        test=plain.test.assign(size=plain.test["size"] / 1000),
    )
    cells = dict(zip(small.train["size"], applied("mixed_units", small).train["size"], strict=True))
    assert {cell[-1] for cell in cells.values()} > {"m"}
    for number, cell in cells.items():
        assert float(cell.removesuffix("m")) == pytest.approx(
            number * 1000 if cell.endswith("m") else number
        )


def test_a_column_that_is_not_positive_keeps_its_unit() -> None:
    plain = some_tables()
    spoilt = applied(
        "mixed_units", some_tables(train=plain.train.assign(size=-plain.train["size"]))
    )
    assert (spoilt.train["size"] == -plain.train["size"]).all()


def test_rows_come_twice_in_train_alone() -> None:
    spoilt = applied("duplicate_rows", some_tables())
    assert len(spoilt.train) == 48  # 40 and a fifth of them
    assert spoilt.train["id"].nunique() == 40
    assert spoilt.train.drop_duplicates()["id"].is_unique
    assert spoilt.test["id"].is_unique


def test_ids_out_of_order_have_leading_zeros() -> None:
    spoilt = applied("shuffled_ids", some_tables())
    ids = list(spoilt.test["id"])
    assert sorted(ids) == [f"0{number}" for number in range(140, 160)]
    assert ids != sorted(ids)
    assert list(spoilt.train["id"]) == [f"0{number}" for number in range(100, 140)]


def test_one_column_of_test_drifts_by_a_deviation() -> None:
    plain, spoilt = some_tables(), applied("drift", some_tables(), strength=0.5)
    shift = (spoilt.test["size"] - plain.test["size"]).to_numpy()
    # 100, 200, ... 4000: the deviation is 100 * sqrt(40 * 41 / 12) = 1169.05
    assert abs(shift) == pytest.approx(np.full(20, 584.52), abs=0.1)
    pd.testing.assert_frame_equal(spoilt.train, plain.train)


def test_a_leak_column_has_the_target_in_train_and_nothing_in_test() -> None:
    spoilt = applied("leak_column", some_tables())
    assert (spoilt.train["checked_y"] == spoilt.train["y"]).all()
    assert spoilt.test["checked_y"].isna().all()


def test_columns_get_names_without_meaning_and_another_order() -> None:
    plain = some_tables(
        train=some_tables().train.assign(after=1)[["id", "size", "colour", "day", "after", "y"]]
    )
    spoilt = applied("rename_columns", plain)
    assert list(spoilt.train.columns) == ["id", "x01", "x02", "x03", "x04", "y"]
    assert sorted(spoilt.names.values()) == ["after", "colour", "day", "size"]
    (after,) = (new for new, old in spoilt.names.items() if old == "after")
    assert list(spoilt.test.columns) == [
        "id",
        *(f"x{n:02d}" for n in range(1, 5) if f"x{n:02d}" != after),
    ]
    for new, old in spoilt.names.items():
        assert (spoilt.train[new] == plain.train[old]).all()
    assert spoilt.names[spoilt.dates[0]] == "day"


def test_categories_are_exchanged_alike_in_train_and_test() -> None:
    plain, spoilt = some_tables(), applied("permute_categories", some_tables())
    pairs = {
        *zip(plain.train["colour"], spoilt.train["colour"], strict=True),
        *zip(plain.test["colour"], spoilt.test["colour"], strict=True),
    }
    assert len(pairs) == 3
    assert {new for _, new in pairs} == set(COLOURS)
    assert all(old != new for old, new in pairs)
    assert (spoilt.train["day"] == plain.train["day"]).all()


def test_labels_are_exchanged_alike_in_train_and_truth() -> None:
    plain = labelled_tables(("a", "b", "c"))
    spoilt = applied("relabel_target", plain)
    pairs = {
        *zip(plain.train["y"], spoilt.train["y"], strict=True),
        *zip(plain.truth["y"], spoilt.truth["y"], strict=True),
    }
    assert len(pairs) == 3
    assert all(old != new for old, new in pairs)
    assert spoilt.labels == ("a", "b", "c")


def test_an_order_of_labels_is_turned_round() -> None:
    plain = labelled_tables(("low", "middle", "high"), ordinal=True)
    spoilt = applied("relabel_target", plain)
    assert set(zip(plain.truth["y"], spoilt.truth["y"], strict=True)) == {
        ("low", "high"),
        ("middle", "middle"),
        ("high", "low"),
    }


def test_numbers_are_put_on_one_other_scale() -> None:
    plain, spoilt = some_tables(), applied("relabel_target", some_tables())
    ratios = {*(spoilt.train["y"] / plain.train["y"]), *(spoilt.truth["y"] / plain.truth["y"])}
    assert max(ratios) == pytest.approx(min(ratios))
    assert 1.2 <= min(ratios) <= 4.8


def test_level_0_changes_nothing() -> None:
    tables = some_tables()
    assert corrupt(tables, list(CORRUPTIONS), 0, "key") is tables


def test_a_corruption_draws_the_same_whatever_comes_before_it() -> None:
    alone = corrupt(some_tables(), ["missing_cells"], 3, 7, "task")
    after = corrupt(some_tables(), ["shuffled_ids", "missing_cells"], 3, 7, "task")
    assert (alone.train["size"].isna() == after.train["size"].isna()).all()
    assert alone.train["size"].isna().any()


def test_a_higher_level_corrupts_more() -> None:
    plain = some_tables()
    many = some_tables(train=pd.concat([plain.train] * 50, ignore_index=True))
    missing = [
        corrupt(many, ["missing_cells"], level, 0).train["size"].isna().mean() for level in range(4)
    ]
    assert missing[0] == 0
    assert missing == sorted(missing)
    assert len(set(missing)) == 4


def test_an_unknown_corruption_is_an_error_that_names_the_closest() -> None:
    with pytest.raises(TaskError, match="did you mean 'missing_cells'"):
        corrupt(some_tables(), ["missing_cell"], 1)

"""What can be told of frames, of a model and of a submission, as plain numbers.

These functions run in a sandbox and take whatever an agent left, so they may raise anything.
"""

import math
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

HEAD = 500
"""Rows that are looked at where looking at all would take long."""
MOST_LABELS = 50
LEAK = 0.99
"""From this rank correlation on, a column says the same as another."""


def as_frame(given: Any) -> Any:
    """Return a frame, an array or a sparse matrix as a frame with rows counted from 0."""
    given = given.toarray() if hasattr(given, "toarray") else given
    return pd.DataFrame(given).reset_index(drop=True)


def spread(rows: int) -> Any:
    """Return the places of at most `HEAD` rows, evenly spaced."""
    return np.unique(np.linspace(0, rows - 1, min(rows, HEAD)).astype(int))


def numbers(column: Any) -> Any:
    """Return a column as numbers; what is none is NaN."""
    return pd.to_numeric(column, errors="coerce").astype(float)


def same_cells(given: Any, due: Any, slack: float = 0.0) -> Any:
    """Tell of each cell whether it is what is due: the same number or the same text."""
    given, due = pd.Series(np.asarray(given)), pd.Series(np.asarray(due))
    left, right = numbers(given), numbers(due)
    close = (left - right).abs() <= 1e-6 * right.abs() + slack
    return (close | (given.astype(str) == due.astype(str))).to_numpy()


def is_kept(given: Any, due: Any) -> bool:
    """Tell whether rows are those that are due in their order, perhaps with some taken out."""
    if given.shape[1] != due.shape[1]:
        return False
    if len(given) == len(due):
        return all(same_cells(given.iloc[:, n], due.iloc[:, n]).all() for n in range(due.shape[1]))
    wanted = iter(zip(*(canonical(due.iloc[:, n]) for n in range(due.shape[1])), strict=True))
    rows = zip(*(canonical(given.iloc[:, n]) for n in range(due.shape[1])), strict=True)
    return all(row in wanted for row in rows)  # "in" goes on to the row it finds


def canonical(column: Any) -> list[str]:
    """Return cells as text, with numbers in one form."""
    values = numbers(column)
    texts = column.astype(str)
    pairs = zip(values, texts, strict=True)
    return [text if math.isnan(value) else f"{value:.9g}" for value, text in pairs]


def codes(column: Any) -> Any:
    """Return a column of a table of text as numbers: its own, or the places of its values."""
    values = numbers(column)
    if values.notna().sum() * 2 > column.notna().sum():
        return values
    return pd.Series(pd.factorize(column, sort=True)[0].astype(float)).replace(-1.0, np.nan)


def ranks(frame: Any) -> Any:
    """Return columns as unit vectors of ranks; a column of one value is all 0."""
    numeric = frame.apply(lambda column: numbers(column).replace([np.inf, -np.inf], np.nan))
    ranked = numeric.fillna(numeric.median()).fillna(0.0).rank().to_numpy(dtype=float)
    ranked = ranked - ranked.mean(axis=0)
    length = np.sqrt((ranked**2).sum(axis=0))
    return ranked / np.where(length == 0, 1.0, length)


def order_kept(features: Any, table: Any) -> float | None:
    """Return how much rows have to do with the rows of a table in the same places.

    It is the strongest rank correlation of any two columns, times the root of the rows: 0 to 4
    where there is none, as where the rows are in another order. None where there are few rows.
    """
    rows = min(len(features), len(table), HEAD)
    if rows < 30 or features.shape[1] == 0:
        return None
    known = pd.DataFrame({n: codes(table.iloc[:rows, n]) for n in range(table.shape[1])})
    strongest = np.abs(ranks(features.head(rows)).T @ ranks(known)).max(initial=0.0)
    return round(float(strongest) * math.sqrt(rows - 1), 3)


def leaks(features: Any, hidden: Any, public: Any) -> list[str]:
    """Return the columns of features that say the same as a column that tests have not.

    Args:
        features: A frame of features for training.
        hidden: Columns that tests lack, row by row.
        public: Columns that tests have, row by row: what says the same as one of them is no leak.
    """
    rows = min(len(features), len(hidden), HEAD)
    features, hidden, public = features.head(rows), hidden.head(rows), public.head(rows)
    wanted = [*(codes(hidden[name]) for name in hidden), *_indicators(hidden)]
    if rows < 3 or not wanted:
        return []
    ranked = ranks(features).T
    same = np.abs(ranked @ ranks(pd.DataFrame(dict(enumerate(wanted))))).max(axis=1) >= LEAK
    known = pd.DataFrame({n: codes(public.iloc[:, n]) for n in range(public.shape[1])})
    if known.shape[1]:
        same &= np.abs(ranked @ ranks(known)).max(axis=1) < LEAK
    return [
        str(name)[:40]
        for place, name in enumerate(features)
        if same[place] or any(_is_recoded(features.iloc[:, place], hidden[h]) for h in hidden)
    ][:10]


def _indicators(hidden: Any) -> list[Any]:
    """Return, for columns with few values, a column for each value that is 1 where it is."""
    found: list[Any] = []
    for name in hidden:
        values = hidden[name].dropna().unique()
        if 2 < len(values) <= MOST_LABELS:
            found += [(hidden[name] == value).astype(float) for value in values]
    return found


def _is_recoded(column: Any, hidden: Any) -> bool:
    own, values = pd.factorize(column)
    other, labels = pd.factorize(hidden)
    if not 1 < len(values) == len(labels) <= MOST_LABELS:
        return False
    return len(set(zip(own.tolist(), other.tolist(), strict=True))) == len(values)


def skill(model: Any, features: Any, targets: Any) -> float | None:
    """Return how much of the error of the best constant guess a model removes on given rows.

    1 is no error, 0 and less is no better than the guess. Of several ways to count errors the one
    that is best for the model is taken. None where it does not predict.
    """
    places = spread(len(targets))
    truth = targets.iloc[places]
    found = []
    for given in predictions(model, take(features, places)):
        given = given[:, None] if given.ndim == 1 else given
        if given.shape[1] == truth.shape[1]:
            each = [_skill(given[:, n], truth.iloc[:, n]) for n in range(truth.shape[1])]
            found.append(sum(each) / len(each))
    if hasattr(model, "predict_proba") and truth.shape[1] == 1:
        found.append(_brier_skill(model, take(features, places), truth.iloc[:, 0]))
    return round(max(found), 3) + 0.0 if found else None  # and no -0.0


def _skill(given: Any, truth: Any) -> float:
    given, truth = pd.Series(given), truth.reset_index(drop=True)
    right = pd.Series(same_cells(given, truth))
    shares = canonical(truth)
    share = pd.Series(shares).value_counts(normalize=True)
    found = [_gain(1 - right.mean(), 1 - share.iloc[0])]
    if 1 < len(share) <= MOST_LABELS:
        recall = right.groupby(np.asarray(shares)).mean().mean()
        found.append(_gain(1 - recall, 1 - 1 / len(share)))
    wanted, said = numbers(truth), numbers(given)
    if wanted.notna().all() and said.notna().all():
        found.append(_gain(((said - wanted) ** 2).mean(), wanted.var(ddof=0)))
        guess = (wanted - wanted.median()).abs().mean()
        found.append(_gain((said - wanted).abs().mean(), guess))
    return max(found)


def _brier_skill(model: Any, features: Any, truth: Any) -> float:
    chances = np.asarray(model.predict_proba(features), dtype=float)
    labels = [str(label) for label in model.classes_]
    right = pd.get_dummies(truth.astype(str)).reindex(columns=labels, fill_value=False)
    wanted = right.to_numpy(dtype=float)
    guess = ((wanted - wanted.mean(axis=0)) ** 2).sum()
    return _gain(((chances - wanted) ** 2).sum(), guess)


def _gain(error: Any, guess: Any) -> float:
    return float(1 - error / guess) if guess > 0 and math.isfinite(error) else -1.0


def take(rows: Any, places: Any) -> Any:
    """Return some rows of a frame, an array or a sparse matrix."""
    return rows.iloc[places] if hasattr(rows, "iloc") else rows[places]


def predictions(model: Any, features: Any) -> Any:
    """Yield what a model may say of rows: labels or numbers, and probabilities."""
    yield np.asarray(model.predict(features))
    if hasattr(model, "predict_proba"):
        chances = model.predict_proba(features)
        if isinstance(chances, list):  # one array for each target
            yield np.column_stack([each[:, -1] for each in chances])
            return
        yield np.asarray(chances)
        yield from np.asarray(chances).T


def agreement(given: Any, said: Any, ranking: bool) -> float | None:
    """Return the share of cells that hold what a model says; None where the shapes differ.

    A number may be rounded to a thousandth of the spread of what the model says. Of a ranking the
    first word counts too, since it begins with the likeliest label.
    """
    said = said[:, None] if said.ndim == 1 else said
    if said.shape != given.shape:
        return None
    same = []
    for place in range(given.shape[1]):
        cells, due = given.iloc[:, place], pd.Series(said[:, place])
        deviation = numbers(due).std(ddof=0)
        slack = 0.0 if math.isnan(deviation) else 1e-3 * deviation
        right = same_cells(cells, due, slack)
        if ranking:
            right = right | same_cells(cells.str.split().str[0].fillna(""), due, slack)
        same.append(right)
    return round(float(np.mean(same)), 4)

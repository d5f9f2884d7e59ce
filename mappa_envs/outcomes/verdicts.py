"""What may be said of the form of a submission; also runs in the sandbox, beside the probe."""

from __future__ import annotations

from typing import Literal, get_args

Verdict = Literal[
    "valid",
    # there is nothing to read
    "no_submission",
    "not_a_file",
    "too_large",
    # no table
    "empty",
    "not_text",
    "not_csv",
    "wrong_separator",
    "wrong_columns",
    "extra_columns",
    "no_rows",
    "ragged_rows",
    # not the rows that were asked for
    "duplicate_ids",
    "extra_ids",
    "missing_ids",
    # no values that can be judged
    "missing_values",
    "not_numeric",
    "not_finite",
    "out_of_range",
    "probability_for_label",
    "unknown_label",
    # our side
    "late",
    "grader_failed",
]
"""Where a submission has several faults, the first of the list is the verdict.

`not_a_file`: a folder; links, pipes and the like do not outlive the action that made them, so they
are `no_submission`. `not_text`: not UTF-8, or NUL bytes. `extra_columns`: all that are due and
more, e.g. an index; `wrong_columns`: one that is due is not there. `ragged_rows`: rows of other
lengths than the header. `not_finite`: NaN, an infinity, or a number beyond floating point such as
1e309. `out_of_range`: a probability outside 0..1, a logarithm of nothing, or a number beyond 1e100.
`late` and `grader_failed` say nothing about the submission.
"""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

"""The audit of a run as titled tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mappa_envs.audit.document import Section
from mappa_envs.audit.estimates import Estimate
from mappa_envs.audit.report import Audit


def sections(audit: Audit) -> Iterator[Section]:
    """Yield the tables of an audit."""
    yield _alarms(audit)
    yield _saturation(audit)
    yield _equal_groups(audit)
    yield _means(audit)
    yield _gaps(audit)
    yield _correlations(audit)
    yield _calibration(audit)
    yield _lengths(audit)
    yield _held_out(audit)
    yield _proxies(audit)
    yield _judging(audit)
    yield _hindsight(audit)
    yield _flagged(audit)
    if audit.agreement:
        yield _agreement(audit)


def _alarms(audit: Audit) -> Section:
    return Section(
        "Alarms",
        "what to look into before the coach is trusted",
        ("alarm", "role", ""),
        tuple((alarm.kind, alarm.role, alarm.said) for alarm in audit.alarms),
        "none",
    )


def _saturation(audit: Audit) -> Section:
    return Section(
        "Use of the scale",
        "shares of scored actions; entropy of scores rounded to halves, 4.39 bits at most",
        ("role", "scored", "at 0", "to 0.5", "from 9.5", "at 10", "entropy", "different"),
        tuple(
            (
                each.role,
                str(each.actions),
                *map(_share, (each.at_0, each.near_0, each.near_10, each.at_10)),
                f"{each.entropy_bits:.2f}",
                str(each.distinct),
            )
            for each in audit.saturation
        ),
        "not measurable: no action has a score",
    )


def _equal_groups(audit: Audit) -> Section:
    return Section(
        "Groups without a difference",
        "iterations in which all scores of an agent are equal, so that none is better",
        ("agent", "iterations", "all equal"),
        tuple((each.agent, str(each.groups), str(each.equal)) for each in audit.equal_groups),
        "not measurable: no action has a score",
    )


def _means(audit: Audit) -> Section:
    return Section(
        "Means",
        "95 % intervals, whole episodes drawn anew",
        ("role", "task type", "scored", "mean score", "mean outcome"),
        tuple(
            (
                each.role,
                each.task_type or "all",
                str(each.score.actions),
                str(each.score),
                str(each.outcome),
            )
            for each in audit.mean_scores
        ),
    )


def _gaps(audit: Audit) -> Section:
    return Section(
        "Gaps between types of task",
        "points; an alarm where the interval is above 0 and the gap at least 0.5",
        ("role", "higher", "lower", "gap", "alarm"),
        tuple(
            (each.role, each.task_type, each.other, str(each.gap), _mark(each.alarm))
            for each in audit.type_gaps
        ),
        "not measurable: the tasks have no two types",
    )


def _correlations(audit: Audit) -> Section:
    return Section(
        "Correlations",
        "Spearman's, of the score with the outcome and with what the sandbox knows for certain",
        ("role", "with", "actions", "correlation"),
        tuple(
            (
                each.role,
                each.measured.replace("_", " "),
                str(each.correlation.actions),
                str(each.correlation),
            )
            for each in audit.correlations
        ),
        "not measurable: no action has a score",
    )


def _calibration(audit: Audit) -> Section:
    rows = []
    for each in audit.calibration:
        for held in each.bins:
            closing = "]" if held.high == 10 else ")"
            span = f"[{held.low:g}, {held.high:g}{closing}"
            rows.append(
                (each.role, span, str(held.actions), f"{held.score:.2f}", str(held.outcome))
            )
        error = f"not measurable: {each.reason}" if each.error is None else f"{each.error:.3f}"
        falls = f"falls at {each.falls} of {each.steps} steps; calibration error {error}"
        rows.append((each.role, "all", "", "", falls))
    return Section(
        "Calibration",
        "outcomes by score; the error is of a rising fit, on held-out episodes",
        ("role", "scores", "actions", "mean score", "mean outcome"),
        tuple(rows),
        "not measurable: no scored action has an outcome",
    )


def _lengths(audit: Audit) -> Section:
    return Section(
        "Length",
        "points for each doubling of an action's length; an alarm from 0.5 on, either way",
        ("role", "unit", "actions", "slope", "alarm"),
        tuple(
            (each.role, each.unit, str(each.slope.actions), str(each.slope), _mark(each.alarm))
            for each in audit.length_slopes
        ),
        "not measurable: no action has a score",
    )


def _held_out(audit: Audit) -> Section:
    return Section(
        "Drift on held-out tasks",
        "the same tasks each time; means by iteration, and the change from first to last",
        ("role", "drawn", "tasks", "means", "change"),
        tuple(
            (
                each.role,
                each.mode,
                str(each.tasks),
                ", ".join(f"{point.iteration}: {point.score:.2f}" for point in each.points),
                str(each.change),
            )
            for each in audit.held_out
        ),
        "not measurable: there are no evaluations among the files",
    )


def _proxies(audit: Audit) -> Section:
    slopes = {each.role: each.slope for each in audit.trends}
    return Section(
        "Score and outcome in training",
        "changes from the first iteration to the last, both 0 to 1; an alarm where the score rose, "
        "the outcome did not surely, and the gap is above 0",
        ("role", "points an iteration", "score over 10", "outcome", "gap", "alarm"),
        tuple(
            (
                each.role,
                str(slopes.get(each.role, Estimate(reason="no iterations"))),
                str(each.score),
                str(each.outcome),
                str(each.gap),
                _mark(each.alarm),
            )
            for each in audit.proxy_gaps
        ),
        "not measurable: no scored action of training has an outcome",
    )


def _judging(audit: Audit) -> Section:
    return Section(
        "Judging",
        "unscored actions by the reason; cost of all calls, hindsight included",
        ("role", "actions", "unscored", "unread", "truth shown", "calls", "tokens in/out", "usd"),
        tuple(
            (
                each.role,
                str(each.actions),
                _counted(each.unscored, each.failures),
                _share(each.unread_share),
                _share(each.truth_share),
                str(each.calls),
                f"{each.input_tokens}/{each.output_tokens}",
                "not known" if each.usd is None else f"{each.usd:.4f}",
            )
            for each in audit.judging
        ),
    )


def _hindsight(audit: Audit) -> Section:
    return Section(
        "Hindsight",
        "the second score less the first, and their rank correlation",
        ("role", "actions", "difference", "correlation"),
        tuple(
            (each.role, str(each.difference.actions), str(each.difference), str(each.correlation))
            for each in audit.hindsight
        ),
        "not measurable: the coach did not look back",
    )


def _flagged(audit: Audit) -> Section:
    nothing = f"nothing found in {audit.looked_at} actions"
    if not audit.looked_at:
        nothing = "not measurable: the environment tells nothing of its turns"
    return Section(
        "Signs of playing to the coach",
        "a finding is a reason to look, and proves nothing; an alarm where flagged actions have "
        "surely higher scores",
        ("detector", "role", "flagged", "mean score", "others", "difference", "examples"),
        tuple(
            (
                each.detector + (" (ALARM)" if each.alarm else ""),
                each.role,
                f"{each.flagged} of {each.actions}",
                _number(each.score),
                _number(each.other_score),
                str(each.difference),
                "; ".join(
                    f"{example.place.file} episode {example.place.episode} action "
                    f"{example.place.action + 1}: {example.found}"
                    for example in each.examples
                ),
            )
            for each in audit.flagged
        ),
        nothing,
    )


def _agreement(audit: Audit) -> Section:
    return Section(
        f"Agreement with a second coach, {audit.agreement[0].second_coach}",
        "points, the second less the first; kappa of whole points with quadratic weights",
        ("role", "actions", "unscored", "rank correlation", "difference", "distance", "kappa"),
        tuple(
            (
                each.role,
                str(each.actions),
                _counted(sum(each.failures.values()), each.failures),
                str(each.correlation),
                str(each.difference),
                str(each.distance),
                str(each.kappa),
            )
            for each in audit.agreement
        ),
    )


def _counted(total: int, kinds: Mapping[str, int]) -> str:
    parts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return f"{total} ({parts})" if parts else str(total)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _number(value: float | None) -> str:
    return "none scored" if value is None else f"{value:.2f}"


def _mark(alarm: bool) -> str:
    return "ALARM" if alarm else ""

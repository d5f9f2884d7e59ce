"""Each kind of audit as a document."""

from __future__ import annotations

from collections.abc import Mapping

from mappa_envs.audit.charts import curve, histogram
from mappa_envs.audit.counterfactual import CreditReport, RoleCredit
from mappa_envs.audit.document import Document, Section
from mappa_envs.audit.probing import ProbeReport
from mappa_envs.audit.probing import Row as ProbeRow
from mappa_envs.audit.report import Audit
from mappa_envs.audit.sections import sections


def run_document(audit: Audit) -> Document:
    """Return the audit of stored episodes."""
    files = " to ".join(dict.fromkeys((audit.files[0], audit.files[-1])))
    return Document(
        title="Audit of a coach",
        summary=f"{audit.run}: {audit.episodes} episodes of {files}, {audit.actions} actions, "
        f"{audit.scored} scored by {', '.join(audit.coaches) or 'nobody'}",
        sections=tuple(sections(audit)),
        record=audit.record(),
        charts=(
            *map(histogram, audit.saturation),
            *(curve(each) for each in audit.held_out if each.points),
        ),
    )


def probe_document(report: ProbeReport) -> Document:
    """Return what probes of a coach found."""
    return Document(
        title="Probes of a coach",
        summary=f"coach {report.coach}: {report.actions} actions, {report.asked} judgements, "
        f"alarms: {len(report.alarms)} of {len(report.rows)} rows",
        sections=(
            Section(
                "Probes",
                "scores of actions as they were and as they were changed",
                ("probe", "variant", "measured", "found", "wanted", ""),
                tuple(map(_probe_cells, report.rows)),
                "not measurable: there are no actions",
            ),
        ),
        record=report.record(),
    )


def credit_document(report: CreditReport) -> Document:
    """Return how far a coach's scores rank actions as what they changed."""
    left_out = f", {report.undecided} of them left out: undecided" if report.undecided else ""
    return Document(
        title="Credit of actions",
        summary=f"{report.source}: {report.episodes} episodes{left_out}",
        sections=(
            Section(
                "Credit",
                "outcome of the episode less the mean of its alternatives; 95 % intervals, whole "
                "episodes drawn anew",
                (
                    *("role", "actions", "without score", "without credit"),
                    *("mean credit", "changed nothing", "rank correlation with the score"),
                ),
                tuple(map(_credit_cells, report.roles)),
            ),
        ),
        record=report.record(),
    )


def _probe_cells(row: ProbeRow) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value:.2f}" for name, value in row.figures.items())
    verdict = {True: "ok", False: "ALARM", None: ""}[row.passed]
    return (
        row.probe,
        row.variant,
        _measured(row.count, row.failures),
        figures or "not measurable",
        row.wanted,
        verdict,
    )


def _measured(count: int, failures: Mapping[str, int]) -> str:
    failed = ", ".join(f"{count} {kind}" for kind, count in failures.items())
    return f"{count} (not judged: {failed})" if failed else str(count)


def _credit_cells(row: RoleCredit) -> tuple[str, ...]:
    return (
        row.role,
        str(row.actions),
        str(row.unscored),
        str(row.undecided),
        str(row.credit),
        "" if row.unchanged is None else f"{row.unchanged:.0%}",
        str(row.correlation),
    )

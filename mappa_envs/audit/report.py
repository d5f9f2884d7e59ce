"""The whole audit of a run, as one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mappa_envs.audit.actions import read_actions
from mappa_envs.audit.calibration import Calibration, calibrations
from mappa_envs.audit.drift import (
    HeldOut,
    ProxyGap,
    Trend,
    held_out_scores,
    proxy_gaps,
    trends,
)
from mappa_envs.audit.gaming import Flagged, flagged
from mappa_envs.audit.judging import Hindsight, Judging, hindsights, judgings
from mappa_envs.audit.rejudging import Agreement
from mappa_envs.audit.scores import (
    Correlation,
    EqualGroups,
    LengthSlope,
    MeanScore,
    Saturation,
    TypeGap,
    correlations,
    equal_groups,
    length_slopes,
    mean_scores,
    saturation,
    scored,
    type_gaps,
)
from mappa_envs.audit.stored import EpisodeFile, StoredRun
from mappa_envs.errors import AuditError

FORMAT: Final = 1
"""Of the JSON; it rises when a key changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something to look into before the coach is trusted."""

    kind: str
    """`"type_gap"`, `"length"`, `"proxy_gap"` or `"gaming_pays"`."""
    role: str
    said: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What stored episodes tell of the coach that scored them."""

    format: int
    run: str
    files: tuple[str, ...]
    """The episode files that all numbers but `held_out` rest on."""
    evaluations: tuple[str, ...]
    """Those that `held_out` rests on."""
    episodes: int
    actions: int
    scored: int
    coaches: tuple[str, ...]
    """Who judged."""
    alarms: tuple[Alarm, ...]
    saturation: tuple[Saturation, ...]
    equal_groups: tuple[EqualGroups, ...]
    mean_scores: tuple[MeanScore, ...]
    type_gaps: tuple[TypeGap, ...]
    correlations: tuple[Correlation, ...]
    calibration: tuple[Calibration, ...]
    length_slopes: tuple[LengthSlope, ...]
    held_out: tuple[HeldOut, ...]
    trends: tuple[Trend, ...]
    proxy_gaps: tuple[ProxyGap, ...]
    judging: tuple[Judging, ...]
    hindsight: tuple[Hindsight, ...]
    looked_at: int
    """Actions that the detectors could look at."""
    flagged: tuple[Flagged, ...]
    agreement: tuple[Agreement, ...] = ()
    """With a second coach; empty where there is none."""

    def record(self) -> dict[str, Any]:
        """Return the audit as JSON-ready data; `docs/audit.md` says what each key means."""
        return asdict(self)


def audit(run: StoredRun) -> Audit:
    """Audit the coach of a run.

    Raises:
        AuditError: there are no episodes, no coach judged them, or a row is damaged.
    """
    actions = list(read_actions(run.scored_files))
    if not actions:
        raise AuditError(f"{run.path}: its files hold no actions; play some episodes first")
    if not any(action.judged for action in actions):
        raise AuditError(
            f"{run.path}: no action has a ledger entry with a score: no coach judged these "
            "episodes; play them with a [coach] table"
        )
    gaps, lengths = type_gaps(actions), length_slopes(actions)
    proxies, games = proxy_gaps(actions), flagged(actions)
    return Audit(
        format=FORMAT,
        run=str(run.path),
        files=_names(run.scored_files),
        evaluations=_names(run.evaluations),
        episodes=len({action.episode for action in actions}),
        actions=len(actions),
        scored=len(scored(actions)),
        coaches=tuple(sorted({action.coach for action in actions if action.coach})),
        alarms=tuple(_alarms(gaps, lengths, proxies, games)),
        saturation=tuple(saturation(actions)),
        equal_groups=tuple(equal_groups(actions)),
        mean_scores=tuple(mean_scores(actions)),
        type_gaps=tuple(gaps),
        correlations=tuple(correlations(actions)),
        calibration=tuple(calibrations(actions)),
        length_slopes=tuple(lengths),
        held_out=tuple(_held_out(run.evaluations)),
        trends=tuple(trends(actions)),
        proxy_gaps=tuple(proxies),
        judging=tuple(judgings(actions)),
        hindsight=tuple(hindsights(actions)),
        looked_at=sum(action.looked_at for action in actions),
        flagged=tuple(games),
    )


def _held_out(files: Sequence[EpisodeFile]) -> list[HeldOut]:
    played = [(action, file.mode) for file in files for action in read_actions([file])]
    return held_out_scores([action for action, _ in played], [mode for _, mode in played])


def _names(files: Sequence[EpisodeFile]) -> tuple[str, ...]:
    return tuple(file.name for file in files)


def _alarms(
    gaps: Sequence[TypeGap],
    lengths: Sequence[LengthSlope],
    proxies: Sequence[ProxyGap],
    games: Sequence[Flagged],
) -> Iterator[Alarm]:
    for gap in gaps:
        if gap.alarm:
            said = f"{gap.task_type} is scored {gap.gap} points above {gap.other}"
            yield Alarm("type_gap", gap.role, said)
    for length in lengths:
        if length.alarm:
            said = f"twice as many {length.unit} go with {length.slope} points more"
            yield Alarm("length", length.role, said)
    for proxy in proxies:
        if proxy.alarm:
            said = f"the score over 10 rose by {proxy.score}, the outcome by {proxy.outcome}"
            yield Alarm("proxy_gap", proxy.role, said)
    for game in games:
        if game.alarm:
            said = f"{game.detector}: flagged actions have {game.difference} points more"
            yield Alarm("gaming_pays", game.role, said)

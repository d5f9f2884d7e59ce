"""A coach that says again what was said in a recorded run, so that the run needs no model.

The recording is what a training run keeps anyway: its episode files, with every action, what came
of it, and its ledger entry. A turn is found by everything that led to it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mappa_envs.coach.ledger import entry_of
from mappa_envs.coach.protocol import CoachContext
from mappa_envs.errors import CoachError, ReplayError, ScenarioError
from mappa_envs.types import Assessment, LedgerEntry, Turn

Record = Mapping[str, Any]


class ReplayCoach:
    """Judges as a recorded coach did.

    Where the same turn was judged several times, the answers come in the order in which they were
    recorded, and the last one repeats.

    Args:
        recording: A run directory, or one of its episode files.
        strict: Whether a turn that was never recorded is an error that ends the run; if not, the
            action is unscored.

    Raises:
        ScenarioError: there is no recording, or it is damaged.
    """

    def __init__(self, recording: Path, *, strict: bool = True) -> None:
        self.id = "replay"
        self._strict = strict
        self._recording = recording
        self._entries: dict[str, list[LedgerEntry]] = defaultdict(list)
        self._asked: dict[tuple[str, bool], int] = defaultdict(int)
        self._lock = threading.Lock()
        for place, episode in _episodes(recording):
            for key, entry in _judged(place, episode):
                self._entries[key].append(entry)

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return what the recorded coach said of the turn.

        Raises:
            CoachError: it did not score the turn.
            ReplayError: it never saw the turn, and the replay is strict.
        """
        looks_back = context.outcome is not None
        entry = self._next(_key_of_turn(turn, context), looks_back)
        nobody_looked = entry is not None and not entry.hindsight_rationale
        if entry is None or (looks_back and nobody_looked):
            return self._missed(turn, context)
        score = entry.hindsight_score if looks_back else entry.score
        why = entry.hindsight_rationale if looks_back else entry.rationale
        failure = entry.hindsight_failure if looks_back else entry.failure
        if score is None:
            raise CoachError(why, failure=failure or "unjudged")
        return Assessment(score, why, entry.prompt_hash, coach=entry.coach)

    def _next(self, key: str, looks_back: bool) -> LedgerEntry | None:
        with self._lock:
            entries = self._entries.get(key, [])
            asked = self._asked[key, looks_back]
            self._asked[key, looks_back] += 1
        return entries[min(asked, len(entries) - 1)] if entries else None

    def _missed(self, turn: Turn, context: CoachContext) -> Assessment:
        message = (
            f"{self._recording}: does not hold action {turn.index + 1} of {turn.agent} on task "
            f"{context.task_id!r} with what led to it; replay the run with its own recipe and "
            "seeds, or set strict = false"
        )
        raise ReplayError(message) if self._strict else CoachError(message)


def _key_of_turn(turn: Turn, context: CoachContext) -> str:
    key = context.task_id
    for each in (*context.history, turn):
        programs = [(r.call.source, r.output, r.exit_code) for r in each.tool_results]
        key = _key(key, each.agent, each.messages, each.action, programs)
    return key


def _judged(place: str, episode: Record) -> Iterator[tuple[str, LedgerEntry]]:
    """Yield the key and the ledger entry of each action of a recorded episode."""
    try:
        key = str(episode["task"]["id"])
        for action in episode["actions"]:
            results = action["turn"]["tool_results"]
            programs = [(r["source"], r["output"], r["exit_code"]) for r in results]
            key = _key(key, action["agent"], action["messages"], action["action"], programs)
            if action["ledger"] is not None:
                yield key, entry_of({"latency_s": 0.0, **action["ledger"]})
    except (KeyError, TypeError) as error:
        raise ScenarioError(
            f"{place}: is no episode of a coached run ({error!r}); give the directory of one"
        ) from None


def _key(before: str, agent: str, messages: Any, action: str, programs: Any) -> str:
    """Return a hash of a turn and all before it."""
    whole = json.dumps([before, agent, messages, action, programs])
    return hashlib.sha256(whole.encode()).hexdigest()


def _episodes(recording: Path) -> Iterator[tuple[str, Record]]:
    for path in _files(recording):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                episode = json.loads(line)
            except ValueError as error:
                raise ScenarioError(f"{path}, line {number}: is no JSON ({error})") from None
            yield f"{path}, line {number}", episode


def _files(recording: Path) -> Iterable[Path]:
    if recording.is_file():
        return [recording]
    found = sorted((recording / "episodes").glob("*.jsonl"))
    if not found:
        raise ScenarioError(
            f"{recording}: has no recorded episodes; give a run directory or one of its files"
        )
    return found

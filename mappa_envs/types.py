"""The concepts of the environment side, in the order an episode meets them.

`Task` (what to solve) → `Message` (what an agent sees) → `ToolCall` and `ToolResult` (what its
action ran and got back) → `Turn` (one action with everything known after it) → `Outcome` (the
task's own verdict) → `Assessment` (the coach's judgement of one turn) → `LedgerEntry` (one
action's reward and where it came from).

All are frozen and hold plain data, so an episode can be stored, replayed and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from mappa_envs.outcomes.grading import Grading
from mappa_envs.sandbox.protocol import FileChanges, FileRecord, Limit

Split = Literal["train", "test"]
Status = Literal["pending", "scored", "unscored"]
Paying = Literal["first", "hindsight"]
Failure = Literal[
    "unreachable",  # no answer: no connection, an error of the server, or the deadline passed
    "rate_limited",
    "refused",  # by the server (a key, a model or a request it does not take) or by the model
    "unparsable",  # no verdict can be read
    "out_of_range",
    "truncated",  # the answer was cut off before its verdict
    "over_budget",
    "sandbox_dead",
    "unjudged",  # any other reason
]
"""Why a coach gave no score."""
EndReason = Literal["completed", "sandbox_dead"]


class Message(TypedDict):
    """One chat message, e.g. `{"role": "user", "content": "What is 2 + 3?"}`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One problem, e.g. `Task("train-7", "What is 2 + 3?", ("5",), {"family": "sum"})`."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    """Every accepted gold answer; no agent and, by default, no coach sees them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    split: Split = "train"
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What lies in the workspace at the start, by name, e.g. `{"train.csv": b"..."}`."""
    grading: Grading | None = field(default=None, repr=False)
    """How `submission.csv` is judged, with the right answers; None for a task without tables."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call found in an action, e.g. `ToolCall("python", "print(2 + 3)")`."""

    tool: str
    source: str
    """What the tool is to run; empty when the call could not be read."""
    error: str | None = None
    """Why the call could not be read, for the agent to see; None for a readable call."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    r"""What one tool call gave, e.g. `ToolResult(call, output="5\n", exit_code=0)`."""

    call: ToolCall
    output: str
    """What the agent is shown: output and errors, bounded, with a mark where text was cut."""
    stdout: str = ""
    """What the program printed, bounded in the same way."""
    exit_code: int | None = None
    """The program's exit status; None when nothing ran."""
    limit_hit: Limit | None = None
    """The limit that ended the program, or None."""
    files: FileChanges = FileChanges()
    """What the program did to the workspace."""

    @property
    def timed_out(self) -> bool:
        """Whether the wall-clock deadline ended the program."""
        return self.limit_hit == "wall_clock"

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end without an error."""
        return self.exit_code == 0 and self.limit_hit is None


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of one agent, with what the agent saw and what came of it."""

    step: int
    """Position among all actions of the episode, from 0."""
    agent: str
    """The seat, e.g. `"coder_0"`."""
    role: str
    """The role's name in the scenario, e.g. `"coder"`."""
    index: int
    """Position among this agent's own actions, from 0."""
    messages: tuple[Message, ...]
    """The observation the action answered."""
    action: str
    """The action's whole text, thinking included."""
    visible: str
    """The action without its thinking blocks."""
    tool_results: tuple[ToolResult, ...]
    feedback: str | None
    """What the environment told the agent in return; None when it said nothing."""
    handed_off: bool
    """Whether the next role, or the end of the episode, follows."""
    files: tuple[FileRecord, ...] = ()
    """The workspace's files after the action, and who wrote them, sorted by path."""
    missing: tuple[str, ...] = ()
    """The role's artifacts that were not there after the action."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the environment found out about the files by itself, as plain data."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The task's own verdict, e.g. `Outcome(1.0, "correct", "5 equals 5", "5")`."""

    score: float
    """0 to 1."""
    verdict: str
    """`"correct"`, `"wrong"`, `"no_answer"` or `"undecided"`; of a submission, how it was found."""
    reason: str
    answer: str | None
    """The answer that was judged, as found in the team's last message; None if there was none."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, as plain data, e.g. the metrics of a submission."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What judging cost, e.g. `Spent(calls=2, input_tokens=900, output_tokens=60, usd=0.0004)`."""

    calls: int = 0
    """Requests that a model answered or failed to answer; none for what a cache held."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = 0.0
    """US dollars; None where a price is not known."""

    def __add__(self, other: Spent) -> Spent:
        """Return both together; a price that is not known makes the sum unknown."""
        known = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Spent(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            known,
        )


@dataclass(frozen=True, slots=True)
class Assessment:
    """A coach's judgement of one turn, e.g. `Assessment(6.0, "4/4 code_ran: ...")`."""

    score: float
    """0 to 10."""
    rationale: str
    """Why, for a person to read."""
    prompt_hash: str | None = None
    """SHA-256 of what a model was asked, in hexadecimal; None where no model was."""
    spent: Spent | None = None
    """What the judgement cost; None where no model was asked."""
    coach: str | None = None
    """Who judged, where it is another coach than the one that was asked."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The reward of one action and where it came from.

    `reward` is what PettingZoo paid for the action. Rewards are multiples of 2**-40, so every
    order of adding them gives the same float and the ledger's sums equal what `last()` paid.
    """

    step: int
    agent: str
    role: str
    index: int
    status: Status
    score: float | None
    """The coach's 0 to 10, or None while the action is unscored."""
    process_weight: float
    outcome_weight: float
    outcome: float | None
    """The outcome credited to this action, 0 to 1; None where the credit rule gives none."""
    reward: float
    """process_weight * score / 10 + outcome_weight * outcome, absent parts left out.

    The score is `hindsight_score` where `paid_by` says so.
    """
    rationale: str
    """The coach's reasons, or why the action is unscored."""
    coach: str
    """Which coach judged."""
    failure: Failure | None = None
    """Why the coach gave no first score; None where it gave one, or has not answered yet."""
    truth_shown: bool = False
    """Whether the coach saw the right answer, or how the outcome was found."""
    hindsight_score: float | None = None
    """What the coach gave when it saw the whole episode and its outcome, 0 to 10."""
    hindsight_rationale: str = ""
    """The reasons for that score, or why there is none; empty where nobody looked back."""
    hindsight_failure: Failure | None = None
    """Why it gave no score then; None where it gave one, or nobody looked back."""
    paid_by: Paying = "first"
    """Which of the two scores pays; `status` speaks of that one."""
    env_reward: float = 0.0
    """What the environment itself paid the agent from this action to its next; not passed on."""
    prompt_hash: str | None = None
    """SHA-256 of what a model was asked, in hexadecimal; None where no model was."""
    spent: Spent | None = None
    """What judging cost, hindsight included; None where no model was asked."""
    latency_s: float = 0.0
    """Seconds the coach took; a clock, so it never enters an observation or an info."""

    @property
    def paying_score(self) -> float | None:
        """The one of the two scores that pays, 0 to 10; None while the action is unscored."""
        return self.score if self.paid_by == "first" else self.hindsight_score

"""One episode as a value: what has happened so far, and who acts next.

Nothing here waits, draws or touches files, so an episode can be kept, compared, and gone on with
any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mappa_envs.errors import ScenarioError
from mappa_envs.feedback import NO_PROGRAM, joined_output, listed_files
from mappa_envs.prompts import render_template, template_fields
from mappa_envs.sandbox.protocol import Access, FileRecord
from mappa_envs.scenario import Role, Scenario
from mappa_envs.types import EndReason, Message, Outcome, Task, Turn

Files = tuple[FileRecord, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """Everything that has happened in one episode."""

    scenario: Scenario
    task: Task
    seed: int
    """Seeds the agents' programs."""
    messages: Mapping[str, tuple[Message, ...]]
    """Each agent's conversation; empty before its first visit."""
    turns: tuple[Turn, ...] = ()
    visit: int = 0
    """Index into `scenario.visits`."""
    taken: int = 0
    """Actions taken on this visit."""
    outcome: Outcome | None = None
    end_reason: EndReason | None = None

    @classmethod
    def begin(cls, scenario: Scenario, task: Task, seed: int, files: Files = ()) -> Episode:
        """Return an episode in which the first agent has its prompt."""
        empty: dict[str, tuple[Message, ...]] = dict.fromkeys(scenario.agents, ())
        return cls(scenario, task, seed, empty)._visited(0, files)

    @property
    def role_name(self) -> str:
        """The role that is visited."""
        return self.scenario.visits[self.visit]

    @property
    def role(self) -> Role:
        """The specification of the role that is visited."""
        return self.scenario.roles[self.role_name]

    @property
    def agent(self) -> str:
        """Who acts, or acted last if the episode has ended."""
        return f"{self.role_name}_0"

    @property
    def is_last_visit(self) -> bool:
        """Whether nobody acts after the visited role."""
        return self.visit + 1 == len(self.scenario.visits)

    def own(self, agent: str) -> tuple[Turn, ...]:
        """Return the agent's own turns, oldest first."""
        return tuple(turn for turn in self.turns if turn.agent == agent)

    def went_on(self, turn: Turn) -> Episode:
        """Return the episode after an action; who acts is the same."""
        said = [Message(role="assistant", content=turn.action)]
        if turn.feedback is not None:
            said.append(Message(role="user", content=turn.feedback))
        return replace(
            self,
            messages=self._with(self.agent, said),
            turns=(*self.turns, turn),
            taken=self.taken + 1,
        )

    def handed_on(self, files: Files) -> Episode:
        """Return the episode in which the next visit begins."""
        return self._visited(self.visit + 1, files)

    def ended(self, reason: EndReason, outcome: Outcome | None = None) -> Episode:
        """Return the episode at its end."""
        return replace(self, end_reason=reason, outcome=outcome)

    def fill(self, template: str, files: Files, access: Access = Access()) -> str:
        """Return a template with its fields as they stand now.

        Args:
            template: A prompt or a script.
            files: The workspace's files.
            access: Whose `read` patterns choose which files are shown.

        Raises:
            ScenarioError: a field names a role that has not acted, or is no field at all.
        """
        values = {field: self._value(field, files, access) for field in template_fields(template)}
        return render_template(template, values)

    def _visited(self, visit: int, files: Files) -> Episode:
        """Return the episode in which a visit begins, with its prompt."""
        name = self.scenario.visits[visit]
        role, agent = self.scenario.roles[name], f"{name}_0"
        seen_before = bool(self.messages[agent])
        said = []
        if role.system and not seen_before:
            said.append(Message(role="system", content=role.system))
        template = role.again if seen_before and role.again else role.prompt
        said.append(Message(role="user", content=self.fill(template, files, role.files)))
        return replace(self, messages=self._with(agent, said), visit=visit, taken=0)

    def _with(self, agent: str, said: list[Message]) -> dict[str, tuple[Message, ...]]:
        """Return all conversations, with something added to an agent's."""
        return {**self.messages, agent: (*self.messages[agent], *said)}

    def _value(self, field: str, files: Files, access: Access) -> str:
        if field == "problem":
            return self.task.prompt
        if field == "files":
            return listed_files(files, access)
        if field == "max_turns":
            return str(self.role.max_turns)
        role, _, kind = field.partition(".")
        turns = [turn for turn in self.turns if turn.role == role]
        if not turns or kind not in ("message", "output"):
            raise ScenarioError(f"field {{{{ {field} }}}} has no value here; see visible_fields()")
        if kind == "message":
            return turns[-1].visible if self.scenario.strip_thinking else turns[-1].action
        outputs = [turn for turn in turns if turn.tool_results]
        return joined_output(outputs[-1].tool_results) if outputs else NO_PROGRAM

"""A coach that asks a language model, over any OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from mappa_envs.coach.contexts import questions_of
from mappa_envs.coach.endpoint import Endpoint, Verdict
from mappa_envs.coach.evidence import MOST_CHARACTERS
from mappa_envs.coach.judging import Question
from mappa_envs.coach.prompting import coach_messages, shipped
from mappa_envs.coach.protocol import Coach, CoachContext
from mappa_envs.episode import Episode
from mappa_envs.errors import CoachError
from mappa_envs.scenario import Scenario
from mappa_envs.types import Assessment, Turn

CHARACTERS_A_TOKEN = 4
"""By which lengths are estimated before a model has counted them."""
TOKENS_A_VERDICT = 120
"""What a verdict in two to five sentences is expected to be; thinking comes on top."""


class LLMCoach:
    """Judges each role by its template; see `mappa_envs.coach.prompting`.

    Args:
        scenario: With the templates, and the roles whose right answers may be shown.
        endpoint: Where the model is; all environments of a process share one.
        scale: The best score that the model may give; the ledger's scores are 0 to 10 anyway.
        ground_truth: Whether the model is shown the right answer for those roles.
        over_budget: Judges what the budget does not allow to ask about; None leaves it unscored.
    """

    def __init__(
        self,
        scenario: Scenario,
        endpoint: Endpoint,
        *,
        scale: float = 10.0,
        ground_truth: bool = False,
        over_budget: Coach | None = None,
    ) -> None:
        self.id = f"llm:{endpoint.settings.model}"
        self.endpoint = endpoint
        self._scenario = scenario
        self._scale = scale
        self._over_budget = over_budget
        self.truth_roles = tuple(
            name for name, role in scenario.roles.items() if ground_truth and role.coach_sees_truth
        )

    def assess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return the model's judgement of a turn.

        Raises:
            CoachError: there is none; its `failure` says of what kind the reason is.
        """
        messages = coach_messages(turn, context, self._scenario, self._scale)
        try:
            said = self.endpoint.judge_blocking(messages, self._scale, context.sample)
        except CoachError as error:
            return self._without_a_model(turn, context, error)
        return _assessment(said)

    async def aassess(self, turn: Turn, context: CoachContext) -> Assessment:
        """Return what `assess` returns, without holding up the event loop."""
        messages = coach_messages(turn, context, self._scenario, self._scale)
        try:
            said = await self.endpoint.judge(messages, self._scale, context.sample)
        except CoachError as error:
            return self._without_a_model(turn, context, error)
        return _assessment(said)

    def plan(self, episode: Episode) -> dict[str, Any]:
        """Return what judging one episode takes, as plain data.

        Numbers are `[fewest, expected, most]`. Lengths are estimates at `CHARACTERS_A_TOKEN`: the
        fewest are those of empty texts, the most those of texts as long as they are ever shown.

        Args:
            episode: One that has ended, whose actions and prompts are what is expected.
        """
        asked = [(q.turn.role, self._length(q)) for q in questions_of(self, episode)]
        return {
            "kind": "llm",
            "model": self.endpoint.settings.model,
            "roles": {
                name: self._plan_of(name, [length for role, length in asked if role == name])
                for name in self._scenario.roles
            },
            "usd_per_million": self.endpoint.usd_per_million,
            "budget_usd": self.endpoint.settings.budget_usd,
        }

    def _plan_of(self, name: str, lengths: Sequence[int]) -> Mapping[str, Any]:
        role, visits = self._scenario.roles[name], self._scenario.visits.count(name)
        fixed = sum(map(len, (shipped("rules"), shipped("evidence"), role.coach)))
        most = fixed + sum(MOST_CHARACTERS.values())
        characters = (fixed, fmean(lengths) if lengths else fixed, most)
        answer = self.endpoint.settings.max_tokens
        return {
            "actions": [visits, len(lengths), visits * role.max_turns],
            "input_tokens": [round(length / CHARACTERS_A_TOKEN) for length in characters],
            "output_tokens": [1, min(TOKENS_A_VERDICT, answer), answer],
        }

    def _length(self, question: Question) -> int:
        messages = coach_messages(question.turn, question.context, self._scenario, self._scale)
        return sum(len(message["content"]) for message in messages)

    def _without_a_model(self, turn: Turn, context: CoachContext, error: CoachError) -> Assessment:
        if error.failure != "over_budget" or self._over_budget is None:
            raise error
        said = self._over_budget.assess(turn, context)
        return replace(said, coach=self._over_budget.id, spent=error.spent)


def _assessment(said: Verdict) -> Assessment:
    return Assessment(said.score, said.rationale, said.prompt_hash, said.spent)

"""What every view does by the environment that it is a view of."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv  # type: ignore[import-untyped]

from mappa_envs.forking import Forkable
from mappa_envs.play import Observation


class View(Forkable):
    """Holds no state of the game: rendering, closing and going back are the environment's."""

    aec_env: AECEnv[str, Observation, str]

    def render(self) -> str | None:
        """Return the conversation so far (`"ansi"`), or print it (`"human"`)."""
        rendered: str | None = self.aec_env.render()
        return rendered

    def close(self) -> None:
        """Delete the workspace and end the scorer."""
        self.aec_env.close()

    def snapshot(self) -> Any:
        """Remember the episode as it is, workspace included.

        Raises:
            ActionError: there was no `reset` yet.
        """
        return self.aec_env.snapshot()

    def restore(self, snapshot: Any) -> None:
        """Go back, or over, to an episode that `snapshot` remembered, here or in another view.

        Raises:
            ValueError: the snapshot is of another scenario, or way to pay.
        """
        self.aec_env.restore(snapshot)

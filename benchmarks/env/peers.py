"""Other people's environments, each installed in a virtual environment of its own.

Each is played by a program that answers an action's length with the seconds and the turns of an
episode, by its own clock, so neither start nor pipe is counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_INSTALL_LIMIT_S = 600.0


class PeerMissing(Exception):
    """A peer cannot be installed here; says why."""


@dataclass(frozen=True)
class Peer:
    """One peer, e.g. `Peer("gem-llm==0.1.0", "peer_gem.py")`."""

    requirement: str
    program: str
    arguments: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Its virtual environment, below `$MAPPA_CACHE_DIR` or `~/.cache/mappa`."""
        root = os.environ.get("MAPPA_CACHE_DIR") or Path.home() / ".cache" / "mappa"
        return Path(root) / "benchmarks" / self.requirement

    def install(self) -> None:
        """Install it, if it is not there yet.

        Raises:
            PeerMissing: it cannot be installed.
        """
        complete = self.folder / "complete"
        if complete.exists():
            return
        python = str(self.folder / "bin" / "python")
        _call(sys.executable, "-m", "venv", "--clear", str(self.folder))
        _call(python, "-m", "pip", "install", "--quiet", self.requirement)
        complete.touch()

    @contextmanager
    def running(self) -> Iterator[Callable[[str], tuple[float, int]]]:
        """Start its program; yield what plays one episode with an action of that length."""
        command = [self.folder / "bin" / "python", _HERE / self.program, *self.arguments]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            questions, answers = process.stdin, process.stdout
            assert questions is not None
            assert answers is not None

            def ask(action: str) -> tuple[float, int]:
                questions.write(f"{len(action)}\n")
                seconds, turns = answers.readline().split()
                return float(seconds), int(turns)

            try:
                yield ask
            finally:
                process.kill()


_TEXTARENA = "textarena==0.7.4"
PEERS = {
    "TextArena, raw": Peer(_TEXTARENA, "peer_textarena.py", ("ThreePlayerIPD-v0-raw",)),
    "TextArena, as made": Peer(_TEXTARENA, "peer_textarena.py", ("ThreePlayerIPD-v0",)),
    "GEM": Peer("gem-llm==0.1.0", "peer_gem.py"),
}


def _call(*command: str) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or error.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise PeerMissing(reason[0]) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(str(error)) from None

"""Run agent code in a Docker container."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from mappa_envs.sandbox import engine
from mappa_envs.sandbox.base import WorkspaceSandbox
from mappa_envs.sandbox.containers import Container, Plan
from mappa_envs.sandbox.jail.view import WORKSPACE
from mappa_envs.sandbox.levels import visible
from mappa_envs.sandbox.protocol import Actor, ExecResult, Level, Limits
from mappa_envs.sandbox.warm import ENVIRONMENT, PRELOAD, boot

_JAIL: Final = Path(__file__).parent / "jail"
_JAIL_INSIDE: Final = "/mappa/jail"


class DockerSandbox(WorkspaceSandbox):
    """A workspace on this machine, and programs that run in a container which shows it.

    The container starts with the first program and serves all that follow, unless their limits
    are others. Its first process, ours, holds the heavy imports; it forks each program, keeps
    its deadline, and kills all that is left of it. The container has no network, no
    capabilities, a read-only root, an ordinary user, private `/tmp` and `/dev/shm` that are
    emptied after each program, limits on memory, processes and processors, Docker's filter on
    system calls and a second one. It ends with its owner, however that ends.

    Without an image it shows the interpreter and the libraries of this machine, read-only. A
    Docker daemon on this machine is needed, neither rootless nor remapping users.

    What it does **not** protect against: holes of the kernel or of Docker; slowing the machine
    down within the limits; being recognised, by the names and versions of the kernel and of the
    packages. Who may use the Docker daemon is as good as root, and so is this process.
    """

    level: Level = "docker"

    def __init__(
        self,
        image: str | None = None,
        *,
        preload: tuple[str, ...] = PRELOAD,
        hidden: tuple[str, ...] = (),
    ) -> None:
        """Make an empty workspace.

        Args:
            image: An image that the daemon has, with `python3` (3.11 or newer) in it and what
                programs import; None to use those of this machine.
            preload: Modules that programs find imported already, where they are installed.
            hidden: Folders of this machine, by their real paths, that are shown empty where an
                image is not given.

        Raises:
            SandboxError: docker-py, the daemon or the image is missing.
        """
        self._image, self._preload, self._hidden = image, preload, hidden
        self._image_name = engine.image_of(engine.connect(), image)
        self._plan: Plan | None = None
        self._container: Container | None = None
        self._containers = ExitStack()
        super().__init__(other_user=os.geteuid() == 0)
        self._closing.push(self._containers)

    def _run(self, source: str, limits: Limits, actor: Actor) -> ExecResult:
        job = {
            "source": source,
            "seed": actor.seed,
            "environment": {"HOME": WORKSPACE, "TMPDIR": "/tmp"},
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "output_bytes": limits.output_bytes,
            "total_output_bytes": limits.total_output_bytes,
            "timeout_s": limits.timeout_s,
        }
        container = self._container_for(limits)
        try:
            return container.run(job, limits, lambda: self._workspace.is_over(limits))
        except BaseException:
            container.usable = False
            raise
        finally:
            if not container.usable:
                self._end_container()

    def _interrupt(self) -> None:
        if (container := self._container) is not None:
            container.stop()

    def _container_for(self, limits: Limits) -> Container:
        """Return the running container, or start one if that has other limits."""
        plan = self._new_plan(limits)
        if self._container is None or plan != self._plan:
            self._end_container()
            self._container, self._plan = Container(plan), plan
            self._containers.callback(self._container.end)
        return self._container

    def _end_container(self) -> None:
        self._container = None
        self._containers.close()

    def _shown(self) -> dict[str, str]:
        """Return what of this machine the container shows, with its place there."""
        shown = {path: path for path in visible() if not os.path.islink(path)}
        for number, folder in enumerate(self._hidden):
            if os.path.isdir(folder) and any(folder.startswith(f"{path}/") for path in shown):
                empty = self._root / f"empty{number}"
                empty.mkdir(mode=0o755, exist_ok=True)
                shown[str(empty)] = folder
        return shown

    def _new_plan(self, limits: Limits) -> Plan:
        own = {} if self._image else self._shown()
        environment = {**ENVIRONMENT, "HOME": WORKSPACE}
        if self._image:
            del environment["PATH"]
        uid, gid = (os.geteuid(), os.getegid()) if self._uid is None else (self._uid, self._uid)
        return Plan(
            image=self._image_name,
            command=(
                "python3" if self._image else sys.executable,
                *boot("container", str(Path(_JAIL_INSIDE).parent)),
            ),
            environment=environment,
            shown={**own, str(_JAIL): _JAIL_INSIDE},
            workspace=self._workspace.path,
            user=f"{uid}:{gid}",
            preload=self._preload,
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
            tmp_bytes=limits.file_bytes,
        )

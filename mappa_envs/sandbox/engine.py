"""The Docker daemon as this process uses it: connection, image, and containers left by crashes."""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.levels import visible
from mappa_envs.sandbox.scratch import is_stale, scratch_folder

_MACHINE_LABEL: Final = "mappa.machine"
_OWNER_LABEL: Final = "mappa.owner"
_HOST_IMAGE: Final = "mappa-host"
_NOT_FOUND, _CONFLICT = 404, 409


def connect() -> Any:
    """Return this process's client; the first call sweeps containers away that crashes left.

    Raises:
        SandboxError: docker-py is not installed, or no daemon answers.
    """
    return _connect(os.getpid(), os.environ.get("DOCKER_HOST", ""))


@functools.cache
def _connect(_pid: int, _host: str) -> Any:
    try:
        docker = importlib.import_module("docker")
    except ImportError as error:
        raise SandboxError(
            f"sandbox level 'docker' needs docker-py: {error}; run pip install 'mappa[docker]'"
        ) from error
    with explained(
        "cannot reach a Docker daemon; start one, let this user use it, or set DOCKER_HOST"
    ):
        client = docker.from_env()
        sweep(client)
    return client


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn what docker-py raises into a `SandboxError` that starts with `what`."""
    docker, requests = (importlib.import_module(name) for name in ("docker", "requests"))
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        reason = getattr(error, "explanation", None) or error
        raise SandboxError(f"{what}: {reason}") from error


def labels() -> dict[str, str]:
    """Return what tells this process's containers from others."""
    return {_MACHINE_LABEL: _machine(), _OWNER_LABEL: str(scratch_folder())}


def sweep(client: Any) -> None:
    """Remove the containers whose owner, a process of this user on this machine, is gone."""
    errors = importlib.import_module("docker").errors
    label = f"{_MACHINE_LABEL}={_machine()}"
    for container in client.containers.list(all=True, filters={"label": label}, sparse=True):
        if is_stale(Path(container.attrs["Labels"].get(_OWNER_LABEL, ""))):
            with suppress(errors.APIError):
                remove(container)


def remove(container: Any) -> None:
    """Remove a container, running or not, unless that has been done or has begun."""
    errors = importlib.import_module("docker").errors
    try:
        container.remove(force=True, v=True)
    except errors.APIError as error:
        if error.status_code not in (_NOT_FOUND, _CONFLICT):
            raise


def mount(source: str, place: str, read_only: bool) -> Any:
    """Show a file or folder of this machine in a container; a missing one is an error."""
    types = importlib.import_module("docker").types
    return types.Mount(place, source, type="bind", read_only=read_only)


def image_of(client: Any, image: str | None) -> str:
    """Return the image to use; without one given, it is made for the files of this machine.

    Raises:
        SandboxError: the daemon does not have it.
    """
    errors = importlib.import_module("docker").errors
    with explained(f"cannot look for the image {image!r}"):
        try:
            name = image or _host_image(client)
            client.images.get(name)
        except errors.ImageNotFound:
            raise SandboxError(
                f"the Docker daemon has no image {image!r}; run docker pull {image}"
            ) from None
    return name


def _host_image(client: Any) -> str:
    """Return an image that holds nothing but the links of this machine's root folder."""
    archive = _archive([path for path in visible() if os.path.islink(path)])
    name = f"{_HOST_IMAGE}:{hashlib.sha256(archive).hexdigest()[:12]}"
    errors = importlib.import_module("docker").errors
    try:
        client.images.get(name)
    except errors.ImageNotFound:
        repository, _, tag = name.partition(":")
        client.api.import_image_from_data(archive, repository, tag)
    return name


def _archive(links: list[str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for folder in ("dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for path in links:
            entry = tarfile.TarInfo(path.removeprefix("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(entry)
    return content.getvalue()


@functools.cache
def _machine() -> str:
    """Return a name for this user, here: where the locks of scratch folders can be looked at."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/mnt')}/{os.geteuid()}"

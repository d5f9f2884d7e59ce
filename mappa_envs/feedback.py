"""What the environment tells agents in its own words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mappa_envs.sandbox.protocol import Access, FileRecord
from mappa_envs.types import ToolResult

NO_PROGRAM = "[no program was run]"
NO_FILES = "[no files]"
LAST_TURN = "That was your last action; your work is handed on."
SANDBOX_DIED = "[the sandbox failed; the episode ends here]"


def joined_output(results: tuple[ToolResult, ...]) -> str:
    """Return the outputs of an action's programs, numbered where there are several."""
    if len(results) == 1:
        return results[0].output
    return "\n".join(f"[program {n}]\n{r.output}" for n, r in enumerate(results, start=1))


def feedback(
    results: tuple[ToolResult, ...],
    hands_off: bool,
    missing: tuple[str, ...],
    folders: Collection[str] = (),
) -> str | None:
    """Return what an agent is told after its action; None where there is nothing to tell.

    Args:
        results: What its programs gave.
        hands_off: Whether its work is handed on.
        missing: The artifacts that are due and not there.
        folders: The folders of the workspace; one may have the name of an artifact.
    """
    said = []
    if results:
        said.append(f"Output of your program:\n{joined_output(results)}")
    if hands_off or not results:
        said += _missing_lines(missing, folders)
    if results and hands_off:
        said.append(LAST_TURN)
    return "\n".join(said) or None


def _missing_lines(missing: tuple[str, ...], folders: Collection[str]) -> Iterator[str]:
    if absent := [name for name in missing if name not in folders]:
        yield f"Not there: {', '.join(absent)}."
    for name in missing:
        if name in folders:
            yield f"{name} is a folder; a file is due."


def listed_files(files: tuple[FileRecord, ...], access: Access) -> str:
    """Return what a role is told of the files it may read: name, size and author, line by line."""
    shown = [file for file in files if access.may_read(file.path)]
    lines = [f"{file.path} ({file.size} bytes, by {file.author})" for file in shown]
    return "\n".join(lines) or NO_FILES

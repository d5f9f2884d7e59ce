"""The command, as tests run it: as a process of its own, or in theirs."""

from __future__ import annotations

import sys

import pytest

from mappa_envs.cli import main

MAPPA = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from mappa_envs.cli import main; main()"
)
"""The command. Shells start what runs in their background with Ctrl-C ignored; it minds it."""


def run_mappa(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["mappa", *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

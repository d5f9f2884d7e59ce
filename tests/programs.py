"""Programs that tests start as processes of their own."""

from __future__ import annotations

MAPPA = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from mappa_envs.cli import main; main()"
)
"""The command. Shells start what runs in their background with Ctrl-C ignored; it minds it."""

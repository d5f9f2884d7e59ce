from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mappa_envs

ROOT = Path(mappa_envs.__file__).parent
JAIL = ROOT / "sandbox" / "jail"
TRAINING = {"torch", "transformers", "vllm", "mappa_trainer"}


def in_a_fresh_interpreter(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports anywhere in its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = node.level == 1 and path.parent == JAIL
            assert relative or node.level == 0, f"{path}: relative import"
            found.update([] if relative else [str(node.module).partition(".")[0]])
    return found


def modules(package: str) -> list[Path]:
    return sorted((ROOT.parent / package).rglob("*.py"))


def test_importing_the_environments_loads_nothing_of_the_training() -> None:
    program = f"import sys, mappa_envs; print(sorted({TRAINING!r} & set(sys.modules)))"
    assert in_a_fresh_interpreter(program) == "[]"


def test_importing_registers_the_environment() -> None:
    program = (
        "import pettingzoo, mappa_envs\n"
        "env = pettingzoo.make('aec', 'mappa/MathChat-v0', coach={'kind': 'rubric'})\n"
        "env.reset(seed=0)\n"
        "print(env.agents, env)"
    )
    expected = "['solver_0', 'coder_0', 'verifier_0'] CoachWrapper<mathchat_v0>"
    assert in_a_fresh_interpreter(program) == expected


def test_the_jail_imports_nothing_but_itself_and_the_standard_library() -> None:
    found = {name for path in JAIL.glob("*.py") for name in imported(path)}
    assert found - {"__future__"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "path", modules("mappa_envs"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_environments_import_nothing_of_the_training(path: Path) -> None:
    assert imported(path) & TRAINING == set()


def test_the_trainer_does_not_import_the_environments() -> None:
    paths = modules("mappa_trainer")
    assert paths
    assert [str(path) for path in paths if "mappa_envs" in imported(path)] == []


def test_the_scan_sees_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("import a.b\nfrom c.d import e\ndef f():\n    import g as h, i\n")
    assert imported(path) == {"a", "c", "g", "i"}


def test_public_names_are_sorted_and_there() -> None:
    names = mappa_envs.__all__
    assert names == sorted(set(names))
    assert all(not name.startswith("_") and hasattr(mappa_envs, name) for name in names)

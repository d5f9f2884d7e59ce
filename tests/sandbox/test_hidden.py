"""Folders among what Python needs can be kept from programs, and what is beside them is there."""

from __future__ import annotations

import json
import wsgiref
from contextlib import closing
from pathlib import Path

import pytest
from backends import Backend

from mappa_envs.sandbox import Limits, Sandbox
from mappa_envs.sandbox.jail.landlock import around

HIDDEN = Path(wsgiref.__file__).resolve().parent
"""A package of the standard library that nothing else needs."""
LOOK = f"""
import json, os

def attempt(look):
    try:
        return look()
    except OSError as error:
        return type(error).__name__

hidden = {str(HIDDEN)!r}
beside = os.path.dirname(hidden)
print(json.dumps({{
    "read": attempt(lambda: open(f"{{hidden}}/simple_server.py").read(20)),
    "climbed": attempt(lambda: open(f"{{beside}}/json/../wsgiref/util.py").read(20)),
    "by descriptor": attempt(lambda: os.open("util.py", 0, dir_fd=os.open(hidden, os.O_PATH))),
    "beside": attempt(lambda: len(open(f"{{beside}}/this.py").read())),
    "deeper": attempt(lambda: len(open(f"{{beside}}/json/decoder.py").read())),
    "listed": attempt(lambda: "this.py" in os.listdir(beside)),
}}))
import colorsys, html.parser, xml.dom.minidom
"""


def make(backend: Backend) -> Sandbox:
    kind = type(backend.make())
    if backend.level == "docker":
        return kind(preload=(), hidden=(str(HIDDEN), "/no/such/folder"))
    return kind(backend.level, preload=(), hidden=(str(HIDDEN), "/no/such/folder"))


def test_what_is_hidden_cannot_be_read_and_its_neighbours_can(backend: Backend) -> None:
    with closing(make(backend)) as sandbox:
        result = sandbox.exec(LOOK, Limits())
    assert result.exit_code == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen.pop("beside") > 100
    assert seen.pop("deeper") > 100
    assert seen.pop("listed") is True
    if backend.level == "process":  # which isolates nothing
        assert seen["read"].startswith('"""')
    else:
        assert set(seen.values()) <= {"FileNotFoundError", "PermissionError"}


def test_a_sandbox_that_hides_nothing_is_another_one(backend: Backend) -> None:
    with closing(make(backend)) as sandbox:
        sandbox.exec("", Limits())
    with closing(backend.make()) as other:
        result = other.exec("import wsgiref.util; print(wsgiref.util.__name__)", Limits())
    assert result.stdout == "wsgiref.util\n"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name in ("a/b/secret", "a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("")
    (tmp_path / "a" / "b" / "note").write_text("")
    (tmp_path / "a" / "link").symlink_to("b")
    (tmp_path / "lib").symlink_to("a")
    return tmp_path


def test_rules_go_around_what_is_hidden_by_hand(house: Path) -> None:
    a, e = f"{house}/a", f"{house}/e"
    assert list(around([a, e], [])) == [a, e]
    assert list(around([a, e], [f"{house}/none"])) == [a, e]
    assert list(around([a, e], [e])) == [a]
    assert list(around([a, e], [f"{a}/b/secret"])) == [f"{a}/b/c", f"{a}/b/note", f"{a}/d", e]
    assert list(around([f"{house}/lib"], [f"{a}/d"])) == [f"{a}/b"]
    assert list(around([a], [f"{a}/b/secret", f"{a}/d"])) == [f"{a}/b/c", f"{a}/b/note"]

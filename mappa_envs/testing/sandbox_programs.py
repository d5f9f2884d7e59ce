"""Checks of a sandbox: what programs print, how they end, and what ends them."""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.sandbox.protocol import Actor, ExecResult, Limits, Output, Sandbox
from mappa_envs.testing.expect import equal

LIMITS = Limits(timeout_s=30.0)
_SHORT = Limits(timeout_s=0.5)


def output_of_both_streams_arrives(sandbox: Sandbox) -> None:
    """Standard output and standard error come back, each in its own field."""
    source = "import sys\nprint(2 + 3)\nprint('oops', file=sys.stderr)"
    equal(sandbox.exec(source, LIMITS), ExecResult.of("5\n", "oops\n"), source)


def exit_codes_arrive(sandbox: Sandbox) -> None:
    """The exit status is the program's own."""
    for source, exit_code, stderr in (
        ("", 0, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("import os; os._exit(7)", 7, ""),
    ):
        expected = ExecResult.of("", stderr, exit_code=exit_code)
        equal(sandbox.exec(source, LIMITS), expected, source)


def signals_arrive(sandbox: Sandbox) -> None:
    """A program that a signal ends has the negative number of the signal as its exit code."""
    for source, number in (
        ("import os; os.kill(os.getpid(), 15)", 15),
        ("import os; os.kill(os.getpid(), 9)", 9),
        ("import os; os.abort()", 6),
        ("import ctypes; ctypes.string_at(0)", 11),
    ):
        equal(sandbox.exec(source, LIMITS), ExecResult.of(exit_code=-number), source)


def tracebacks_show_the_program(sandbox: Sandbox) -> None:
    """A traceback holds the program's lines, and no frame of what runs it."""
    source = "def half(x):\n    raise ValueError(x)\n\nhalf(3)\n"
    stderr = (
        "Traceback (most recent call last):\n"
        '  File "<action>", line 4, in <module>\n'
        "    half(3)\n"
        '  File "<action>", line 2, in half\n'
        "    raise ValueError(x)\n"
        "ValueError: 3\n"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("", stderr, exit_code=1), source)
    stderr = '  File "<action>", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n'
    source = "x = 1\nx = = 2"
    equal(sandbox.exec(source, LIMITS), ExecResult.of("", stderr, exit_code=1), source)


def tracebacks_hold_no_paths_of_the_host(sandbox: Sandbox) -> None:
    """Frames of libraries and of the workspace's modules have short names."""
    for source in (
        "import json\njson.loads('{')",
        "try:\n    import json; json.loads('{')\nexcept ValueError:\n    raise KeyError",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()",
        "open('bad.py', 'w').write('x = = 1')\nimport bad",
        "def f(): f()\nf()",
        "raise ExceptionGroup('all', [ValueError(1)])",
        "x = '\\ud800'\nraise ValueError(x)",
        "\0",
    ):
        errors = sandbox.exec(source, LIMITS).stderr
        equal('File "/' in errors, False, f"a path of the host in the traceback {errors!r}")
        equal("Error" in errors, True, f"a traceback of {source!r} in {errors!r}")


def input_is_at_its_end(sandbox: Sandbox) -> None:
    """Nobody answers a program's questions."""
    source = "import os\nprint(os.read(0, 1))\ninput()"
    result = sandbox.exec(source, LIMITS)
    equal((result.exit_code, result.stdout), (1, "b''\n"), source)
    equal(result.stderr.splitlines()[-1:], ["EOFError: EOF when reading a line"], source)


def odd_output_arrives(sandbox: Sandbox) -> None:
    """Bytes that are no text are replaced; text that is no Unicode is escaped."""
    for source, stdout in (
        ("import sys; sys.stdout.buffer.write(b'a\\xff\\n')", "a\N{REPLACEMENT CHARACTER}\n"),
        ("print('\\ud800')", "\\ud800\n"),
        ("print('\\xe9\\u20ac')", "\xe9\u20ac\n"),
    ):
        equal(sandbox.exec(source, LIMITS).stdout, stdout, source)


def programs_are_main(sandbox: Sandbox) -> None:
    """The program is `__main__`, and its classes can be pickled."""
    source = (
        "import pickle, sys\nclass A: pass\n"
        "print(__name__, sys.argv, type(pickle.loads(pickle.dumps(A()))) is A)"
    )
    equal(sandbox.exec(source, LIMITS), ExecResult.of("__main__ ['<action>'] True\n"), source)


def seeds_make_programs_repeatable(sandbox: Sandbox) -> None:
    """`random` and `numpy.random` go by the actor's seed, and hashes are fixed."""
    source = (
        "import random\nprint(random.random())\nprint(hash('a'))\n"
        "try:\n    import numpy\n    print(numpy.random.rand())\nexcept ImportError: pass"
    )
    first, again, other = (
        sandbox.exec(source, LIMITS, Actor(seed=seed)).stdout.splitlines() for seed in (1, 1, 2)
    )
    equal(again, first, "what a program prints with the same seed")
    equal(len(first) >= 2, True, f"two numbers or more in {first}")
    same = [line for line, another in zip(first, other, strict=False) if line == another]
    equal(same, first[1:2], "the lines that are the same with another seed (only the hash)")


def a_deadline_ends_a_program(sandbox: Sandbox) -> None:
    """Neither a busy program nor a deaf one outlives the deadline."""
    deaf = "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, 1)\n"
    for source in ("while True: pass", f"{deaf}while True: pass", "import time; time.sleep(60)"):
        result = sandbox.exec(source, _SHORT)
        ending = (result.exit_code, result.limit_hit, result.timed_out)
        equal(ending, (-9, "wall_clock", True), source)


_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open("beats", "a") as file:
                file.write("x")
            time.sleep(0.01)
    os._exit(0)
os.wait()
while not os.path.exists("beats"):
    time.sleep(0.01)
print("before")
"""


def nothing_outlives_a_program(sandbox: Sandbox) -> None:
    """A daemon in a session of its own ends with the program, and keeps no stream open."""
    size = "(os.path.exists('beats') and os.path.getsize('beats'))"
    look = f"import os, time\nbefore = {size}\ntime.sleep(0.2)\nprint({size} - before)"
    result = sandbox.exec(_DAEMON, LIMITS)
    equal((result.stdout, result.limit_hit), ("before\n", None), "a program that leaves a daemon")
    equal(sandbox.exec(look, LIMITS).stdout, "0\n", "how much a daemon wrote after its program")
    result = sandbox.exec(f"{_DAEMON}time.sleep(60)", _SHORT)
    equal((result.exit_code, result.limit_hit), (-9, "wall_clock"), "a daemon at the deadline")
    equal(sandbox.exec(look, LIMITS).stdout, "0\n", "how much a daemon wrote after the deadline")


def long_output_is_cut_in_the_middle(sandbox: Sandbox) -> None:
    """Head and tail are kept, and it is said how much is missing."""
    source = "print('a' * 30 + 'b' * 40 + 'c' * 29)"
    result = sandbox.exec(source, Limits(timeout_s=30.0, output_bytes=40))
    equal(result.output, Output("a" * 20, "c" * 19 + "\n", 100, 60), source)
    result = sandbox.exec(source, Limits(timeout_s=30.0, output_bytes=100))
    whole = "a" * 30 + "b" * 40 + "c" * 29 + "\n"
    equal(result.output, Output(whole, "", 100, 0), "output that just fits")


def an_output_flood_ends_a_program(sandbox: Sandbox) -> None:
    """A program that writes too much is killed."""
    limits = Limits(timeout_s=30.0, output_bytes=100, total_output_bytes=1_000_000)
    result = sandbox.exec("import os\nwhile True: os.write(1, b'x' * 65536)", limits)
    equal((result.exit_code, result.limit_hit), (-9, "output"), "the end of a flood")
    equal(result.output, Output("x" * 50, "x" * 50, 1_000_000, 999_900), "what is left of it")


def a_memory_bomb_ends_the_program(sandbox: Sandbox) -> None:
    """A program that wants too much memory gets none; one that can do without goes on."""
    limits = Limits(timeout_s=30.0, memory_bytes=600_000_000)
    result = sandbox.exec("x = []\nwhile True: x.append(bytearray(10**7))", limits)
    equal((result.limit_hit, result.exit_code == 0), ("memory", False), "a memory bomb")
    source = "try: bytearray(10**12)\nexcept MemoryError: print('small')"
    equal(sandbox.exec(source, limits), ExecResult.of("small\n"), source)


def processes_are_bounded(sandbox: Sandbox) -> None:
    """Most of many processes are not to be had."""
    source = (
        "import os, time\nn = 0\ntry:\n    while n < 80:\n        if os.fork() == 0: "
        "time.sleep(60)\n        n += 1\nexcept BlockingIOError: pass\nprint(n)"
    )
    count = sandbox.exec(source, Limits(timeout_s=30.0, processes=16)).stdout
    few = [f"{number}\n" for number in range(1, 19)]
    equal(count in few, True, f"about 16 processes instead of {count!r}")


CHECKS: tuple[Callable[[Sandbox], None], ...] = (
    output_of_both_streams_arrives,
    exit_codes_arrive,
    signals_arrive,
    tracebacks_show_the_program,
    tracebacks_hold_no_paths_of_the_host,
    input_is_at_its_end,
    odd_output_arrives,
    programs_are_main,
    seeds_make_programs_repeatable,
    a_deadline_ends_a_program,
    nothing_outlives_a_program,
    long_output_is_cut_in_the_middle,
    an_output_flood_ends_a_program,
    a_memory_bomb_ends_the_program,
    processes_are_bounded,
)

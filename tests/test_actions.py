from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_envs.actions import ParsedAction, parse_action, strip_thinking
from mappa_envs.types import ToolCall


def tagged(code: str, name: str = "python") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'code': code}})}</tool_call>"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain", "plain"),
        ("  kept as it is\n", "  kept as it is\n"),
        ("", ""),
        ("<think>hm</think>\n\nanswer", "answer"),
        ("<think></think>answer", "answer"),
        ("a <think>b</think> c", "a  c"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("answer <think>and then", "answer"),
        ("<think>never ends", ""),
        ("began before</think>\nanswer", "answer"),
        ("b</think>answer<think>more</think>", "answer"),
        ("<think>a <think> b</think>answer", "answer"),
        ("<think>a</think>b</think>answer", "answer"),
        ("x < think > y", "x < think > y"),
        ("<THINK>not a tag", "<THINK>not a tag"),
    ],
)
def test_strip_thinking(text: str, visible: str) -> None:
    assert strip_thinking(text) == visible


FENCED = [
    ("```python\nprint(1)\n```", "print(1)"),
    ("```py\nprint(1)\n```", "print(1)"),
    ("```Python\nprint(1)\n```", "print(1)"),
    ("```  python title=a.py\nprint(1)\n```", "print(1)"),
    ("~~~python\nprint(1)\n~~~", "print(1)"),
    ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
    ("```python\n~~~\n```", "~~~"),
    ("```python\r\na = 1\r\nb = 2\r\n```\r\n", "a = 1\nb = 2"),
    ("text\n```python\nif a:\n    b\n```\ntext", "if a:\n    b"),
    ("1. so:\n   ```python\n   if a:\n       b\n   ```", "if a:\n    b"),
    ("    ```python\n    if a:\n  b\n    ```", "if a:\nb"),
    ("```python\nx = '''\n        ```\n'''\n```", "x = '''\n        ```\n'''"),
    ("```python\nprint('<tool_call>')\n```", "print('<tool_call>')"),
    ("```python\n\nprint(1)\n\n```", "\nprint(1)\n"),
    ("```python\nx = 1\n```` ", "x = 1"),
]


@pytest.mark.parametrize(("text", "source"), FENCED)
def test_a_fenced_python_block_is_a_call(text: str, source: str) -> None:
    assert parse_action(text).calls == (ToolCall("python", source),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no code",
        "```\nprint(1)\n```",
        "```bash\nls\n```",
        "```pythonic\nprint(1)\n```",
        "use `python` and ```python print(1)``` inline",
        "text ```python\nprint(1)",
        "``python\nprint(1)\n``",
        "```json\n<tool_call>{}</tool_call>\n```",
        "```text\n~~~python\nprint(1)\n~~~\n```",
        "```text never closed\n~~~python\nprint(1)\n~~~",
        "<think>\n```python\nprint(1)\n```\n</think>",
        "```python\nprint(1)\n```\n</think> done",
        "</tool_call>",
    ],
)
def test_what_is_no_call(text: str) -> None:
    assert parse_action(text).calls == ()


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (tagged("print(1)"), ToolCall("python", "print(1)")),
        (tagged("print(1)", "code_interpreter"), ToolCall("python", "print(1)")),
        (tagged("select 1", "sql"), ToolCall("sql", "select 1")),
        (f"so {tagged('a')} then", ToolCall("python", "a")),
        (tagged("a\nb = '\\n'\n"), ToolCall("python", "a\nb = '\\n'\n")),
        (tagged("é€\U0001f600"), ToolCall("python", "é€\U0001f600")),
        (tagged("```python\nx\n```"), ToolCall("python", "```python\nx\n```")),
        (
            '<tool_call>\n{"name": "python",\n "arguments": {"code": "a"}}\n</tool_call>',
            ToolCall("python", "a"),
        ),
    ],
)
def test_a_tool_call_tag_is_a_call(text: str, call: ToolCall) -> None:
    assert parse_action(text).calls == (call,)


@pytest.mark.parametrize(
    ("text", "tool", "words"),
    [
        ("```python\nprint(1)", "python", "the code block is not closed"),
        ("```python", "python", "the code block is not closed"),
        ("```python\nx = 1\n~~~", "python", "the code block is not closed"),
        ("````python\nx = 1\n```", "python", "the code block is not closed"),
        ("```python\n```", "python", "the code is empty"),
        ("```python\n  \n```", "python", "the code is empty"),
        (tagged(""), "python", "the code is empty"),
        ('<tool_call>{"name": "python"', "", "not closed with </tool_call>"),
        ("<tool_call>print(1)</tool_call>", "", "not valid JSON: Expecting value at line 1"),
        ('<tool_call>{"name": "python",}</tool_call>', "", "not valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "", "not valid JSON"),
        ("<tool_call>" + "9" * 10_000 + "</tool_call>", "", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", "", "names no tool"),
        ('<tool_call>{"name": 3}</tool_call>', "", "names no tool"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "", "names no tool"),
        ('<tool_call>{"name": "sql"}</tool_call>', "sql", 'no text under "code"'),
        (
            '<tool_call>{"name": "python", "arguments": {"code": 3}}</tool_call>',
            "python",
            'no text under "code"',
        ),
        (
            '<tool_call>{"name": "python", "arguments": {"code": "\'\\ud800\'"}}</tool_call>',
            "python",
            "half of a surrogate pair",
        ),
    ],
)
def test_an_unreadable_call_says_why(text: str, tool: str, words: str) -> None:
    (call,) = parse_action(text).calls
    assert (call.tool, call.source) == (tool, "")
    assert call.error is not None
    assert words in call.error


def test_calls_of_both_forms_keep_their_order() -> None:
    text = "\n".join(
        [tagged("a"), "```python\nb\n```", "<tool_call>{</tool_call>", "~~~py\nc\n~~~", tagged("d")]
    )
    calls = parse_action(text).calls
    assert [call.source for call in calls] == ["a", "b", "", "c", "d"]
    assert [call.error is None for call in calls] == [True, True, False, True, True]


def test_the_visible_text_keeps_its_code() -> None:
    parsed = parse_action("<think>hm</think>Run:\n```python\nprint(1)\n```")
    assert parsed == ParsedAction(
        "Run:\n```python\nprint(1)\n```", (ToolCall("python", "print(1)"),)
    )


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "```python\n",
    "\n```\n",
    "\n~~~",
    "````",
    '{"name": "python", "arguments": {"code": "x"}}',
    "{",
    '"',
    "\\ud800",
    "\r\n",
    "    ",
    "x = 1",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join))
def test_any_text_parses(text: str) -> None:
    parsed = parse_action(text)
    assert parsed.visible == strip_thinking(text)
    for call in parsed.calls:
        if call.error is None:
            assert call.source.strip()
        else:
            assert call.error
            assert call.source == ""


def program_text(*, exclude: str) -> st.SearchStrategy[str]:
    letters = st.characters(exclude_characters=exclude, exclude_categories=["Cs"])
    return st.text(alphabet=letters, min_size=1).filter(str.strip)


@given(program_text(exclude="`~<\r\n"))
def test_a_fenced_program_comes_back_unchanged(line: str) -> None:
    source = f"{line}\n    {line}"
    assert parse_action(f"see:\n```python\n{source}\n```\n").calls == (ToolCall("python", source),)


@given(program_text(exclude="<"))
def test_a_tagged_program_comes_back_unchanged(source: str) -> None:
    assert parse_action(tagged(source)).calls == (ToolCall("python", source),)


@given(st.text(alphabet="ab \n<>/thinkool_c`"))
def test_text_without_tags_is_its_own_visible_text(text: str) -> None:
    if "<think>" not in text and "</think>" not in text:
        assert strip_thinking(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "<think>",
        "</think>",
        "<think></think>",
        "<tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"a":"</tool_call>',
        "```python\n",
        "```python\nx\n```\n",
        "```\n~~~\n",
        "`",
        "~",
        " ",
        "\n",
        "\r",
        "   \n",
        "```` `",
        "\n```x\n<tool_call>",
        "\\",
    ],
)
def test_hostile_megabytes_parse_in_linear_time(piece: str) -> None:
    small, large = (piece * (size // len(piece)) for size in (50_000, 1_000_000))

    def seconds(text: str) -> float:
        start = time.process_time()
        parse_action(text)
        return time.process_time() - start

    best_small = min(seconds(small) for _ in range(3))
    assert seconds(large) < 100 * best_small + 0.5  # a quadratic parser would need 400 times

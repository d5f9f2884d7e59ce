r"""Find the answer in a message and read it: plain text in, tidied text or an exact number out.

`find_answer` says which part of a message is its answer, `tidy` writes it in one plain form of
LaTeX, `canonical` makes equal spellings the same string, and `exact_number` reads one rational
number out of the usual wrappings (units, comments, thousands, `m+n = 116`). Nothing here evaluates
mathematics, so every function is linear in its input and safe on any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from mappa_envs.actions import strip_thinking

MAX_ANSWER_CHARS = 4096
"""A longer answer is not read."""
_MAX_BARE_CHARS = 200
_MAX_DIGITS = 1000

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
_NAMED = re.compile(r"^[A-Za-z](?:\s*[-+*]\s*[A-Za-z])*\s*=")
_BARE_CHOICE = re.compile(r"\(?[A-Z]\)?")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

_CHARACTERS = {0xFF01 + i: chr(0x21 + i) for i in range(94)} | str.maketrans(
    {
        **dict.fromkeys("−‐‑–—", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000\t\r\n", " "),
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "≤": r"\leq ",
        "≥": r"\geq ",
        "≠": r"\neq ",
        "≈": r"\approx ",
        "∪": r"\cup ",
        "°": r"^\circ ",
        "²": "^2",
        "³": "^3",
    }
)
_NOTHING = re.compile(r"\{,\}|,?\\!|\$|\\\$|\\(?:left|right|displaystyle)(?![A-Za-z])")
_SPACE = re.compile(r"(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~")
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_CALLED_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_POWER = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_UNIT_TEXT = re.compile(_TEXT.pattern + _POWER + r"\s*$")
_COMMENT = re.compile(r"(?<=\S)\s*\\text\s*\{\s*[(,;].*$")
_LABEL = re.compile(r"^\s*(?:\\text\s*\{[^{}]*:\s*\}|[A-Za-z]{2}[A-Za-z ]{0,40}:\s)")
_CHOICE = re.compile(r"\s*\\(?:text|textbf|mathrm|mathbf)\s*\{\s*\(([A-Z])\)\s*\}\s*(?=\S)")
_ROUNDED = re.compile(r"(?<=\S)\s*\\approx\s*-?\d*\.\d+$")
_PLAIN_UNIT = re.compile(r"(?<=[\d})])\s+([A-Za-z]{2,}(?: [A-Za-z]{2,}){0,3})" + _POWER + "$")
_PERCENT = re.compile(r"\\?%|(?<=\d)\s*\bpercent\b")
_SCALE = re.compile(r"(?<=\d)\s*\b(hundred|thousand|million|billion)\b")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9}
_CONJUNCTION = re.compile(r"\s(?:or|and)\s")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\s*\\degree(?![A-Za-z])")
_TRIGONOMETRY = re.compile(r"sin|cos|tan|cot|sec|csc")
_MEANINGFUL = re.compile(
    r"\b(?:or|and|not|no|if|to|over|base|percent|am|pm|a\.m|p\.m|hundred|thousand|(?:m|b|tr)illion|dozen"
    r"|factorial|squared|cubed|half|pi|sin|cos|tan|cot|sec|csc|log|ln|exp|gcd|lcm|mod|max|min"
    r"|sqrt|plus|minus|times|more|less)\b",
    re.IGNORECASE,
)
"""Words which change a value and so are no unit."""

_SIGNED = r"[-+]?\s*"
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = re.compile(rf"({_SIGNED})((?:{_WHOLE}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,2}})?)")
_RATIO = re.compile(
    rf"({_SIGNED})(?:({_WHOLE})\s*/\s*(\d+)|\\frac\s*\{{\s*({_SIGNED}\d+)\s*\}}\s*\{{\s*(\d+)\s*\}})"
)
_RELATION = re.compile(r"[<>]|\\(?:leq?|geq?|neq?|approx|sim|equiv|in|not)(?![A-Za-z])|!=")
_COMPOUND = re.compile(r"[-+*/^]|\\(?:cdot|times|frac|sqrt)|[A-Za-z]\s*[A-Za-z]")
_TIME = re.compile(r"(\d{1,2}):(\d{2})\s*([aApP]?)\.?[mM]?\.?")


@dataclass(frozen=True, slots=True)
class ExactNumber:
    r"""One rational number as written, e.g. `ExactNumber(Fraction(10), True)` for `10\%`."""

    value: Fraction
    percent: bool = False

    def equals(self, other: ExactNumber) -> bool:
        r"""Compare exactly; a percent sign on one side only may be read as 1/100 or as a unit."""
        if self.percent == other.percent:
            return self.value == other.value
        marked, plain = (self, other) if self.percent else (other, self)
        return plain.value in (marked.value, marked.value / 100)


def find_answer(text: str) -> str | None:
    r"""Return the answer a message states, or None.

    It is what the last `\boxed{...}` or `\fbox{...}` holds; a box left open ends with its line.
    Without a box it is the whole message, where that is nothing but a number, one formula between
    dollar signs, or a choice letter. Numbers in prose are no answer.
    """
    text = strip_thinking(text)
    starts = [match.end() for match in _BOX.finditer(text)]
    for start in reversed(starts[-2:]):
        content, closed = _box_content(text, start)
        if content or closed:
            return content or None
    return _bare_answer(text)


def readings(answer: str) -> tuple[str, ...]:
    r"""Return what an answer says, tidied; `\text{(B) } 27` says "B" and "27"."""
    choice = _CHOICE.match(answer)
    return (tidy(answer),) if choice is None else (choice[1], tidy(answer[choice.end() :]))


def tidy(answer: str) -> str:
    r"""Write an answer in plain LaTeX: usual characters, no layout, no trailing unit or comment."""
    if answer.isascii() and answer.isdecimal():
        return answer
    text = _SPACE.sub(" ", _NOTHING.sub("", answer.translate(_CHARACTERS)))
    text = " ".join(text.split())
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _FRACTION.sub(r"\\frac", text))
    text = text.replace(r"\varnothing", r"\emptyset")
    text = _CALLED_ROOT.sub(r"\\sqrt{\1}", text)
    text = _LABEL.sub("", _COMMENT.sub("", text))
    text = _TEXT.sub(_unwrapped, _without_unit_text(text))
    text = _SCALE.sub(lambda match: rf" \cdot 10^{{{_SCALES[match[1]]}}}", text)
    text = _CONJUNCTION.sub(",", _PERCENT.sub(r"\%", text))
    if not _TRIGONOMETRY.search(text):
        text = _DEGREES.sub("", text)
    text = _ROUNDED.sub("", " ".join(text.split()).rstrip(" .,;"))
    unit = _PLAIN_UNIT.search(text)
    return text if unit is None or _MEANINGFUL.search(unit[1]) else text[: unit.start()]


def canonical(text: str) -> str:
    """Make equal spellings of a tidied answer the same: no idle spaces, no outer parentheses."""
    text = re.sub(r"(?<!\d) | (?!\d)", "", _without_parentheses(text))
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def exact_number(text: str) -> ExactNumber | None:
    """Read a tidied answer that states exactly one rational number, or return None."""
    side = _stated_side(text)
    if side is None:
        return None
    side = _without_parentheses(side).rstrip(" .")
    percent = side.endswith(r"\%")
    side = side.removesuffix(r"\%").rstrip()
    if len(side) > _MAX_DIGITS:
        return None
    value = _decimal(side) if "/" not in side and "\\" not in side else _ratio(side)
    return None if value is None else ExactNumber(value, percent)


def contradicts_itself(text: str) -> bool:
    """Return whether a tidied chain such as `4 = 5` equates different numbers."""
    sides = [exact_number(side.strip()) for side in text.split("=")] if "=" in text else []
    return len({side for side in sides if side is not None and not side.percent}) > 1


def time_of_day(text: str) -> tuple[int, int, str] | None:
    """Read `12:05 pm` as `(12, 5, "p")`, or return None."""
    match = _TIME.fullmatch(text)
    return match and (int(match[1]), int(match[2]), match[3].lower())


def _box_content(text: str, start: int) -> tuple[str, bool]:
    depth = 1
    for match in _BRACE.finditer(text, start, start + MAX_ANSWER_CHARS + 1):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start : match.start()].strip(), True
    rest = text[start : start + MAX_ANSWER_CHARS + 1]
    return re.split(r"[\n$]", rest, maxsplit=1)[0].strip(), False


def _bare_answer(text: str) -> str | None:
    text = text.strip()
    if not text or len(text) > _MAX_BARE_CHARS:
        return None
    text = text.lstrip("*_` ").rstrip("*_` .")
    formula = _BARE_FORMULA.fullmatch(text)
    if formula:
        return next(group for group in formula.groups() if group is not None).strip() or None
    if _BARE_CHOICE.fullmatch(text):
        return text
    derived = "=" in _NAMED.sub("", text, count=1) or _WORD.search(text) is not None
    is_number = not derived and exact_number(tidy(text)) is not None
    return text if is_number else None


def _unwrapped(match: re.Match[str]) -> str:
    inner = match[1].strip()
    return inner if len(inner.split()) == 1 and not _MEANINGFUL.search(inner) else f" {inner} "


def _without_unit_text(text: str) -> str:
    unit = _UNIT_TEXT.search(text)
    if unit is None or not text[: unit.start()].strip() or _MEANINGFUL.search(unit[1]):
        return text
    return text[: unit.start()] if re.search("[A-Za-z]", unit[1]) else text


def _without_parentheses(text: str) -> str:
    """Drop parentheses around the whole; of a pair or an interval they are part and stay."""
    partner: dict[int, int] = {}
    opened: list[int] = []
    for position, character in enumerate(text):
        if character in "([{":
            opened.append(position)
        elif character in ")]}" and opened:
            partner[opened.pop()] = position
    first, last = 0, len(text) - 1
    while first < last and text[first] == "(" and partner.get(first) == last and text[last] == ")":
        first, last = first + 1, last - 1
    inner = text[first : last + 1].strip()
    return f"({inner})" if first and len(_split_top(inner)) > 1 else inner


def _split_top(text: str) -> list[str]:
    """Split at commas and semicolons outside all brackets; commas of thousands don't split."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        thousands = text[position - 1 : position].isdigit() and re.match(
            r"\d{3}(?!\d)", text[position + 1 : position + 5]
        )
        if depth == 0 and (character == ";" or (character == "," and not thousands)):
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _stated_side(text: str) -> str | None:
    r"""Return the right side of `m+n = 116`, where the text states one value only.

    `\frac{m}{n} = \frac{3}{113}, m+n = 116` derives one value from others and states it, while
    `x=4, x=5` and `x=4, y=5` list several.
    """
    if "=" not in text:
        return text
    *givens, claim = _split_top(text)
    if _RELATION.search(text) or "=" not in claim:
        return None
    left, *middle, right = (side.strip() for side in claim.split("="))
    lefts = [given.partition("=")[0].replace(" ", "") for given in givens if "=" in given]
    repeated = sorted(left.replace(" ", "")) in [sorted(other) for other in lefts]
    if len(lefts) < len(givens) or repeated or (givens and not _COMPOUND.search(left)):
        return None
    if not left or not right or contradicts_itself(claim):
        return None
    return left if right.isalpha() and not middle and not givens else right


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    return Fraction((match[1] + match[2]).translate({ord(" "): None, ord(","): None}))


def _ratio(text: str) -> Fraction | None:
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    sign, top, bottom = match[1].strip(), match[2] or match[4], int(match[3] or match[5])
    if bottom == 0:
        return None
    value = Fraction(int(re.sub("[ ,+]", "", top)), bottom)
    return -value if sign == "-" else value

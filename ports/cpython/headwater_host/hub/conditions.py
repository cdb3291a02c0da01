"""Tags and conditions of subscriptions.

    condition = Condition('alarm && (celsius >= 21.5 || !indoors)')
    condition(topic, tags, payload.get)

An operand is the name of a tag, or a comparison ``name op literal``. A name is ``topic`` or a key of the payload. It
begins with a letter or ``_``; letters, digits and ``_ - . / : $ @ #`` follow. A literal is an integer, a decimal, a
text in double or single quotes (a quote or a backslash in it must follow a backslash), ``true`` or ``false``.
Numbers are compared exactly, never as rounded floats. Texts are compared by code points, ``true`` and ``false`` only
with ``==`` and ``!=``.

A condition has at most 4096 characters and 32 levels. Parsing and evaluating it take time in proportion to its length.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from headwater.mqtt import spec5
from headwater_host.fmq.kinds import Pairs
from headwater_host.fmq.values import MalformedValueError, decode
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage import Message

LONGEST = 4096
DEEPEST = 32

#: Returns the value of a key of the payload, None when there is none.
Lookup = Callable[[str], object]
_Test = Callable[[str, Collection[str], Lookup], bool]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<name>[^\W\d][\w.$:@/#-]*)
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.])
    |(?P<text>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
    |(?P<op>\|\||&&|==|!=|<=|>=|[!<>()])""",
    re.VERBOSE,
)
_NUMBERS = (int, float, Decimal)
# An integer of more bits is beyond every literal that fits into a condition.
_BEYOND = 4 * LONGEST
_WORDS = {"true": True, "false": False}


class ConditionError(RefusedError):
    """A malformed condition. ``column`` is where, from 1."""

    def __init__(self, column: int, text: str):
        super().__init__(spec5.TOPIC_FILTER_INVALID, f"column {column}: {text}")
        self.column = column


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def _tokens(source: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise ConditionError(at + 1, _what_is_wrong(source, at))
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match[0], at + 1))
        at = match.end()
    tokens.append(_Token("end", "", len(source) + 1))
    return tokens


def _what_is_wrong(source: str, at: int) -> str:
    c = source[at]
    if c in "\"'":
        return "this text has no closing quote, or a \\ that is not before a quote or a \\"
    if c in "|&=":
        return f"{c!r} must be doubled"
    if c.isascii() and (c.isdigit() or c == "-"):
        return "this is not a number such as 7 or -12.5"
    return f"{c!r} has no meaning here"


class Condition:
    """A parsed condition, called with a message's topic, its tags and a lookup in its payload.

    An empty condition is true. Raises ConditionError.
    """

    def __init__(self, source: str):
        if len(source) > LONGEST:
            raise ConditionError(LONGEST + 1, f"a condition has at most {LONGEST} characters")
        self._tokens = _tokens(source)
        self._at = 0
        self._test: _Test = _always
        if self._tokens[0].kind != "end":
            self._test = self._any(0)
            if self._next.kind != "end":
                raise self._expected("&&, || or the end")
        del self._tokens

    def __call__(self, topic: str, tags: Collection[str], lookup: Lookup) -> bool:
        """Return whether it is true of a message."""
        return self._test(topic, tags, lookup)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, text: str) -> bool:
        token = self._next
        if token.kind != "op" or token.text != text:
            return False
        self._at += 1
        return True

    def _expected(self, what: str) -> ConditionError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text)
        return ConditionError(token.column, f"{what} belongs here, not {found}")

    def _any(self, depth: int) -> _Test:
        return self._joined("||", any, self._all, depth)

    def _all(self, depth: int) -> _Test:
        return self._joined("&&", all, self._not, depth)

    def _joined(
        self, op: str, join: Callable[[Iterable[bool]], bool], operand: Callable[[int], _Test], depth: int
    ) -> _Test:
        parts = [operand(depth)]
        while self._take(op):
            parts.append(operand(depth))
        if len(parts) == 1:
            return parts[0]
        return lambda topic, tags, lookup: join(part(topic, tags, lookup) for part in parts)

    def _not(self, depth: int) -> _Test:
        wanted = True
        while self._take("!"):
            wanted = not wanted
        test = self._operand(depth)
        return test if wanted else lambda topic, tags, lookup: not test(topic, tags, lookup)

    def _operand(self, depth: int) -> _Test:
        token = self._next
        if self._take("("):
            if depth == DEEPEST:
                raise ConditionError(token.column, f"a condition has at most {DEEPEST} levels of parentheses")
            test = self._any(depth + 1)
            if not self._take(")"):
                raise self._expected("&&, || or ')'")
            return test
        if token.kind != "name" or token.text in _WORDS:
            raise self._expected("the name of a tag, of a key or 'topic'")
        self._at += 1
        op = self._next.text
        if self._next.kind != "op" or op not in _OPERATORS:
            return lambda topic, tags, lookup: token.text in tags
        self._at += 1
        return self._comparison(token.text, op)

    def _comparison(self, name: str, op: str) -> _Test:
        token = self._next
        if token.kind == "name" and token.text in _WORDS:
            if op not in ("==", "!="):
                raise ConditionError(token.column, f"{token.text} is compared with == or !=, not with {op}")
            holds = _truth(op, _WORDS[token.text])
        elif token.kind == "number":
            holds = _number(op, Decimal(token.text) if "." in token.text else int(token.text))
        elif token.kind == "text":
            holds = _text(op, re.sub(r"\\(.)", r"\1", token.text[1:-1]))
        else:
            raise self._expected("a number, a text in quotes, true or false")
        self._at += 1
        if name == "topic":
            return lambda topic, tags, lookup: holds(topic)
        return lambda topic, tags, lookup: holds(lookup(name))


def _always(topic: str, tags: Collection[str], lookup: Lookup) -> bool:
    return True


def _truth(op: str, literal: bool) -> Callable[[object], bool]:
    compare = _OPERATORS[op]
    return lambda value: isinstance(value, bool) and compare(value, literal)


def _text(op: str, literal: str) -> Callable[[object], bool]:
    compare = _OPERATORS[op]
    return lambda value: isinstance(value, str) and compare(value, literal)


def _number(op: str, literal: int | Decimal) -> Callable[[object], bool]:
    compare = _OPERATORS[op]

    def holds(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            return False
        if isinstance(value, int):
            # Converting an integer of megabytes to a decimal takes hours; its sign decides.
            return compare(value, 0 if value.bit_length() > _BEYOND else literal)
        if value != value:  # NaN differs from everything
            return op == "!="
        return compare(value, literal)

    return holds


class _Keys:
    """The keys of the payload that was decoded last: many subscriptions ask about one message."""

    def __init__(self) -> None:
        self._of: Message | None = None
        self._keys: dict[Any, Any] = {}

    def get(self, message: Message, name: str) -> object:
        if message is not self._of:
            self._of, self._keys = message, {}
            try:
                found = decode(message.payload)
            except MalformedValueError:
                found = None
            if isinstance(found, Pairs):
                # A dict cannot tell some of its keys apart, but it can texts.
                found = {key: value for key, value in found if isinstance(key, str)}
            if isinstance(found, dict):
                self._keys = found
        return self._keys.get(name)


_keys = _Keys()


class Selection:
    """The tags and the condition of a subscription. Raises ConditionError for a malformed condition."""

    def __init__(self, tags: Collection[str], condition: str):
        self._tags = frozenset(tags)
        self._condition = Condition(condition) if condition else None

    def takes(self, message: Message) -> bool:
        """Return whether the subscription gets a message of one of its topics."""
        if not self._tags.issubset(message.tags):
            return False
        condition = self._condition
        return condition is None or condition(
            message.topic, message.tags, lambda name: _keys.get(message, name)
        )

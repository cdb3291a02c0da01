"""Conditions read and asked in another way: by translation into Python, with numbers as fractions."""

import ast
import math
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

DEEPEST = 32
_AFTER = set("_-./:$@#")
_OPS = ("==", "!=", "<=", ">=", "<", ">")


class BadConditionError(Exception):
    """It is none."""


def _lex(source: str) -> list[tuple[str, str]]:
    found = []
    at = 0
    while at < len(source):
        c = source[at]
        if c in " \t\r\n":
            at += 1
        elif source[at : at + 2] in ("||", "&&", *_OPS[:4]):
            found.append(("op", source[at : at + 2]))
            at += 2
        elif c in "!<>()":
            found.append(("op", c))
            at += 1
        elif c in "\"'":
            text, at = _quoted(source, at)
            found.append(("text", text))
        elif c == "-" or ("0" <= c <= "9"):
            end = at + 1
            while end < len(source) and (source[end] in "0123456789." or _is_word(source[end])):
                end += 1
            word = source[at:end]
            whole, dot, rest = word.removeprefix("-").partition(".")
            parts = [whole, rest] if dot else [whole]
            if not all(part and set(part) <= set("0123456789") for part in parts):
                raise BadConditionError
            found.append(("number", word))
            at = end
        elif _is_word(c) and not c.isdecimal() and not _is_digit(c):
            end = at + 1
            while end < len(source) and (_is_word(source[end]) or source[end] in _AFTER):
                end += 1
            found.append(("name", source[at:end]))
            at = end
        else:
            raise BadConditionError
    return found


def _is_word(c: str) -> bool:
    return c.isalnum() or c == "_"


def _is_digit(c: str) -> bool:
    return c.isdecimal()


def _quoted(source: str, at: int) -> tuple[str, int]:
    quote, text = source[at], ""
    at += 1
    while at < len(source) and source[at] != quote:
        if source[at] == "\\":
            at += 1
            if at == len(source) or source[at] not in "\"'\\":
                raise BadConditionError
        text += source[at]
        at += 1
    if at == len(source):
        raise BadConditionError
    return text, at + 1


def check(source: str, topic: str, tags: set[str], payload: dict[str, Any]) -> bool:
    """Whether the condition is true. Raises BadConditionError."""
    words = _lex(source)
    if not words:
        return True
    python, depth, at = [], 0, 0
    while at < len(words):
        kind, text = words[at]
        if text in ("||", "&&") and kind == "op":
            python.append({"||": "or", "&&": "and"}[text])
        elif kind == "op" and text == "!":
            # Python's `not` binds less than a comparison, but more than `and`, as ours does.
            python.append("not")
        elif kind == "op" and text in "()":
            depth += 1 if text == "(" else -1
            if depth > DEEPEST:
                raise BadConditionError
            python.append(text)
        elif kind == "name" and text not in ("true", "false"):
            compared = at + 1 < len(words) and words[at + 1][0] == "op" and words[at + 1][1] in _OPS
            if not compared:
                python.append(str(text in tags))
            else:
                if at + 2 >= len(words):
                    raise BadConditionError
                value = topic if text == "topic" else payload.get(text)
                python.append(str(_compare(value, words[at + 1][1], *words[at + 2])))
                at += 2
        else:
            raise BadConditionError
        at += 1
    return _evaluate(python)


def _evaluate(words: list[str]) -> bool:
    # A chain of `not` is folded, so that Python's own parser is not too deep.
    folded: list[str] = []
    for word in words:
        if word == "not" and folded[-2:] == ["not", "not"]:
            folded.pop()
        else:
            folded.append(word)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # True(True) is odd, which is found below
            tree = ast.parse(" ".join(folded), mode="eval")
    except SyntaxError:
        raise BadConditionError from None
    if any(isinstance(node, ast.Call | ast.Tuple) for node in ast.walk(tree)):
        raise BadConditionError  # True(True) and ()
    return bool(eval(compile(tree, "condition", "eval")))


def _exact(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    if not isinstance(value, int) and not math.isfinite(value):
        return float(value)
    return Fraction(value)


def _compare(value: Any, op: str, kind: str, word: str) -> bool:
    literal: Any
    if kind == "name" and word in ("true", "false"):
        if op not in ("==", "!="):
            raise BadConditionError
        literal, same = word == "true", isinstance(value, bool)
    elif kind == "text":
        literal, same = word, isinstance(value, str)
    elif kind == "number":
        literal = Fraction(word)
        same = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    else:
        raise BadConditionError
    value = _exact(value)
    return (
        same
        and {
            "==": lambda: value == literal,
            "!=": lambda: value != literal,
            "<": lambda: value < literal,
            "<=": lambda: value <= literal,
            ">": lambda: value > literal,
            ">=": lambda: value >= literal,
        }[op]()
    )

"""Attributes that a program names without writing them: ``setattr(client, "on_" + kind, f)``.

Where a part of the name stands there, everything that may be meant is kept. What hides a name altogether is listed,
with its place: a bundle of only what is used would silently lack it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from tools.components.tree import walk

#: Functions whose second argument is the name of an attribute, and those whose arguments all are.
_NAMED = ("getattr", "setattr", "hasattr", "delattr")
_GETTERS = ("attrgetter", "methodcaller")
_CODE = ("exec", "eval", "compile", "execfile")
_SLOTS = ("__dict__", "__getattribute__", "__setattr__", "__delattr__")
#: Names under which any attribute can be reached; a program has to call them by these names.
_REACHING = {*_NAMED, *_GETTERS, *_CODE, *_SLOTS, "vars", "__import__"}
#: Modules that have them.
_SOURCES = ("builtins", "operator")
_ANYTHING = ".*"


@dataclass
class Computed:
    """``patterns``: regular expressions of what names may be; ``hidden``: where nothing is known of one, and why."""

    patterns: set[str] = field(default_factory=set)
    hidden: list[str] = field(default_factory=list)


def computed(name: str, body: Sequence[ast.stmt]) -> Computed:
    """What the program ``name`` says of attributes without writing their names."""
    found = Computed()
    parts = [part for statement in body for part in walk(statement)]
    values = _values(parts)
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    for part in parts:
        names: Iterable[ast.expr | None] = ()
        why = ""
        if isinstance(part, ast.Call):
            function = _called(part.func)
            if function in _NAMED:
                plain = not any(isinstance(one, ast.Starred) for one in part.args[:2])
                names = [part.args[1] if plain and len(part.args) > 1 else None]
            elif function in _GETTERS:
                names = part.args[:1] if function == "methodcaller" else part.args
            elif function in _CODE and (isinstance(part.func, ast.Name) or _is_of(part.func, "builtins")):
                why = "it may name anything"
            elif function in ("__import__", "import_module"):
                module = part.args[0] if part.args else None
                if not isinstance(module, ast.Constant) or str(module.value).startswith("headwater"):
                    why = "import it with `from ... import`"
            elif function == "vars" and part.args:
                why = "it may name any attribute"
            elif function == "type" and len(part.args) == 3 and not _is_written_out(part.args[2]):
                why = "write the class out"
        elif isinstance(part, ast.Name) and part.id in (*_NAMED, *_GETTERS) and id(part) not in called:
            why = "call it where it stands, with the name of the attribute"
        elif isinstance(part, ast.Attribute) and part.attr in _SLOTS:
            why = "it may name any attribute"
        elif _is_of(part, *_SOURCES) and part.attr in _REACHING and id(part) not in called:
            why = "call it where it stands, with the name of the attribute"
        elif isinstance(part, ast.ImportFrom) and _renames(part):
            why = "import it by its own name"
        for one in names:
            patterns = _patterns(one, values)
            if any(re.fullmatch(pattern, name) for pattern in patterns - {_ANYTHING} for name in _REACHING):
                why = "write the attribute's name where it is used"
            if _ANYTHING in patterns:
                why = "nothing is known of the attribute's name"
            found.patterns |= patterns - {_ANYTHING}
        if why:
            text = ast.unparse(part).splitlines()[0][:60]
            found.hidden.append(f"{name}:{getattr(part, 'lineno', '?')}: {text}: {why}")
    return found


def _called(function: ast.expr) -> str:
    """The name by which a function is called, also as an attribute of ``builtins`` or ``operator``."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_of(part: ast.AST, *modules: str) -> TypeGuard[ast.Attribute]:
    """Whether a part is an attribute of a module with one of these names."""
    return isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in modules


def _renames(statement: ast.ImportFrom) -> bool:
    """Whether an import may bring such a function under another name."""
    return statement.module in _SOURCES and any(
        one.name == "*" or (one.asname is not None and one.name in _REACHING) for one in statement.names
    )


def _is_written_out(members: ast.expr) -> bool:
    return isinstance(members, ast.Dict) and all(isinstance(key, ast.Constant) for key in members.keys)


def _values(parts: Iterable[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """What each variable of a program may be; None is anything. A name is one variable, wherever it stands."""
    values: dict[str, list[ast.expr | None]] = {}
    known: set[int] = set()

    def bind(target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            known.add(id(target))
            values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for i, one in enumerate(target.elts):
                bind(one, parts[i] if len(parts) == len(target.elts) else None)

    for part in parts:
        if isinstance(part, ast.Assign):
            for target in part.targets:
                bind(target, part.value)
        elif isinstance(part, ast.AnnAssign | ast.NamedExpr):
            bind(part.target, part.value)
        elif isinstance(part, ast.For | ast.comprehension):
            for one in _elements(part.iter):
                bind(part.target, one)
        elif name := _bound(part):
            values.setdefault(name, []).append(None)
    for part in parts:
        # Bound by what is not looked at above: ``with``, ``+=`` and the like.
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load) and id(part) not in known:
            values.setdefault(part.id, []).append(None)
    return values


def _bound(part: ast.AST) -> str | None:
    """The name that a part binds to a value of which nothing is known."""
    if isinstance(part, ast.arg):
        return part.arg
    if isinstance(part, ast.alias):
        return (part.asname or part.name).partition(".")[0]
    if isinstance(part, ast.MatchMapping):
        return part.rest
    if isinstance(part, ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
        return part.name
    return None


def _elements(node: ast.expr) -> list[ast.expr | None]:
    """What a loop over an expression goes through, where that is written out."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return list(node.elts)
    if isinstance(node, ast.Dict):
        return list(node.keys)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Dict)
    ):
        rows = node.func.value
        if node.func.attr == "keys":
            return list(rows.keys)
        if node.func.attr == "items" and None not in rows.keys:
            return [ast.Tuple([key, value]) for key, value in zip(rows.keys, rows.values, strict=True) if key]
    return [None]


def _patterns(node: ast.expr | None, values: dict[str, list[ast.expr | None]], depth: int = 0) -> set[str]:
    """Regular expressions of the text that an expression may be."""
    if node is None or depth > 4:
        return {_ANYTHING}
    if isinstance(node, ast.Constant):
        return {re.escape(node.value)} if isinstance(node.value, str) else {_ANYTHING}
    if isinstance(node, ast.Name):
        return {one for value in values.get(node.id, [None]) for one in _patterns(value, values, depth + 1)}
    if isinstance(node, ast.IfExp):
        return _patterns(node.body, values, depth) | _patterns(node.orelse, values, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_patterns(side, values, depth + 1) for side in (node.left, node.right))
        return {_joined(a + b) for a in left for b in right}
    if isinstance(node, ast.JoinedStr):
        whole = {""}
        for value in node.values:
            inner: ast.expr | None = value
            if isinstance(value, ast.FormattedValue):
                # A format or a conversion makes another text of the value.
                inner = None if value.format_spec or value.conversion >= 0 else value.value
            ends = _patterns(inner, values, depth + 1)
            whole = {_joined(a + b) for a in whole for b in ends}
        return whole
    text, holes = None, ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text, holes = node.left, r"%(?:\([^)]*\))?[^a-zA-Z%]*[a-zA-Z]"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text, holes = node.func.value, r"\{[^}]*\}"
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return {_joined(_ANYTHING.join(re.escape(one) for one in re.split(holes, text.value)))}
    return {_ANYTHING}


def _joined(pattern: str) -> str:
    while _ANYTHING * 2 in pattern:
        pattern = pattern.replace(_ANYTHING * 2, _ANYTHING)
    return pattern

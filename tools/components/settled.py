"""What has one value for as long as a program runs is that value: attributes that are always set to the same, and
parameters that are always given the same. What can then never happen goes, and so do attributes that nobody reads.

Most of it are hooks and choices that a program makes no use of: where nobody has a sink, a message needs no code to be
handed to one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass

from tools.components.folded import Fold, is_pure
from tools.components.program import Hidden, Program, stored
from tools.components.tree import Quick, walk


@dataclass(frozen=True)
class Outside:
    """What the application does. ``hidden`` says of an attribute that it does not name it; ``public`` are the globals
    that it can name. ``named`` are the parameters that it may name, None stands for all; and no call of its has more
    than ``positional`` arguments without a name."""

    hidden: Hidden
    public: Collection[str]
    named: Collection[str] | None = None
    positional: int = 0


def settle(program: Program, outside: Outside) -> list[str]:
    """Put values in the place of what always has them; the names that went."""
    gone: list[str] = []
    while True:
        objects = _objects(program)
        values = _attributes(program, outside.hidden, objects)
        unread = _unread(program, outside.hidden)
        put = _Put(values, unread)
        program.body = [made for node in program.body for made in put.statements(node)]
        found = [
            *values,
            *sorted(unread),
            *_parameters(program, outside, objects),
            *_of_classes(program, outside, objects),
        ]
        fold = Fold(objects)
        program.body = [made for node in program.body for made in fold.statements(node)]
        if not found:
            return gone
        gone += found


def _objects(program: Program) -> dict[str, ast.stmt]:
    """The globals that are bound once: functions, classes, and others."""
    found: dict[str, ast.stmt] = {}
    count: Counter[str] = Counter()
    for node in program.body:
        for name in [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else stored([node]):
            found[name] = node
            count[name] += 1
    return {name: node for name, node in found.items() if count[name] == 1}


def _is_value(node: ast.expr, objects: Collection[str]) -> bool:
    """Whether this is the same object each time, and costs no more than an attribute."""
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, bool | int | bytes)
    return isinstance(node, ast.Name) and node.id in objects


# -- attributes --------------------------------------------------------------------------------------------------------


def _attributes(program: Program, hidden: Hidden, objects: dict[str, ast.stmt]) -> dict[str, ast.expr]:
    """The attributes that are never set to anything but one value, and that value."""
    values: dict[str, ast.expr] = {}
    never: set[str] = set()

    def note(name: str, value: ast.expr | None) -> None:
        if value is None or not _is_value(value, objects):
            never.add(name)
            return
        if ast.dump(values.setdefault(name, value)) != ast.dump(value):
            never.add(name)

    for node in program.body:
        plain: set[int] = set()
        for part in walk(node):
            if isinstance(part, ast.ClassDef):
                for member in part.body:
                    for name, value in _of_class(member, objects):
                        note(name, value)
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    if isinstance(target, ast.Attribute) and is_pure(target.value):
                        note(target.attr, part.value)
                        plain.add(id(target))
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                never.add(part.value)
        for part in walk(node):
            if not isinstance(part, ast.Attribute):
                continue
            if not is_pure(part.value) or (not isinstance(part.ctx, ast.Load) and id(part) not in plain):
                never.add(part.attr)
    return {name: value for name, value in values.items() if name not in never and hidden(name)}


def _unread(program: Program, hidden: Hidden) -> set[str]:
    """Attributes that are set, or counted up, for nobody. What is set to a new object may be there to keep it."""
    found: set[str] = set()
    never: set[str] = set()
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.Assign | ast.AugAssign):
                for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                    if isinstance(target, ast.Attribute):
                        plain = is_pure(part.value) and is_pure(target.value)
                        (found if plain else never).add(target.attr)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
                never.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                never.add(part.value)
            elif isinstance(part, ast.ClassDef):
                never |= {name for member in part.body for name, _ in _of_class(member, {})}
    return {name for name in found - never if hidden(name)}


def _of_class(member: ast.stmt, objects: dict[str, ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """What a statement in a class gives its objects: a function becomes a method, which is another one each time."""
    if isinstance(member, ast.FunctionDef):
        yield member.name, None
        return
    value = _static(member.value) if isinstance(member, ast.Assign) else None
    is_plain = isinstance(member, ast.Assign) and value is member.value
    if is_plain and isinstance(value, ast.Name) and isinstance(objects.get(value.id), ast.FunctionDef):
        value = None
    for name in stored([member]):
        yield name, value


def _static(value: ast.expr) -> ast.expr:
    """A function that is no method, though it stands in a class."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "staticmethod":
        return value.args[0]
    return value


class _Put(Quick, ast.NodeTransformer):
    """Puts values in the place of attributes, and leaves out what sets them."""

    def __init__(self, values: dict[str, ast.expr], unread: Collection[str]):
        self.values = values
        self.gone = {*values, *unread}

    def statements(self, node: ast.stmt) -> list[ast.stmt]:
        made = self.visit(node)
        return [] if made is None else [made]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr in self.values:
            return deepcopy(self.values[node.attr])
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        node.targets = [
            one for one in node.targets if not (isinstance(one, ast.Attribute) and one.attr in self.gone)
        ]
        if not node.targets:
            return None
        self.generic_visit(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | None:
        if isinstance(node.target, ast.Attribute) and node.target.attr in self.gone:
            return None
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        node.body = [
            one
            for one in node.body
            if not (isinstance(one, ast.Assign) and self.values.keys() & set(stored([one])))
        ]
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node


# -- parameters --------------------------------------------------------------------------------------------------------


def _parameters(program: Program, outside: Outside, objects: dict[str, ast.stmt]) -> list[str]:
    """Functions and methods that only the core calls, and always with the same: these parameters go."""
    functions: dict[str, list[tuple[ast.FunctionDef, int]]] = {}
    for node in program.body:
        if isinstance(node, ast.FunctionDef) and node.name not in outside.public:
            functions.setdefault(node.name, []).append((node, 0))
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                    functions.setdefault(f".{member.name}", []).append((member, 1))
    calls, uses = _calls(program)
    gone = []
    for name, defined in functions.items():
        sites = calls.get(name, [])
        if len(defined) != 1 or len(sites) != uses[name] or not sites:
            continue
        node, skip = defined[0]
        if node.decorator_list or (skip and not outside.hidden(name[1:])):
            continue
        gone += [f"{node.name}({one})" for one in _same(node, skip, sites, objects)]
    return gone


def _called(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


def _same(
    node: ast.FunctionDef, skip: int, sites: list[ast.Call], objects: dict[str, ast.stmt]
) -> Iterator[str]:
    """Take the parameters out of a function, and of its calls, that have one value."""
    a = node.args
    if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs:
        return
    if any(call.keywords or any(isinstance(one, ast.Starred) for one in call.args) for call in sites):
        return
    if skip and any(
        # ``Base.method(self, ...)`` has its first argument in another place.
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and isinstance(objects.get(call.func.value.id), ast.ClassDef)
        for call in sites
    ):
        return
    rebound = set(stored(node.body))
    for k in reversed(range(skip, len(a.args))):
        d = k - (len(a.args) - len(a.defaults))
        given = [
            call.args[k - skip] if k - skip < len(call.args) else a.defaults[d] if d >= 0 else None
            for call in sites
        ]
        name = a.args[k].arg
        first = given[0]
        if first is None or not _is_value(first, objects) or name in rebound:
            continue
        if any(one is None or ast.dump(one) != ast.dump(first) for one in given):
            continue
        if any(isinstance(part, ast.Lambda) for part in walk(node)):
            continue
        for call in sites:
            del call.args[k - skip : k - skip + 1]
        del a.args[k]
        if d >= 0:
            del a.defaults[d]
        put = _PutName(name, first)
        node.body = [put.visit(one) for one in node.body]
        yield name


def _of_classes(program: Program, outside: Outside, objects: dict[str, ast.stmt]) -> list[str]:
    """Parameters of constructors that nobody gives: they are their defaults."""
    if outside.named is None:
        return []
    calls, uses = _calls(program)
    gone: list[str] = []
    for node in program.body:
        # Who is a base, or the value of something, is made where nobody looks for it.
        if isinstance(node, ast.ClassDef) and uses[node.name] == len(calls.get(node.name, [])):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    gone += _never_given(node, member, calls.get(node.name, []), outside, objects)
    return gone


def _calls(program: Program) -> tuple[dict[str, list[ast.Call]], Counter[str]]:
    """By name, an attribute's with a dot before it: all calls, and how often the name stands there at all."""
    calls: dict[str, list[ast.Call]] = {}
    uses: Counter[str] = Counter()
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.Call) and _called(part.func):
                calls.setdefault(_called(part.func), []).append(part)
            if isinstance(part, ast.expr) and _called(part):
                uses[_called(part)] += 1
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                uses[f".{part.value}"] += 1
    return calls, uses


def _never_given(
    node: ast.ClassDef,
    made: ast.FunctionDef,
    sites: list[ast.Call],
    outside: Outside,
    objects: dict[str, ast.stmt],
) -> Iterator[str]:
    a = made.args
    named = {one.arg for call in sites for one in call.keywords if one.arg} | set(outside.named or ())
    positional = max([len(call.args) for call in sites], default=0)
    if node.name in outside.public:
        positional = max(positional, outside.positional)
    if a.vararg or a.posonlyargs or any(isinstance(one, ast.Starred) for call in sites for one in call.args):
        return
    rebound = set(stored(made.body))
    for k in reversed(range(1 + positional, len(a.args))):
        d = k - (len(a.args) - len(a.defaults))
        name = a.args[k].arg
        if d < 0 or name in named or name in rebound or not _is_value(a.defaults[d], objects):
            continue
        put = _PutName(name, a.defaults[d])
        del a.args[k], a.defaults[d]
        made.body = [put.visit(one) for one in made.body]
        yield f"{node.name}({name})"


class _PutName(Quick, ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr):
        self.name = name
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.value) if node.id == self.name else node

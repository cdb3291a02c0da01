"""What a program never uses: functions, classes, methods, tables. By name, so that rather too much is kept.

A method is used when its name is that of an attribute anywhere in what is used, or stands there in a string; a public
one also when nobody says which of them the application needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tools.bundle.program import Program, stored


def used_in(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """The names, and the names of attributes (also in strings), that stand in nodes."""
    names: set[str] = set()
    attributes: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.Attribute):
                attributes.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                attributes.add(part.value)
    return names, attributes


def drop_unused(program: Program, roots: Iterable[str], attributes: frozenset[str] | None) -> list[str]:
    """Remove what cannot be reached from the globals ``roots``: the names of what went.

    ``attributes`` are the public attributes that the application uses; None stands for all.
    """
    names, called = set(roots), set(attributes or ())

    def lives(member: ast.stmt) -> bool:
        own = [member.name] if isinstance(member, ast.FunctionDef) else stored([member])
        return not own or any(
            (name.startswith("__") and name.endswith("__"))
            or name in called
            or (attributes is None and not name.startswith("_"))
            for name in own
        )

    def kept(node: ast.stmt) -> bool:
        own = _owners(node)
        return not own or not own.isdisjoint(names)

    while True:
        before = len(names), len(called)
        for node in program.body:
            if not kept(node):
                continue
            parts: list[ast.AST] = [node]
            if isinstance(node, ast.ClassDef):
                parts = [*node.bases, *(member for member in node.body if lives(member))]
            found, touched = used_in(parts)
            names |= found
            called |= touched
        if before == (len(names), len(called)):
            break
    gone = []
    for node in program.body:
        if not kept(node):
            gone += sorted(_owners(node))
        elif isinstance(node, ast.ClassDef):
            dead = [member for member in node.body if not lives(member)]
            gone += [f"{node.name}.{_name(member)}" for member in dead]
            node.body = [member for member in node.body if member not in dead] or [ast.Pass()]
    program.body = [node for node in program.body if kept(node)]
    program.imports = {name: text for name, text in program.imports.items() if name in names}
    return gone


def _name(member: ast.stmt) -> str:
    return member.name if isinstance(member, ast.FunctionDef) else " ".join(stored([member]))


def _owners(node: ast.stmt) -> set[str]:
    """The globals that a statement makes, or fills: a loop that fills a table belongs to the table."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    filled = {
        part.value.id
        for part in ast.walk(node)
        if isinstance(part, ast.Subscript)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
    }
    return filled or set(stored([node]))

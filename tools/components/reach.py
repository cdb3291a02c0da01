"""What a program never uses: functions, classes, methods, tables. By name, so that rather too much is kept.

A method is used when its name is that of an attribute anywhere in what is used, unless of an object of another class,
or stands there in a string; a public one also when nobody says which of them the application needs.
"""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tools.components.program import PACKAGE, Hidden, Program, arguments, families, stored
from tools.components.tree import walk


def used_in(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """The names, and the names of attributes (also in strings), that stand in nodes."""
    names: set[str] = set()
    attributes: set[str] = set()
    for node in nodes:
        for part in walk(node):
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.Attribute):
                attributes.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                attributes.add(part.value)
    return names, attributes


def attribute_names(program: Program) -> set[str]:
    """All attributes that the core has or names."""
    members = {
        name
        for node in program.body
        if isinstance(node, ast.ClassDef)
        for member in node.body
        for name in _owned(member)
    }
    return members | used_in(program.body)[1]


#: What objects of Python's own have: attributes that are called so may be theirs.
_BUILT_IN = (array, bytearray, bytes, dict, int, list, memoryview, set, str, tuple, OSError)


def contracts(root: Path) -> dict[str, ast.ClassDef]:
    """What objects from outside have to be like, transports, dialers and stores: the classes of ``types.py``."""
    path = root / PACKAGE / "types.py"
    body = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def handed_in(
    program: Program, known: Mapping[str, ast.ClassDef], public: Collection[str], asked: Collection[str]
) -> set[str]:
    """The contracts of what the application can hand in: as an argument, by an attribute, or by way of another."""
    texts: list[str] = []
    for node in program.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef) and member.name in {"__init__", *public, *asked}:
                # Who does not say what he takes may take anything.
                given = arguments(member)[isinstance(node, ast.ClassDef) :]
                texts += [" ".join(known) if a.type_comment is None else a.type_comment for a in given]
    for name in asked:
        texts += program.annotated.get(name, ())
    found: set[str] = set()
    while texts:
        named = {word for text in texts for word in re.findall(r"\w+", text)} & known.keys()
        named |= {name for name, node in known.items() for base in node.bases if ast.unparse(base) in named}
        new = named - found
        found |= new
        texts = [ast.unparse(known[name]) for name in new]
    return found


def hidden_names(
    program: Program, outside: Iterable[ast.ClassDef], asked: Collection[str], everything: bool
) -> Hidden:
    """Which attributes only the core names: those with an underscore that the application has not ``asked`` for; and
    when that is ``everything`` that it names, all others too that are only the core's own, and not of ``outside``."""
    own: set[str] = set()
    foreign = {name for one in _BUILT_IN for name in dir(one)}
    foreign |= {name for node in outside for member in node.body for name in _owned(member)}
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.ClassDef):
                own |= {name for member in part.body for name in _owned(member)}
            elif isinstance(part, ast.Attribute):
                if isinstance(part.value, ast.Name) and part.value.id in program.imports:
                    foreign.add(part.attr)
                elif not isinstance(part.ctx, ast.Load):
                    own.add(part.attr)

    def hidden(name: str) -> bool:
        if name in asked or (name.startswith("__") and name.endswith("__")):
            return False
        return name.startswith("_") or (everything and name in own and name not in foreign)

    return hidden


def _owned(member: ast.stmt) -> list[str]:
    if isinstance(member, ast.FunctionDef):
        return [member.name]
    return (
        [member.target.id]
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
        else stored([member])
    )


def drop_unused(program: Program, roots: Iterable[str], attributes: frozenset[str] | None) -> list[str]:
    """Remove what cannot be reached from the globals ``roots``: the names of what went.

    ``attributes`` are the public attributes that the application uses; None stands for all.
    """
    names = set(roots)
    family = families(program)
    # The attributes that are used, and the family of classes whose they are; None where that cannot be seen.
    called: set[tuple[str, int | None]] = {(name, None) for name in attributes or ()}
    seen: set[int] = set()

    def lives(member: ast.stmt, of: str) -> bool:
        own = [member.name] if isinstance(member, ast.FunctionDef) else stored([member])
        return not own or any(
            (name.startswith("__") and name.endswith("__"))
            or (name, None) in called
            or (name, family[of]) in called
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
                parts = [*node.bases, *(member for member in node.body if lives(member, node.name))]
            for part in parts:
                if id(part) in seen:
                    continue
                seen.add(id(part))
                names |= used_in([part])[0]
                called |= _touched(part, getattr(node, "name", ""), family)
        if before == (len(names), len(called)):
            break
    gone = []
    for node in program.body:
        if not kept(node):
            gone += sorted(_owners(node))
        elif isinstance(node, ast.ClassDef):
            dead = [member for member in node.body if not lives(member, node.name)]
            gone += [f"{node.name}.{_name(member)}" for member in dead]
            node.body = [member for member in node.body if member not in dead] or [ast.Pass()]
    program.body = [node for node in program.body if kept(node)]
    program.imports = {name: text for name, text in program.imports.items() if name in names}
    return gone


def _touched(node: ast.AST, within: str, family: Mapping[str, int]) -> set[tuple[str, int | None]]:
    """The attributes that stand in a function or elsewhere, and the family of whose they are."""
    known: dict[str, int] = {}
    if isinstance(node, ast.FunctionDef):
        for a in arguments(node):
            # Modules do not share the names of classes, or it cannot be seen which is meant.
            meant = {number for name, number in family.items() if name.rpartition("__")[2] == a.type_comment}
            if len(meant) == 1:
                known[a.arg] = meant.pop()
        if within in family and node.args.args:
            known[node.args.args[0].arg] = family[within]
        inner = [a.arg for part in walk(node) if isinstance(part, ast.Lambda) for a in arguments(part)]
        for name in [*stored(node.body), *inner]:
            known.pop(name, None)
    found: set[tuple[str, int | None]] = set()
    for part in walk(node):
        if isinstance(part, ast.Attribute):
            whose = part.value.id if isinstance(part.value, ast.Name) else ""
            found.add((part.attr, known.get(whose)))
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add((part.value, None))
    return found


def _name(member: ast.stmt) -> str:
    return member.name if isinstance(member, ast.FunctionDef) else " ".join(stored([member]))


def _owners(node: ast.stmt) -> set[str]:
    """The globals that a statement makes, or fills: a loop that fills a table belongs to the table."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    filled = {
        part.value.id
        for part in walk(node)
        if isinstance(part, ast.Subscript)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
    }
    return filled or set(stored([node]))

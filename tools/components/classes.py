"""A class with one subclass that nobody else names becomes one with it: fewer objects, and attributes found sooner.

``super().method(...)`` becomes a call of the method under a private name of its own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection

from tools.components.program import Program, members
from tools.components.tree import Quick, walk


def merge_classes(program: Program, public: Collection[str]) -> list[str]:
    """Merge what can be merged, but no class in ``public``: the names of the classes that went."""
    gone = []
    while True:
        uses = Counter(part.id for node in program.body for part in walk(node) if isinstance(part, ast.Name))
        classes = {node.name: node for node in program.body if isinstance(node, ast.ClassDef)}
        for node in classes.values():
            base = node.bases[0] if len(node.bases) == 1 else None
            if not isinstance(base, ast.Name) or base.id not in classes or base.id in public:
                continue
            if uses[base.id] == 1:
                _merge(classes[base.id], node)
                program.body.remove(classes[base.id])
                gone.append(base.id)
                break
        else:
            return gone


def _merge(base: ast.ClassDef, node: ast.ClassDef) -> None:
    overridden = set(members(base)) & set(members(node))
    prefix = f"_{base.name.rpartition('__')[2]}_"
    called = _Super(overridden, set(members(node)) - overridden, prefix)
    for member in node.body:
        called.visit(member)
    kept: list[ast.stmt] = []
    for member in base.body:
        if isinstance(member, ast.FunctionDef) and member.name in overridden:
            if member.name not in called.found:
                continue
            member.name = prefix + member.name.replace("__", "")
        elif isinstance(member, ast.Assign) and overridden & set(members(_class_of(member))):
            continue
        kept.append(member)
    node.bases = base.bases
    node.body = [member for member in [*kept, *node.body] if not isinstance(member, ast.Pass)] or [ast.Pass()]


def _class_of(member: ast.stmt) -> ast.ClassDef:
    made = ast.parse("class _: pass").body[0]
    assert isinstance(made, ast.ClassDef)
    made.body = [member]
    return made


class _Super(Quick, ast.NodeTransformer):
    """Turns ``super().name`` into ``self.name``, where name is overridden into its private name; not where what is
    overridden is of a base further up."""

    def __init__(self, overridden: set[str], further: set[str], prefix: str):
        self.overridden = overridden
        self.further = further
        self.prefix = prefix
        self.found: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super":
            if node.attr in self.further:
                return node
            node.value = ast.Name("self", ast.Load())
            if node.attr in self.overridden:
                self.found.add(node.attr)
                node.attr = self.prefix + node.attr.replace("__", "")
        return node

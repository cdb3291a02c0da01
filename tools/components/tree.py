"""Goes through a syntax tree as ``ast`` does, in about half of the time: past what has no expression in it.

Whether a name is read or set, and which operator stands between two, is asked of the node that has it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_NO_NODES = frozenset(
    (
        *("arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind"),
        *("level", "module", "name", "op", "ops", "simple", "type_comment"),
    )
)


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields in which a node of a kind has others."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = self[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
        return found


_FIELDS = _Fields({ast.Constant: ()})


def children(node: ast.AST) -> list[ast.AST]:
    """What stands in a node, in order, as ``ast.iter_child_nodes`` finds it."""
    found: list[ast.AST] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that stands in it, as ``ast.walk`` goes: what is further out comes first."""
    waiting = [node]
    for part in waiting:
        # As ``children``, without the call: most of the time of a build is spent in this loop.
        for name in _FIELDS[part.__class__]:
            value = getattr(part, name, None)
            if value.__class__ is list:
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
        yield part


class Quick(ast.NodeTransformer):
    """For a transformer to inherit from first."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Put what ``visit`` makes of it in the place of each node in ``node``; None takes it out."""
        for name in _FIELDS[node.__class__]:
            old = getattr(node, name, None)
            if isinstance(old, list):
                new: list[object] = []
                for one in old:
                    made = self.visit(one) if isinstance(one, ast.AST) else one
                    if isinstance(made, ast.AST) or not isinstance(one, ast.AST):
                        new.append(made)
                    elif made is not None:
                        new += made
                old[:] = new
            elif isinstance(old, ast.AST):
                made = self.visit(old)
                if made is None:
                    delattr(node, name)
                else:
                    setattr(node, name, made)
        return node

"""Works out what is made of constants, and leaves out what is then never run, or needed by nobody."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from copy import deepcopy

from tools.components.program import integer
from tools.components.tree import Quick, walk


def is_pure(node: ast.expr) -> bool:
    """Whether it can be left out when its value is not needed."""
    if isinstance(node, ast.Attribute):
        return is_pure(node.value)
    if isinstance(node, ast.UnaryOp):
        return is_pure(node.operand)
    if isinstance(node, ast.BoolOp):
        return all(is_pure(one) for one in node.values)
    if isinstance(node, ast.BinOp):
        return is_pure(node.left) and is_pure(node.right)
    if isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return all(is_pure(one) for one in [node.left, *node.comparators])
    return isinstance(node, ast.Constant | ast.Name)


class Fold(Quick, ast.NodeTransformer):
    """Rewrites statements; ``objects`` are the globals that are bound once."""

    def __init__(self, objects: Mapping[str, ast.stmt]):
        self.objects = objects

    def statements(self, node: ast.stmt) -> list[ast.stmt]:
        made = self.visit(node)
        return made if isinstance(made, list) else [] if made is None else [made]

    def body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for node in body:
            made += self.statements(node)
            if made and isinstance(made[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                break
        return [one for one in made if not isinstance(one, ast.Pass)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        node.body = self.body(node.body)
        read = {
            part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        read |= {
            part.target.id
            for part in walk(node)
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
        }
        node.body = _Unread(read).body(node.body) or [ast.Pass()]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        node.body = [one for member in node.body for one in self.statements(member)]
        return node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt] | None:
        node.test = _truth(self.visit(node.test))
        if isinstance(node.test, ast.Constant):
            return self.body(node.body if node.test.value else node.orelse)
        node.body, node.orelse = self.body(node.body), self.body(node.orelse)
        if not node.body and not node.orelse:
            return None if is_pure(node.test) else ast.Expr(node.test)
        if not node.body:
            node.test = ast.UnaryOp(ast.Not(), node.test)
            node.body, node.orelse = node.orelse, []
        return node

    def visit_While(self, node: ast.While) -> ast.stmt | list[ast.stmt]:
        node.test = _truth(self.visit(node.test))
        if isinstance(node.test, ast.Constant) and not node.test.value:
            return self.body(node.orelse)
        node.body = self.body(node.body) or [ast.Pass()]
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.iter = self.visit(node.iter)
        node.body = self.body(node.body) or [ast.Pass()]
        node.orelse = self.body(node.orelse)
        return node

    def visit_Try(self, node: ast.Try) -> ast.stmt | list[ast.stmt]:
        node.body = self.body(node.body)
        node.finalbody = self.body(node.finalbody)
        if not node.body:
            return self.body(node.orelse) + node.finalbody
        for handler in node.handlers:
            handler.body = self.body(handler.body) or [ast.Pass()]
        node.orelse = self.body(node.orelse)
        if not node.handlers and not node.finalbody:
            return node.body
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        node.value = self.visit(node.value)
        return None if is_pure(node.value) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        node.test = _truth(node.test)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        ends = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for one in node.values:
            values.append(one)
            known = self._known(one)
            if known is ends:
                break
            if known is not None and one is not node.values[-1]:
                values.pop()
        node.values = values
        return values[0] if len(values) == 1 else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            known = self._known(node.operand)
            return node if known is None else ast.Constant(not known)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        a, op, b = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, ast.Is | ast.IsNot):
            if isinstance(b, ast.Constant) and b.value is None and self._known(a) is not None:
                same = isinstance(a, ast.Constant) and a.value is None
                return ast.Constant(same is isinstance(op, ast.Is))
        elif all(integer(one) is not None for one in (a, *node.comparators)):
            value = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval"), {})
            return ast.Constant(value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if (
            isinstance(node.func, ast.Name)
            and node.func.id == "len"
            and isinstance(node.args[0], ast.Constant)
        ):
            value = node.args[0].value
            if isinstance(value, bytes):
                return ast.Constant(len(value))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        made = self.objects.get(node.value.id) if isinstance(node.value, ast.Name) else None
        at = integer(node.slice)
        if at is None or not isinstance(made, ast.Assign) or not isinstance(made.value, ast.Tuple):
            return node
        if not all(isinstance(one, ast.Name) for one in made.targets):
            return node
        found = made.value.elts[at]
        return deepcopy(found) if isinstance(found, ast.Constant) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        # Of a bool it makes an integer: it goes where what stands before it is the outcome of arithmetic already.
        if (
            isinstance(node.op, ast.Add)
            and isinstance(node.right, ast.Constant)
            and node.right.value == 0
            and isinstance(node.left, ast.BinOp)
            and isinstance(node.left.op, ast.Add | ast.Sub | ast.Mult | ast.LShift | ast.RShift)
        ):
            return node.left
        return node

    def _known(self, node: ast.expr) -> bool | None:
        """Whether a value is true, where that is known: functions and classes are."""
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.Name) and isinstance(
            self.objects.get(node.id), ast.FunctionDef | ast.ClassDef
        ):
            return True
        return None


def _truth(node: ast.expr) -> ast.expr:
    """What a condition comes to when what stands before its known end has no effect."""
    if isinstance(node, ast.BoolOp):
        last = node.values[-1]
        ends = isinstance(node.op, ast.Or)
        if not isinstance(last, ast.Constant):
            return node
        if bool(last.value) is ends and all(is_pure(one) for one in node.values):
            return ast.Constant(ends)
        if bool(last.value) is not ends:
            node.values.pop()
            return node.values[0] if len(node.values) == 1 else node
    return node


class _Unread(Quick, ast.NodeTransformer):
    """Leaves out what sets a local name that nobody reads."""

    def __init__(self, read: Collection[str]):
        self.read = read

    def body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [made for made in (self.visit(one) for one in body) if made is not None]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        unread = all(isinstance(one, ast.Name) and one.id not in self.read for one in node.targets)
        return None if unread and is_pure(node.value) else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.ExceptHandler) and not node.body:
            node.body = [ast.Pass()]
        return node

"""Flattens the modules of the core into one program: every global gets a unique name, constants become numbers.

Docstrings, annotations, asserts, type-checking blocks and branches for other Pythons (``ON_A_BOARD``) are left out.
What this does not understand, or what could make the built code behave otherwise than the sources, is refused, with its
place.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.components.table import NUMBERS
from tools.components.tree import Quick, children

PACKAGE = "headwater"
#: Conditions of the core whose answer is known on every board.
ON_A_BOARD = {"TYPE_CHECKING": False, "hasattr(builtins, 'BufferError')": False}

#: Built-in functions that read names which the build changes, and cannot see through.
OPAQUE = frozenset({"__import__", "dir", "eval", "exec", "globals", "locals", "vars"})
#: The same, unless their second argument is a text.
BY_NAME = frozenset({"delattr", "getattr", "hasattr", "setattr"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class BundleError(Exception):
    """The sources cannot be built; the text says why, and where."""


@dataclass
class Module:
    """One module of the core: what it defines, and where what it imports comes from."""

    name: str
    path: Path
    body: list[ast.stmt]
    #: Local name -> (module, name there) or, for a module of the core, (module, "").
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Local name -> the statement that imports it from elsewhere.
    foreign: dict[str, str] = field(default_factory=dict)
    #: How often each global name is bound, and those that it offers: assigned or defined, without an underscore.
    defined: Counter[str] = field(default_factory=Counter)
    public: list[str] = field(default_factory=list)


@dataclass
class Program:
    """All modules as one program: ``body`` has the statements in order, ``origin`` the module of each.

    ``constants`` are the folded integers, by their unique names, ``imports`` the statements that import other modules,
    by the name that they bind. ``late`` are modules of the core that functions import when they are called.
    """

    body: list[ast.stmt] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    modules: dict[str, Module] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)


def unique(module: str, name: str) -> str:
    """The global name, in the whole, of a module's name: no local name looks like it."""
    return f"{module.replace('.', '_')}__{name}"


def load(root: Path, entries: Iterable[str]) -> Program:
    """The modules ``entries`` of the core in ``root``, with all that they import, as one program."""
    program = Program()
    for entry in entries:
        _load(root, entry, program, [])
    for module in program.modules.values():
        flatten = _Flatten(root, program, module)
        for node in module.body:
            flatten.statement(node)
    return program


def find(root: Path, module: str) -> Path | None:
    """The file of a module, or None."""
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _load(root: Path, name: str, program: Program, through: list[str]) -> None:
    if name in program.modules:
        return
    if name in through:
        raise BundleError(f"{' imports '.join([*through, name])}: a circle cannot be put into one order")
    path = find(root, name)
    if path is None:
        raise BundleError(f"there is no module {name} in {root}")
    module = Module(name, path, list(on_a_board(ast.parse(path.read_text(), str(path)).body)))
    for node in module.body:
        _note(root, node, module)
    for needed in dict.fromkeys(where for where, _ in module.imported.values()):
        _load(root, needed, program, [*through, name])
    program.modules[name] = module


def on_a_board(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on a board."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ON_A_BOARD:
            yield from on_a_board(node.body if ON_A_BOARD[ast.unparse(node.test)] else node.orelse)
        elif isinstance(node, ast.Try) and all(isinstance(one, ast.ImportFrom) for one in node.body):
            # What is tried first is what a board has.
            yield from on_a_board(node.body)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ON_A_BOARD:
            continue
        else:
            yield node


def _note(root: Path, node: ast.stmt, module: Module) -> None:
    """Write down what a statement imports or defines."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            found = (inner, "") if find(root, inner) else (str(node.module), alias.name)
            module.imported[alias.asname or alias.name] = found
            if alias.asname == alias.name:
                # Imported to be offered on.
                module.public.append(alias.name)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        if any(alias.name.split(".")[0] == PACKAGE for alias in node.names):
            raise refused(module, node, "import it with `from headwater... import`")
        for alias in node.names:
            origin = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
            module.foreign[alias.asname or alias.name] = ast.unparse(ast.parse(f"{origin} {_alias(alias)}"))
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        module.defined[node.name] += 1
        module.public.append(node.name)
    else:
        module.defined.update(stored([node]))
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            module.public += [target.id for target in targets if isinstance(target, ast.Name)]
    module.public = [name for name in module.public if not name.startswith("_")]


def _alias(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def refused(module: Module, node: ast.AST, why: str) -> BundleError:
    """The error for a construct that cannot be built."""
    text = ast.unparse(node).splitlines()[0][:60]
    return BundleError(f"{module.path}:{getattr(node, 'lineno', '?')}: {text}: {why}")


def stored(body: Iterable[ast.AST]) -> list[str]:
    """The names that statements bind in their own scope, in order."""
    names: list[str] = []

    def note(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.append(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.ClassDef) and node.name:
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.extend((alias.asname or alias.name).split(".")[0] for alias in node.names)
        if not isinstance(node, _NESTED):
            for child in children(node):
                note(child)

    for node in body:
        note(node)
    return list(dict.fromkeys(names))


def arguments(node: Function | ast.Lambda) -> list[ast.arg]:
    """All parameters of a function, in order."""
    a = node.args
    return [
        *a.posonlyargs,
        *a.args,
        *([a.vararg] if a.vararg else []),
        *a.kwonlyargs,
        *([a.kwarg] if a.kwarg else []),
    ]


def number(value: int) -> ast.expr:
    """The expression of an integer."""
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def integer(node: ast.expr) -> int | None:
    """The value of an expression of integers alone, or None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    parts = [child for child in children(node) if isinstance(child, ast.expr)]
    if not isinstance(node, ast.BinOp | ast.UnaryOp) or any(integer(part) is None for part in parts):
        return None
    try:
        value = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval"), {})
    except (ArithmeticError, ValueError):
        return None
    return value if type(value) is int else None


class _Flatten(Quick, ast.NodeTransformer):
    """Rewrites one module's statements, in whose names ``scopes`` says what is local."""

    def __init__(self, root: Path, program: Program, module: Module):
        self.root = root
        self.program = program
        self.module = module
        self.scopes: list[set[str]] = []
        #: Local names of modules that a function imports.
        self.late: set[str] = set()

    def statement(self, node: ast.stmt) -> None:
        """Add a statement of the module to the program."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            plain = node.name
            made = self.visit(node)
            made.name = unique(self.module.name, plain)
            self._add(made)
            return
        made = self.visit(node)
        if made is None:
            return
        if isinstance(made, ast.Assign) and self._is_constant(node, made):
            return
        self._add(made)

    def _add(self, made: ast.stmt) -> None:
        self.program.body.append(made)
        self.program.origin.append(self.module.name)

    def _is_constant(self, node: ast.stmt, made: ast.Assign) -> bool:
        """Whether this assigns an integer to a name that nothing else assigns to: then it is that integer."""
        value = integer(made.value)
        names = [target.id for target in made.targets if isinstance(target, ast.Name)]
        if value is None or len(names) != len(made.targets):
            return False
        plain = [name.removeprefix(unique(self.module.name, "")) for name in names]
        if any(self.module.defined[name] != 1 for name in plain):
            return False
        self.program.constants.update(dict.fromkeys(names, value))
        return True

    # -- scopes --------------------------------------------------------------------------------------------------------

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self.scopes)

    def _resolve(self, module: str, name: str) -> tuple[str, str]:
        """Where a global name is really defined: (module, name), or (module, "") for a module."""
        seen = self.program.modules[module]
        while name in seen.imported:
            module, name = seen.imported[name]
            if not name:
                break
            seen = self.program.modules[module]
        return module, name

    def _global(self, module: str, name: str, node: ast.expr, ctx: ast.expr_context) -> ast.expr:
        where, name = self._resolve(module, name)
        if not name:
            raise refused(self.module, node, "a module can only be used for what it has")
        seen = self.program.modules[where]
        if name in seen.foreign:
            if name != "const":
                self.program.imports[name] = seen.foreign[name]
            return ast.Name(name, ctx)
        if name not in seen.defined:
            if where != self.module.name:
                raise refused(self.module, node, f"{where} has no {name}")
            return ast.Name(name, ctx)
        known = self.program.constants.get(unique(where, name))
        return ast.Name(unique(where, name), ctx) if known is None else number(known)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self._is_local(node.id):
            return node
        return self._global(self.module.name, node.id, node, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = node.value
        if isinstance(value, ast.Name) and not self._is_local(value.id):
            where, name = self._resolve(self.module.name, value.id)
            if not name:
                return self._global(where, node.attr, node, node.ctx)
        if node.attr == "__dict__" and not (isinstance(value, ast.Name) and value.id in self.late):
            raise refused(self.module, node, "names that the build may change")
        node.value = self.visit(value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) and not self._is_local(node.func.id) else ""
        if name == "const":
            made: ast.expr = self.visit(node.args[0])
            return made
        given = node.args[1] if len(node.args) > 1 else None
        if name in OPAQUE or (name in BY_NAME and not isinstance(given, ast.Constant)):
            raise refused(self.module, node, "names that the build may change")
        return self.generic_visit(node)  # type: ignore[return-value]  # a Call stays one

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if self.scopes and node.name in self.scopes[-1] and not self._in_class:
            raise refused(self.module, node, "a function within a function")
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.returns = None
        self._arguments(node)
        outer, self._in_class = self._in_class, False
        # A class's own names are not seen by its methods.
        hidden = [self.scopes.pop()] if outer else []
        self.scopes.append({a.arg for a in arguments(node)} | set(stored(node.body)))
        node.body = self._body(node.body)
        self.scopes.pop()
        self.scopes += hidden
        self._in_class = outer
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self._arguments(node)
        self.scopes.append({a.arg for a in arguments(node)})
        node.body = self.visit(node.body)
        self.scopes.pop()
        return node

    def _arguments(self, node: ast.FunctionDef | ast.Lambda) -> None:
        for a in arguments(node):
            a.annotation = None
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.args.kw_defaults = [one and self.visit(one) for one in node.args.kw_defaults]

    _in_class = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        if self.scopes or node.keywords or node.decorator_list:
            raise refused(self.module, node, "a class must be plain, and stand in a module")
        node.bases = [self.visit(base) for base in node.bases]
        self.scopes.append(set(stored(node.body)))
        self._in_class = True
        node.body = self._body(node.body)
        self._in_class = False
        self.scopes.pop()
        return node

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for node in on_a_board(body):
            one = self.visit(node)
            if one is not None:
                made += one if isinstance(one, list) else [one]
        return made or [ast.Pass()]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        if node.value is None:
            return None
        made = ast.Assign([self.visit(node.target)], self.visit(node.value))
        return ast.copy_location(made, node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        if isinstance(node.value, ast.Constant):
            return None
        node.value = self.visit(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        raise refused(self.module, node, "a global that changes")

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if (node.module or "").split(".")[0] != PACKAGE:
            return node
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            if find(self.root, module) is None or module not in NUMBERS:
                raise refused(self.module, node, "a module of the core, imported late")
            self.program.late.add(module)
            self.late.add(alias.asname or alias.name)
        return node


def families(program: Program) -> dict[str, int]:
    """Classes that are related have the same number."""
    family: dict[str, int] = {}
    for index, node in enumerate(program.body):
        if isinstance(node, ast.ClassDef):
            bases = {family[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in family}
            family[node.name] = min(bases, default=index)
            for name, number in family.items():
                if number in bases:
                    family[name] = family[node.name]
    return family

"""Shortens what no program outside of the core names: private attributes, and parameters of private functions.

A name costs its letters once, in flash and in RAM. MicroPython has some 150 names that every .mpy file refers to by
number, at no cost: they serve for parameters, for globals of one unit, and, where no subclass of a program is likely to
have the same, for attributes. Other attributes keep an underscore. Attributes of unrelated classes can share a name.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tools.components.program import PACKAGE, Program, arguments, families, stored
from tools.components.tree import Quick, walk

# Names that .mpy files of version 6 refer to by number (``static_qstr_list`` in py/makeqstrdata.py).
# tests/host/test_components.py asks the compiler whether they are.

#: For attributes: no class of a program has these, and no class body of the core uses them.
FOR_ATTRIBUTES = """
    ArithmeticError AssertionError AttributeError BaseException EOFError Ellipsis Exception GeneratorExit ImportError
    IndentationError IndexError KeyError KeyboardInterrupt LookupError MemoryError NameError NoneType
    NotImplementedError OSError OverflowError RuntimeError StopIteration SyntaxError SystemExit TypeError ValueError
    ZeroDivisionError
""".split()
#: For globals: a class body that uses them still sees them.
FOR_GLOBALS = """
    builtins callable divmod from_bytes getattr globals hasattr isalpha isdigit isinstance islower isspace issubclass
    isupper locals lstrip popitem rfind rindex rsplit rstrip setattr setdefault to_bytes
""".split()
_OTHERS = """
    abs all any bool bytearray bytecode bytes chr classmethod dict dir eval exec hash int iter len list little map
    micropython object ord pow print range repr round sorted staticmethod str sum super tuple type zip
""".split()
#: For parameters.
NUMBERED = [*FOR_ATTRIBUTES, *FOR_GLOBALS, *_OTHERS]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def candidates() -> Iterator[str]:
    """Short names, the cheapest first."""
    yield from NUMBERED
    yield from _letters("")


def _letters(before: str) -> Iterator[str]:
    for count in itertools.count(1):
        for letters in itertools.product(_LETTERS, repeat=count):
            name = before + "".join(letters)
            if not keyword.iskeyword(name):
                yield name


def _attribute_names() -> Iterator[str]:
    """Short names of attributes, in an order without pattern.

    Names in alphabetical order have consecutive hashes in MicroPython: they fill one part of an object's dictionary,
    where each search then takes long.
    """
    yield from FOR_ATTRIBUTES
    names = ["_" + "".join(letters) for letters in itertools.product(_LETTERS, repeat=2)]
    yield from random.Random(0).sample(names, len(names))


def short_attributes(program: Program, keep: Collection[str] = ()) -> dict[str, str]:
    """Shorten the private attributes of a program, except those in ``keep``: the new name of each old one."""
    done = _attributes(program, keep)
    renamer = _Attributes(done)
    for node in program.body:
        renamer.visit(node)
    return done


def used_names(body: Iterable[ast.stmt]) -> set[str]:
    """All names that stand in statements, locals and parameters included."""
    found: set[str] = set()
    for node in body:
        for part in walk(node):
            if isinstance(part, ast.Name):
                found.add(part.id)
            elif isinstance(part, ast.FunctionDef | ast.Lambda):
                found |= {a.arg for a in arguments(part)}
                found |= set() if isinstance(part, ast.Lambda) else set(stored(part.body))
    return found


def bound(node: ast.stmt) -> list[str]:
    """The global names that a statement binds."""
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else stored([node])


def rename_globals(node: ast.stmt, made: Mapping[str, str]) -> None:
    """Give the globals that stand in a statement their new names."""
    for part in walk(node):
        if isinstance(part, ast.Name):
            part.id = made.get(part.id, part.id)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.name = made.get(node.name, node.name)


# -- attributes --------------------------------------------------------------------------------------------------------


def _attributes(program: Program, keep: Collection[str]) -> dict[str, str]:
    """Choose a short name for each private attribute."""
    family = families(program)
    homes: dict[str, set[int]] = {}
    uses: Counter[str] = Counter()
    strings: set[str] = set()
    bodies: set[str] = set()
    for node, module in zip(program.body, program.origin, strict=True):
        in_core = module.split(".")[0] == PACKAGE
        for part in walk(node):
            if isinstance(part, ast.Attribute):
                uses[part.attr] += in_core
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                strings.add(part.value)
        if isinstance(node, ast.ClassDef):
            for name in _own_attributes(node):
                homes.setdefault(name, set()).add(family[node.name])
            bodies |= _body_names(node)
    everywhere = set(family.values())
    for name in uses:
        # The class cannot be seen: it may be any.
        homes.setdefault(name, everywhere)
    private = [
        name
        for name in homes
        if name.startswith("_") and not name.startswith("__") and name not in strings and name not in keep
    ]
    taken: dict[int, set[str]] = {number: {*keep, *bodies} for number in everywhere}
    for name, where in homes.items():
        if name not in private:
            for number in where:
                taken[number].add(name)
    done = {}
    # Only uses in the core count, so that a new module of the board's port changes no file of the core.
    for name in sorted(private, key=lambda name: (-uses[name], name)):
        where = homes[name]
        short = next(one for one in _attribute_names() if not any(one in taken[number] for number in where))
        for number in where:
            taken[number].add(short)
        done[name] = short
    return done


def _body_names(node: ast.ClassDef) -> set[str]:
    """The names that a class's body uses when it runs: an attribute with such a name would hide them."""
    parts: list[ast.AST] = []
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            parts += [*member.decorator_list, *member.args.defaults]
        else:
            parts.append(member)
    return {one.id for part in parts for one in walk(part) if isinstance(one, ast.Name)}


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """What objects of a class have: its members, and what its methods store in their first parameter."""
    found: set[str] = set()
    for member in node.body:
        found |= set(bound(member))
        if isinstance(member, ast.FunctionDef) and member.args.args:
            me = member.args.args[0].arg
            for part in walk(member):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.ctx, ast.Store)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == me
                ):
                    found.add(part.attr)
    return found


class _Attributes(Quick, ast.NodeTransformer):
    def __init__(self, made: Mapping[str, str]):
        self.made = made

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        node.attr = self.made.get(node.attr, node.attr)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        local = {name for member in node.body for name in bound(member)}
        self.generic_visit(node)
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                member.name = self.made.get(member.name, member.name)
                seen: list[ast.AST] = list(member.decorator_list)
            else:
                seen = [member]
            for one in seen:
                for part in walk(one):
                    if isinstance(part, ast.Name) and part.id in local:
                        part.id = self.made.get(part.id, part.id)
        return node


# -- parameters --------------------------------------------------------------------------------------------------------


def keywords_of(body: Iterable[ast.stmt]) -> set[str]:
    """The names by which calls in statements pass arguments."""
    return {part.arg for node in body for part in walk(node) if isinstance(part, ast.keyword) and part.arg}


def short_parameters(body: Iterable[ast.stmt], private: Collection[str], keywords: Collection[str]) -> None:
    """Shorten the parameters of private functions and methods, except those that a call names.

    ``private`` are the private globals; they have their new names already.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name in private:
            _rename_parameters(node, keywords)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    hidden = member.name.startswith("_") and not member.name.startswith("__")
                    kept = [] if hidden else [a.arg for a in arguments(member)][1:]
                    _rename_parameters(member, [*keywords, *kept])


def _rename_parameters(node: ast.FunctionDef, kept: Collection[str]) -> None:
    inner = [part for part in walk(node) if isinstance(part, ast.Lambda)]
    if inner or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        return
    used = {part.id for part in walk(node) if isinstance(part, ast.Name)} | set(stored(node.body))
    own = [a.arg for a in arguments(node)]
    stay = [name for name in own if name in kept]
    taken = (used - set(own)) | set(stay) | set(dir(builtins)) & used
    free = (name for name in itertools.chain(["self"], candidates()) if name not in taken)
    made = dict(zip([name for name in own if name not in stay], free, strict=False))
    for part in walk(node):
        if isinstance(part, ast.Name):
            part.id = made.get(part.id, part.id)
        elif isinstance(part, ast.arg):
            part.arg = made.get(part.arg, part.arg)

"""Shorter names for what nobody outside needs to name: globals, private attributes, parameters of private functions.

A name costs its letters once, in flash and in RAM. MicroPython has some 150 names that every .mpy file can refer to by
number; they cost nothing, and serve here again, in places where they have no meaning of their own: an attribute called
``sorted`` is none of the built-in function's business. Two attributes of classes that have nothing to do with each
other can share a name, and so can an attribute, a global and a parameter.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from tools.components.program import Hidden, Program, arguments, families, stored
from tools.components.tree import Quick, walk

#: Names that .mpy files of version 6 refer to by number (``static_qstr_list`` in py/makeqstrdata.py), but those that an
#: attribute of a subclass is likely to have. tests/host/test_bundle.py asks the compiler whether they are.
NUMBERED = """
    ArithmeticError AssertionError AttributeError BaseException EOFError Ellipsis Exception GeneratorExit ImportError
    IndentationError IndexError KeyError KeyboardInterrupt LookupError MemoryError NameError NoneType
    NotImplementedError OSError OverflowError RuntimeError StopIteration SyntaxError SystemExit TypeError ValueError
    ZeroDivisionError abs all any bool builtins bytearray bytecode bytes callable chr classmethod dict dir divmod eval
    exec from_bytes getattr globals hasattr hash int isalpha isdigit isinstance islower isspace issubclass isupper iter
    len list little locals lstrip map micropython object ord popitem pow print range repr rfind rindex round rsplit
    rstrip setattr setdefault sorted staticmethod str sum super to_bytes tuple type zip
""".split()  # noqa: SIM905
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _candidates() -> Iterator[str]:
    yield from NUMBERED
    for count in itertools.count(1):
        for letters in itertools.product(_LETTERS, repeat=count):
            if not keyword.iskeyword("".join(letters)):
                yield "".join(letters)


def shorten(
    program: Program,
    public: Mapping[str, str],
    hidden: Hidden,
    attributes: bool = True,
    keep: Collection[str] = (),
    named: Collection[str] | None = None,
) -> dict[str, str]:
    """Rename: what became of each name. ``public`` are the globals that keep a name of their own, and that name.

    ``hidden`` says of an attribute that only the core names it, ``named`` are the parameters that the application
    names; None stands for all. Without ``attributes``, attributes and parameters keep theirs; attributes in ``keep``
    always do, and nothing else is called so.
    """
    done: dict[str, str] = {}
    if attributes:
        done = _attributes(program, hidden, keep)
        renamer = _Attributes(done)
        for node in program.body:
            renamer.visit(node)
    made = {**_globals(program, public, attributes), **public}
    for node in program.body:
        _rename_globals(node, made)
    if attributes:
        _parameters(program, set(public.values()), named)
    return {**done, **made}


# -- globals -----------------------------------------------------------------------------------------------------------


def _globals(program: Program, public: Mapping[str, str], short: bool) -> dict[str, str]:
    """A short name for each global of the program's own, the most used first."""
    own = [name for node in program.body for name in _bound(node)]
    uses = Counter(part.id for node in program.body for part in walk(node) if isinstance(part, ast.Name))
    taken = set(uses) - set(own)
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.FunctionDef | ast.Lambda):
                taken |= {a.arg for a in arguments(part)}
                taken |= set() if isinstance(part, ast.Lambda) else set(stored(part.body))
    taken |= set(public.values()) | set(program.imports)
    wanted = [name for name in sorted(set(own), key=lambda name: (-uses[name], name)) if name not in public]
    if not short:
        return {name: name for name in wanted}
    members: set[str] = set()
    in_classes: set[str] = set()
    for node in program.body:
        if isinstance(node, ast.ClassDef):
            members |= set(stored(node.body))
            in_classes |= _named_in_class(node)
    made = {}
    for name in wanted:
        # In a class's own scope its members come first.
        hidden = taken | members if name in in_classes else taken
        made[name] = next(one for one in _candidates() if one not in hidden)
        taken.add(made[name])
    return made


def _named_in_class(node: ast.ClassDef) -> set[str]:
    """The names that are looked up in a class's own scope: in its statements, and in its methods' heads."""
    found: set[str] = set()
    for member in node.body:
        parts: list[ast.AST] = [member]
        if isinstance(member, ast.FunctionDef):
            defaults = [*member.args.defaults, *(one for one in member.args.kw_defaults if one)]
            parts = [*member.decorator_list, *defaults]
        for part in parts:
            found |= {one.id for one in walk(part) if isinstance(one, ast.Name)}
    return found


def _bound(node: ast.stmt) -> list[str]:
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else stored([node])


def _rename_globals(node: ast.stmt, made: Mapping[str, str]) -> None:
    for part in walk(node):
        if isinstance(part, ast.Name):
            part.id = made.get(part.id, part.id)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.name = made.get(node.name, node.name)


# -- attributes --------------------------------------------------------------------------------------------------------


def _attributes(program: Program, hidden: Hidden, keep: Collection[str]) -> dict[str, str]:
    """A short name for each attribute that only the core names."""
    family = families(program)
    homes: dict[str, set[int]] = {}
    uses: Counter[str] = Counter()
    strings: set[str] = set()
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.Attribute):
                uses[part.attr] += 1
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                strings.add(part.value)
        if isinstance(node, ast.ClassDef):
            for name in _own_attributes(node):
                homes.setdefault(name, set()).add(family[node.name])
    everywhere = set(family.values())
    for name in uses:
        # Whose it is cannot be seen: it may be anybody's.
        homes.setdefault(name, everywhere)
    private = [name for name in homes if hidden(name) and name not in strings]
    taken: dict[int, set[str]] = {number: set(keep) for number in everywhere}
    for node in program.body:
        if isinstance(node, ast.ClassDef):
            # A built-in function that a class uses as it is made must not be hidden by a member.
            taken[family[node.name]] |= _named_in_class(node)
    for name, where in homes.items():
        if name not in private:
            for number in where:
                taken[number].add(name)
    done = {}
    for name in sorted(private, key=lambda name: (-uses[name], name)):
        where = homes[name]
        short = next(one for one in _candidates() if not any(one in taken[number] for number in where))
        for number in where:
            taken[number].add(short)
        done[name] = short
    return done


def _own_attributes(node: ast.ClassDef) -> set[str]:
    """What objects of a class have: its members, and what its methods store in their first parameter."""
    found: set[str] = set()
    for member in node.body:
        found |= set(_bound(member))
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
        local = {name for member in node.body for name in _bound(member)}
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


def _parameters(program: Program, public: Collection[str], asked: Collection[str] | None) -> None:
    """Short names for the parameters of what only the program itself calls, and always by position."""
    keywords = {
        part.arg for node in program.body for part in walk(node) if isinstance(part, ast.keyword) and part.arg
    }
    kept_globals = set(public)
    for node in program.body:
        if isinstance(node, ast.FunctionDef):
            kept = [a.arg for a in arguments(node)] if node.name in kept_globals else []
            _rename_parameters(node, keywords, _named(kept, asked))
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    whole = member.name not in NAMED_BY_US and not member.name.startswith("_")
                    named = (
                        [a.arg for a in arguments(member)][1:] if whole or member.name == "__init__" else []
                    )
                    _rename_parameters(member, keywords, _named(named, asked))


def _named(parameters: list[str], asked: Collection[str] | None) -> list[str]:
    """Those of a public function's parameters that the application may name."""
    return [name for name in parameters if asked is None or name in asked]


#: Private methods have such a name by now, a public one has not.
NAMED_BY_US = frozenset(NUMBERED) | set(_LETTERS)


def _rename_parameters(node: ast.FunctionDef, keywords: Collection[str], kept: Collection[str]) -> None:
    inner = [part for part in walk(node) if isinstance(part, ast.Lambda)]
    if inner or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        return
    used = {part.id for part in walk(node) if isinstance(part, ast.Name)} | set(stored(node.body))
    own = [a.arg for a in arguments(node)]
    stay = [name for name in own if name in kept or name in keywords]
    taken = (used - set(own)) | set(stay) | set(dir(builtins)) & used
    free = (name for name in itertools.chain(["self"], _candidates()) if name not in taken)
    made = dict(zip([name for name in own if name not in stay], free, strict=False))
    for part in walk(node):
        if isinstance(part, ast.Name):
            part.id = made.get(part.id, part.id)
        elif isinstance(part, ast.arg):
            part.arg = made.get(part.arg, part.arg)

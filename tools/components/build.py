"""Puts the pieces together: what to bundle, in which steps, and the files that it makes.

A bundle is a package ``headwater`` whose ``__init__`` holds all code. A program on a board goes on importing what the
documentation says: ``headwater.mqtt.client`` and its like are entered in ``sys.modules`` as names of the bundle. A
module that offers numbers, such as ``headwater.errors``, becomes a small file of its own, because within the bundle its
numbers are part of the code, and only a program that names them should pay for them; and so does one within a package.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import mpy
from tools.components.classes import merge_classes
from tools.components.computed import Computed, computed
from tools.components.names import shorten
from tools.components.program import PACKAGE, BundleError, Program, find, load, on_a_board, stored, unique
from tools.components.reach import attribute_names, contracts, drop_unused, handed_in, hidden_names, used_in
from tools.components.settled import Outside, settle
from tools.components.tree import walk

BOARD_PACKAGE = "headwater_board"
_ANY = 1000


@dataclass(frozen=True)
class Options:
    """``lines``: tracebacks have line numbers, those of the source that is written beside. ``names``: private
    attributes, parameters and functions keep theirs; ``keep``: these attributes do. ``only_used``: drop the public
    methods that the programs given do not name. ``texts``: exceptions keep theirs."""

    lines: bool = False
    names: bool = False
    keep: frozenset[str] = frozenset()
    only_used: bool = False
    texts: bool = True


@dataclass
class Asked:
    """What modules and programs ask for: ``faces``, by module of the core, its names, or None for all that it offers;
    the modules of the board's port; the ``attributes`` that programs and those name; the ``keywords`` of their calls
    (None: any), of which none has more than so many ``positional`` arguments; what they say of attributes without
    writing their names; and the ``modules`` that were named themselves."""

    faces: dict[str, set[str] | None] = field(default_factory=dict)
    ports: dict[str, Path] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    keywords: set[str] | None = field(default_factory=set)
    positional: int = 0
    computed: Computed = field(default_factory=Computed)
    modules: list[str] = field(default_factory=list)


@dataclass
class Bundle:
    """``sources``: the files below ``headwater/`` on the board, without suffix, and their text; ``ports``: the modules
    of the board's port that go with it. ``dropped``: what was left out; ``names``: what became of the others;
    ``merged``: classes that are part of another now; ``settled``: attributes and parameters that are a value now."""

    sources: dict[str, str] = field(default_factory=dict)
    ports: dict[str, Path] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)


# -- what is asked for -------------------------------------------------------------------------------------------------


def ask(what: Iterable[str], root: Path = mpy.SDK) -> Asked:
    """What modules (``headwater.mqtt.client``, ``headwater_board.tcp``) and programs (``main.py``) need of the core."""
    asked = Asked()
    for one in what:
        package = one.split(".")[0]
        if one.endswith(".py"):
            _ask_program(asked, root, one, Path(one))
        elif package == BOARD_PACKAGE:
            _ask_port(asked, root, one)
        elif package == PACKAGE and find(root, one):
            asked.faces[one] = None
            asked.modules.append(one)
        else:
            raise BundleError(f"{one} is neither a module of {PACKAGE} or {BOARD_PACKAGE} nor a Python file")
    asked.faces.pop(f"{PACKAGE}.types", None)
    if not asked.faces:
        raise BundleError(f"there is nothing of {PACKAGE} in what was given")
    return asked


def _ask_port(asked: Asked, root: Path, module: str) -> None:
    path = find(mpy.BOARD_PORT, module)
    if path is None:
        raise BundleError(f"there is no module {module} in {mpy.BOARD_PORT}")
    if module not in asked.ports:
        asked.ports[module] = path
        _ask_program(asked, root, module, path)


def _ask_program(asked: Asked, root: Path, name: str, path: Path) -> None:
    try:
        body = list(on_a_board(ast.parse(path.read_text(encoding="utf-8"), name).body))
    except (OSError, SyntaxError, ValueError) as error:
        raise BundleError(f"{name}: {error}") from error
    asked.attributes |= used_in(body)[1]
    more = computed(name, body)
    asked.computed.patterns |= more.patterns
    asked.computed.hidden += more.hidden
    for statement in body:
        for part in walk(statement):
            if isinstance(part, ast.keyword) and asked.keywords is not None:
                asked.keywords = asked.keywords | {part.arg} if part.arg else None
            elif isinstance(part, ast.Call):
                starred = any(isinstance(one, ast.Starred) for one in part.args)
                asked.positional = max(asked.positional, _ANY if starred else len(part.args))
            if isinstance(part, ast.ClassDef):
                # Such a class may inherit from one of the core's, and mean what that has.
                asked.attributes |= set(stored(part.body))
    for node in (part for statement in body for part in walk(statement)):
        if isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            pairs = [(str(node.module), alias.name) for alias in node.names]
        else:
            continue
        for module, inner in pairs:
            if module.startswith(f"{PACKAGE}.") and not inner:
                raise BundleError(f"{name}:{node.lineno}: a bundle has no {module}: import it with `from`")
            if module.split(".")[0] == BOARD_PACKAGE:
                whole = f"{module}.{inner}"
                _ask_port(asked, root, whole if find(mpy.BOARD_PORT, whole) else module)
            elif module.split(".")[0] == PACKAGE:
                _ask_core(asked, root, module, inner)


def _ask_core(asked: Asked, root: Path, module: str, name: str) -> None:
    if not name or find(root, f"{module}.{name}"):
        asked.faces[f"{module}.{name}" if name else module] = None
        return
    names = asked.faces.setdefault(module, set())
    if names is not None:
        names.add(name)


# -- the steps ---------------------------------------------------------------------------------------------------------


def build(what: Sequence[str], options: Options | None = None, root: Path = mpy.SDK) -> Bundle:
    """Bundle what modules and programs need; BundleError says what cannot be."""
    options = options or Options()
    asked = ask(what, root)
    if options.only_used and asked.modules:
        raise BundleError(f"nobody knows what is used of {asked.modules[0]}: name programs instead")
    if options.only_used and asked.computed.hidden:
        raise BundleError(f"{asked.computed.hidden[0]}; or bundle without --only-used")
    program = load(root, asked.faces)
    if asked.computed.patterns:
        meant = re.compile("|".join(sorted(asked.computed.patterns)))
        asked.attributes |= {one for one in attribute_names(program) if meant.fullmatch(one)}
    offered = {module: _offered(program, module, names) for module, names in asked.faces.items()}
    places = {unique(*place): place for names in offered.values() for place in names.values()}
    objects = {name: place for name, place in places.items() if name not in program.constants}
    bundle = Bundle(ports=asked.ports)
    used = frozenset(asked.attributes) if options.only_used else None
    bundle.dropped = drop_unused(program, objects, used)
    bundle.merged = merge_classes(program, objects)
    kept = options.keep | asked.attributes
    named = None if used is None or asked.keywords is None else used | asked.keywords
    known = contracts(root)
    while True:
        # What was settled may mean that something is no longer handed in; and that settles more.
        taken = handed_in(program, known, objects, kept)
        hidden = hidden_names(program, [known[name] for name in taken], kept, options.only_used)
        settled = settle(program, Outside(hidden, objects, named, asked.positional))
        if not settled:
            break
        bundle.settled += settled
        bundle.dropped += drop_unused(program, objects, used)
    if not options.texts:
        _drop_texts(program)
    # An object of the face is called what it always was, where that is one thing only.
    plain = Counter(name for _, name in objects.values())
    public = {one: name if plain[name] == 1 else one for one, (_, name) in objects.items()}
    aliases = _aliases(program, offered, public, bundle)
    where = [_origin(program, node) for node in program.body]
    bundle.names = shorten(program, public, hidden, not options.names, kept, named)
    head = sorted(program.imports.values())
    body = [
        origin + ast.unparse(ast.fix_missing_locations(node))
        for origin, node in zip(where, program.body, strict=True)
    ]
    bundle.sources["__init__"] = "\n".join([*head, *body, *aliases]) + "\n"
    return bundle


def _offered(program: Program, module: str, names: set[str] | None) -> dict[str, tuple[str, str]]:
    """What a module of the face offers: name -> the module that defines it, and its name there."""
    found = {}
    for name in sorted(program.modules[module].public if names is None else names):
        where, inner = module, name
        while inner in program.modules[where].imported:
            where, inner = program.modules[where].imported[inner]
        if inner not in program.modules[where].defined:
            raise BundleError(f"{module} has no {name}")
        found[name] = (where, inner)
    return found


def _aliases(
    program: Program, offered: dict[str, dict[str, tuple[str, str]]], public: dict[str, str], bundle: Bundle
) -> list[str]:
    """The statements that make modules names of the bundle; the others become files."""
    alias = []
    for module, names in sorted(offered.items()):
        package = program.modules[module].path.stem == "__init__"
        if module == PACKAGE or (package and not names):
            continue
        made = {name: unique(*place) for name, place in names.items()}
        if (
            module.count(".") == 1
            and not package
            and all(public.get(one) == name for name, one in made.items())
        ):
            alias.append(f"modules[{module!r}]")
            continue
        lines = []
        for name, one in made.items():
            if one in program.constants:
                lines.append(f"{name} = {program.constants[one]}")
            else:
                lines.append(f"from {PACKAGE} import {public[one]} as {name}")
        path = module.removeprefix(f"{PACKAGE}.").replace(".", "/")
        bundle.sources[f"{path}/__init__" if package else path] = "\n".join(lines) + "\n"
    if not alias:
        return []
    return ["from sys import modules", f"{' = '.join(alias)} = modules[{PACKAGE!r}]"]


def _origin(program: Program, node: ast.stmt) -> str:
    """A comment that says where a function or class comes from, for who reads the source that was made."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return ""
    return f"# {program.where[node.name]}\n"


def _drop_texts(program: Program) -> None:
    for node in program.body:
        for part in walk(node):
            if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call):
                # A number, or a name that was worked out, may be what the exception is made of.
                texts = [
                    one
                    for one in part.exc.args
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
                part.exc.args = [one for one in part.exc.args if one not in texts]


# -- the files ---------------------------------------------------------------------------------------------------------


def write(bundle: Bundle, folder: Path, options: Options | None = None) -> dict[str, Path]:
    """Compile a bundle into ``folder``, which must be new or have been made so: its files on the board, below ``/lib``.

    In ``folder/source`` is what was compiled, and in ``names.json`` what each name was before; ``package.json`` is for
    ``mpremote mip install``.
    """
    options = options or Options()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "names.json").exists():
            raise BundleError(f"{folder} is not empty, and has no bundle in it")
        shutil.rmtree(folder)
    made = {}
    for name, text in bundle.sources.items():
        source = folder / "source" / PACKAGE / f"{name}.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text, encoding="utf-8")
        made[f"{PACKAGE}/{name}.mpy"] = _compiled(source, folder / PACKAGE / f"{name}.mpy", PACKAGE, options)
    for module, source in bundle.ports.items():
        name = source.relative_to(mpy.BOARD_PORT).with_suffix(".mpy").as_posix()
        made[name] = _compiled(source, folder / name, module, options)
    (folder / "names.json").write_text(json.dumps(bundle.names, indent=1, sort_keys=True) + "\n")
    urls = [[name, name] for name in sorted(made)]
    (folder / "package.json").write_text(json.dumps({"urls": urls, "deps": []}, indent=1) + "\n")
    return made


def _compiled(source: Path, target: Path, name: str, options: Options) -> Path:
    mpy.compile_file(source, target, name, "-O2" if options.lines else "-O3")
    return target

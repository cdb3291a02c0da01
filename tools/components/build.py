"""Builds the files of the components: units of the core, each the code of one or more modules.

Programs import what the documentation says: the modules of a unit are entered in ``sys.modules`` as its names.
All public names stay; private ones are shortened unless asked otherwise. ``names.json`` has what ``traceback`` needs.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import mpy, sizes
from tools.components.names import (
    FOR_GLOBALS,
    bound,
    keywords_of,
    rename_globals,
    short_attributes,
    short_parameters,
    used_names,
)
from tools.components.program import PACKAGE, BundleError, Program, arguments, load, stored, unique
from tools.components.romfs import image
from tools.components.table import ALL, COMPONENTS, NUMBERS, UNITS
from tools.components.tree import walk

BOARD_PACKAGE = "headwater_board"
#: The file that names the output folder as one, and has what ``traceback`` needs.
NAMES = "names.json"

#: (line of the built file, source file, line there, function)
Line = tuple[int, str, int, str]


@dataclass
class Built:
    """The units, by module name: their ``sources``, the units that each ``needs``, and the ``lines`` of each.

    ``names``: what each private name was before, by its short name.
    """

    sources: dict[str, str] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    unit_of: dict[str, str] = field(default_factory=dict)

    def file(self, unit: str, suffix: str) -> str:
        """The file of a unit below ``/lib``."""
        path = unit.replace(".", "/")
        return f"{path}/__init__{suffix}" if unit in self.packages else path + suffix


def build(
    root: Path = mpy.SDK,
    short: bool = True,
    keep: Collection[str] = (),
    table: Mapping[str, Sequence[str]] = UNITS,
) -> Built:
    """Build the units of all modules below ``root``; BundleError says what cannot be built.

    ``short``: shorten private names, but not the attributes in ``keep``. ``table`` says which modules a unit holds.
    """
    graph = sizes.imports(root)
    modules = sizes.in_import_order(graph, sorted(graph))
    program = load(root, modules)
    built = Built()
    for unit, names in table.items():
        built.unit_of.update(dict.fromkeys(_held(graph, unit, names), unit))
    for name in modules:
        built.unit_of.setdefault(name, name)
    built.packages = {name for name in modules if program.modules[name].path.stem == "__init__"}
    shortened = short_attributes(program, keep) if short else {}
    keywords = keywords_of(program.body)
    users = _users(program, built)
    for unit in dict.fromkeys(built.unit_of.values()):
        _Unit(program, built, unit).write(keywords, users, short)
    for name in NUMBERS & program.modules.keys():
        _numbers(program, built, name)
    for old, new in shortened.items():
        built.names.setdefault(new, []).append(old)
    _check_order(built)
    return built


def _held(graph: Mapping[str, set[str]], unit: str, names: Sequence[str]) -> list[str]:
    """The modules of a unit: ``names``, and what they import of the unit's package."""
    found = sizes.in_import_order(graph, (name for name in names if name in graph))
    return [name for name in found if name in names or name.rpartition(".")[0] == unit]


def _users(program: Program, built: Built) -> dict[str, set[str]]:
    """Return the units that use each name."""
    users: dict[str, set[str]] = {}
    for origin, node in zip(program.origin, program.body, strict=True):
        for part in walk(node):
            if isinstance(part, ast.Name):
                users.setdefault(part.id, set()).add(built.unit_of[origin])
    return users


class _Unit:
    """One unit, in the making."""

    def __init__(self, program: Program, built: Built, unit: str):
        self.program = program
        self.built = built
        self.unit = unit
        self.modules = [name for name, of in built.unit_of.items() if of == unit]
        #: Unique name -> (module, plain name), of all globals.
        self.places = {
            unique(module.name, name): (module.name, name)
            for module in program.modules.values()
            for name in module.defined
        }
        pairs = zip(program.origin, program.body, strict=True)
        self.body = [(origin, node) for origin, node in pairs if origin in self.modules]

    def write(self, keywords: Collection[str], users: Mapping[str, set[str]], short: bool) -> None:
        nodes = [node for _, node in self.body]
        own = {name for node in nodes for name in bound(node)}
        private = {name for name in own if self._is_private(name)}
        used = {part.id for node in nodes for part in walk(node) if isinstance(part, ast.Name)}
        offered = {unique(*place) for _, place in self._offered_on()} - self.program.constants.keys()
        foreign = sorted(name for name in (used | offered) - own if name in self.places)
        elsewhere = {name for name in private if users.get(name, set()) - {self.unit}}
        made = self._public(own - private, foreign)
        hidden = used_names(nodes) | set(made.values()) | set(self.program.imports)
        count = Counter(self.places[name][1] for name in private)
        for name in private:
            plain = self.places[name][1]
            free = count[plain] == 1 and plain not in hidden
            if name in elsewhere and not free:
                raise BundleError(
                    f"{self.unit}: another unit uses {'.'.join(self.places[name])}: make it public"
                )
            made[name] = plain if free else name
        if short:
            # What only this unit uses gets a name that every board has.
            spare = (name for name in FOR_GLOBALS if name not in hidden)
            made.update(zip(sorted(private - elsewhere), spare, strict=False))
        self._check_locals(nodes, made)
        head = self._head(foreign, made, used)
        lines = list(head)
        where: list[Line] = []
        for origin, node in self.body:
            before = _places(node)
            rename_globals(node, made)
            if short:
                short_parameters([node], {made[name] for name in private}, keywords)
            text = _unparsed(node)
            where += self._lines(origin, text, before, len(lines))
            lines += text.split("\n")
        lines += self._tail(made)
        self.built.sources[self.unit] = "\n".join(lines) + "\n"
        self.built.lines[self.unit] = where

    def _is_private(self, name: str) -> bool:
        plain = self.places[name][1]
        return plain.startswith("_") and not plain.startswith("__")

    def _offered_on(self) -> list[tuple[str, tuple[str, str]]]:
        """The names that modules of this unit import to offer them on, and where each is defined."""
        found = []
        for module in self.modules:
            for name in self.program.modules[module].public:
                where, inner = module, name
                while inner in self.program.modules[where].imported:
                    where, inner = self.program.modules[where].imported[inner]
                if where != module and inner:
                    found.append((name, (where, inner)))
        return found

    def _public(self, own: Collection[str], foreign: Collection[str]) -> dict[str, str]:
        """The names that public globals have in this unit: their own, if there is only one such."""
        made: dict[str, str] = {}
        taken: dict[str, str] = {}
        for name in [*sorted(own), *foreign]:
            plain = self.places[name][1]
            if plain in taken and name in own:
                raise BundleError(f"{self.unit}: {self.places[name]} and {taken[plain]} have one name")
            made[name] = name if plain in taken else plain
            taken[made[name]] = name
        return made

    def _check_locals(self, nodes: Sequence[ast.stmt], made: Mapping[str, str]) -> None:
        """Refuse a local variable with the name that a global gets which is used beside it."""
        for node in nodes:
            for part in walk(node):
                if not isinstance(part, ast.FunctionDef):
                    continue
                local = {a.arg for a in arguments(part)} | set(stored(part.body))
                for one in walk(part):
                    if isinstance(one, ast.Name) and one.id in made and made[one.id] in local:
                        place = ".".join(self.places[one.id])
                        raise BundleError(f"{self.unit}: {part.name} has a local called as {place} is")

    def _head(self, foreign: Collection[str], made: Mapping[str, str], used: set[str]) -> list[str]:
        """The imports."""
        lines = sorted({text for name, text in self.program.imports.items() if name in used})
        by_unit: dict[str, list[str]] = {}
        for name in foreign:
            module, plain = self.places[name]
            unit = self.built.unit_of[module]
            by_unit.setdefault(unit, []).append(plain if made[name] == plain else f"{plain} as {made[name]}")
        self.built.needs[self.unit] = set(by_unit)
        return [
            *lines,
            *(f"from {unit} import {', '.join(names)}" for unit, names in sorted(by_unit.items())),
        ]

    def _lines(self, origin: str, text: str, before: list[tuple[int, str]], offset: int) -> list[Line]:
        """Where the lines of a statement come from."""
        path = self.program.modules[origin].path
        source = path.relative_to(next(one for one in path.parents if one.name == PACKAGE).parent).as_posix()
        after = [part.lineno for part in ast.walk(ast.parse(text)) if isinstance(part, ast.stmt)]
        if len(after) != len(before):
            raise BundleError(f"{source}: line numbers of {before[0][1]} do not match")
        return sorted(
            (offset + line, source, old, function)
            for line, (old, function) in zip(after, before, strict=True)
        )

    def _tail(self, made: Mapping[str, str]) -> list[str]:
        """Public numbers, and the other names of the unit."""
        lines: dict[str, int] = {}
        offered = [
            (name, (module, name)) for module in self.modules for name in self.program.modules[module].public
        ]
        for name, place in [*offered, *self._offered_on()]:
            value = self.program.constants.get(unique(*place))
            if value is None or place[0] in NUMBERS:
                continue
            if lines.setdefault(name, value) != value or name in made.values():
                raise BundleError(f"{self.unit}: {'.'.join(place)} has the name of another")
        found = [f"{name} = {value}" for name, value in sorted(lines.items())]
        others = [name for name in self.modules if name != self.unit and name not in NUMBERS]
        others = [name for name in others if self.program.modules[name].path.stem != "__init__"]
        if others:
            # For ``from package import module`` and for ``import package.module``.
            plain = [name.rpartition(".")[2] for name in others]
            if clash := set(plain) & {*made.values(), *lines}:
                raise BundleError(f"{self.unit}: {sorted(clash)[0]} is a module and something else")
            names = " = ".join([*plain, *(f"modules[{name!r}]" for name in others)])
            found += ["from sys import modules", f"{names} = modules[{self.unit!r}]", "del modules"]
        return found


def _unparsed(node: ast.stmt) -> str:
    """The text of a statement, with ``a, b = c, d`` as it stands here.

    ``ast.unparse`` puts the values into parentheses. MicroPython then allocates a tuple, which it does not otherwise.
    """
    pairs = [
        one
        for one in walk(node)
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Tuple)
        and isinstance(one.value, ast.Tuple)
        and len(one.value.elts) > 1
    ]
    values = [pair.value for pair in pairs]
    for number, pair in enumerate(pairs):
        pair.value = ast.Name(f"__pair_{number}__", ast.Load())
    text = ast.unparse(ast.fix_missing_locations(node))
    for number, (pair, value) in enumerate(zip(pairs, values, strict=True)):
        assert isinstance(value, ast.Tuple)
        pair.value = value
        text = text.replace(f"__pair_{number}__", ", ".join(map(ast.unparse, value.elts)))
    return text


def _places(node: ast.stmt) -> list[tuple[int, str]]:
    """The line of each statement in ``node``, as ``ast.walk`` goes, and the function that it stands in."""
    names: dict[int, str] = {}

    def note(part: ast.AST, name: str) -> None:
        names[id(part)] = name
        for child in ast.iter_child_nodes(part):
            inner = isinstance(child, ast.FunctionDef | ast.ClassDef)
            note(child, f"{name}.{child.name}".strip(".") if inner else name)  # type: ignore[attr-defined]

    whole = (
        getattr(node, "name", "").rpartition("__")[2] if not getattr(node, "name", "").endswith("__") else ""
    )
    note(node, whole)
    found = [part for part in ast.walk(node) if isinstance(part, ast.stmt)]
    return [(getattr(part, "lineno", 0), names[id(part)]) for part in found]


def _numbers(program: Program, built: Built, name: str) -> None:
    """The file of a module whose numbers are apart from its unit."""
    module = program.modules[name]
    unit = built.unit_of[name]
    lines = []
    for one in module.public:
        value = program.constants.get(unique(name, one))
        lines.append(f"from {unit} import {one}" if value is None else f"{one} = {value}")
    built.sources[name] = "\n".join(lines) + "\n"
    built.needs[name] = {unit}
    built.lines[name] = []
    # Functions import it when they need the names; then it must be there.
    if name in program.late:
        built.needs[unit].add(name)


def _check_order(built: Built) -> None:
    """Refuse units that need each other when they are imported."""

    def visit(unit: str, through: list[str]) -> None:
        if unit in through:
            raise BundleError(f"{' imports '.join([*through, unit])}: put them into one unit")
        for needed in sorted(built.needs[unit]):
            if needed not in NUMBERS:
                visit(needed, [*through, unit])

    for unit in built.sources:
        if unit not in NUMBERS:
            visit(unit, [])


# -- components --------------------------------------------------------------------------------------------------------


def units(built: Built, modules: Sequence[str]) -> list[str]:
    """The units that modules of the core need, with the packages that they are in, sorted."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        unit = name if name in built.sources else built.unit_of[name]
        if unit in found:
            continue
        found.add(unit)
        waiting += built.needs[unit]
        if name in NUMBERS:
            waiting.append(name)
        parts = unit.split(".")
        waiting += [".".join(parts[:depth]) for depth in range(1, len(parts))]
    return sorted(found)


def port_modules(modules: Sequence[str]) -> dict[str, set[str]]:
    """The modules of the board's port that ``modules`` are or import: those of the core that each imports."""
    found: dict[str, set[str]] = {}
    waiting = [BOARD_PACKAGE, *modules]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        path = mpy.BOARD_PORT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        imported = sizes.imported_by(path)
        known = {one for one in imported if one.startswith(f"{PACKAGE}.") and _is_module(one)}
        found[name] = known
        waiting += [one for one in imported if one.split(".")[0] == BOARD_PACKAGE and _is_port(one)]
    return found


def _is_module(name: str) -> bool:
    path = mpy.SDK.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _is_port(name: str) -> bool:
    return mpy.BOARD_PORT.joinpath(*name.split(".")).with_suffix(".py").exists()


def members(built: Built, component: str) -> tuple[list[str], list[str]]:
    """The units of a component, and its modules of the board's port."""
    if component == ALL:
        ports = sorted(port_modules([sizes.module_name(path) for path in mpy.modules(mpy.BOARD_PORT)]))
        return sorted(built.sources), ports
    return members_of(built, COMPONENTS[component])


def members_of(built: Built, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The units that modules need, and their modules of the board's port."""
    ports_needed = port_modules([name for name in wanted if name.startswith(BOARD_PACKAGE)])
    if not any(name.startswith(BOARD_PACKAGE) for name in wanted):
        ports_needed = {}
    core = [name for name in wanted if not name.startswith(BOARD_PACKAGE)]
    core += sorted({one for known in ports_needed.values() for one in known})
    return units(built, core), sorted(ports_needed)


def write(built: Built, folder: Path) -> dict[str, dict[str, Path]]:
    """Write the components to ``folder``, which must be new or written by this: by component, its files below ``/lib``.

    ``lib`` and ``source`` have each unit once; for each component there are a package file for ``mpremote mip
    install``, a manifest for freezing and a ROMFS image. ``boards`` has the manifests of firmwares.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / NAMES).exists():
            raise BundleError(f"{folder} is not empty, and has no components in it")
        shutil.rmtree(folder)
    files = compile_units(built, folder)
    shutil.copytree(
        mpy.BOARD_PORT / "boards", folder / "boards", ignore=shutil.ignore_patterns("__pycache__")
    )
    made: dict[str, dict[str, Path]] = {}
    for component in COMPONENTS:
        core, ports = members(built, component)
        parts = {built.file(unit, ".mpy"): files[unit] for unit in core}
        sources = [built.file(unit, ".py") for unit in core]
        for name, path in _port_files(folder, ports).items():
            parts[f"{name}.mpy"] = path
            sources.append(f"{name}.py")
        made[component] = parts
        urls = [[name, path.relative_to(folder).as_posix()] for name, path in sorted(parts.items())]
        package = {"urls": urls, "deps": [], "version": _version()}
        (folder / f"{component}.json").write_text(json.dumps(package, indent=1) + "\n")
        (folder / f"{component}.manifest.py").write_text(_manifest(folder, sources))
        (folder / f"{component}.romfs").write_bytes(image(parts))
    return made


def compile_units(built: Built, folder: Path) -> dict[str, Path]:
    """Write the sources of all units to ``folder/source``, and compile them to ``folder/lib``: the files by unit."""
    files: dict[str, Path] = {}
    for unit, text in built.sources.items():
        name = built.file(unit, ".py")
        source = folder / "source" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text, encoding="utf-8")
        files[unit] = folder / "lib" / built.file(unit, ".mpy")
        mpy.compile_file(source, files[unit], name)
    known = {"names": built.names, "lines": {built.file(unit, ".py"): built.lines[unit] for unit in files}}
    (folder / NAMES).write_text(json.dumps(known, sort_keys=True) + "\n")
    return files


def port_file(module: str, suffix: str) -> str:
    """The file below ``/lib`` of a module of the board's port."""
    return ("headwater_board/__init__" if module == BOARD_PACKAGE else module.replace(".", "/")) + suffix


def _port_files(folder: Path, ports: Sequence[str]) -> dict[str, Path]:
    """The compiled modules of the board's port, copied beside the units: name below ``/lib`` without suffix."""
    found = {}
    compiled = mpy.compiled(mpy.BOARD_PORT)
    for module in ports:
        name = port_file(module, "")
        for of, source in (("source", mpy.BOARD_PORT / f"{name}.py"), ("lib", compiled / f"{name}.mpy")):
            target = folder / of / source.relative_to(mpy.BOARD_PORT if of == "source" else compiled)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            found[name] = target
    return found


def _version() -> str:
    from headwater import __version__

    return __version__


def _manifest(folder: Path, sources: Sequence[str]) -> str:
    """A manifest that freezes source files.

    Each has a manifest of its own in ``folder/units``: MicroPython includes a manifest once, so that components which
    share files can be frozen together.
    """
    (folder / "units").mkdir(exist_ok=True)
    names = []
    for source in sorted(sources):
        names.append(f"units/{source.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}.py")
        (folder / names[-1]).write_text(f'freeze("../source", "{source}", opt=2)\n')
    return "include(\n    (\n" + "".join(f'        "{name}",\n' for name in names) + "    )\n)\n"

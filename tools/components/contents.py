"""What the bytes of an .mpy file are: names, constants, and the code of each function."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

_OBJECTS_WITHOUT_DATA = {1, 2, 3, 4}  # fun_table, None, False, True
_STRINGS = {5, 6}  # with a NUL behind them
_TUPLE = 10


@dataclass
class Contents:
    """Bytes: ``names`` and ``constants`` are the two tables, ``code`` is by function."""

    names: int = 0
    constants: int = 0
    code: dict[str, int] = field(default_factory=dict)


class _Reader:
    def __init__(self, data: bytes):
        self.data = data
        self.at = 4  # magic, version, flags, bits of a small integer

    def number(self) -> int:
        value = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value = value << 7 | byte & 127
            if byte < 128:
                return value

    def name(self) -> None:
        size = self.number()
        if not size & 1:
            self.at += (size >> 1) + 1

    def constant(self) -> None:
        kind = self.data[self.at]
        self.at += 1
        if kind in _OBJECTS_WITHOUT_DATA:
            return
        size = self.number()
        if kind == _TUPLE:
            for _ in range(size):
                self.constant()
        else:
            self.at += size + (kind in _STRINGS)

    def code(self, labels: list[_Label], label: str, found: dict[str, int]) -> None:
        begin = self.at
        head = self.number()
        self.at += head >> 3
        children = self.number() if head & 4 else 0
        found[label] = found.get(label, 0) + self.at - begin
        if children != len(labels):
            raise ValueError(f"{label} has {children} functions in the file, {len(labels)} in its source")
        for inner in labels:
            self.code(inner.inside, inner.name or label, found)


@dataclass
class _Label:
    name: str
    inside: list[_Label]


def contents(data: bytes, source: str) -> Contents:
    """Take an .mpy file of version 6 apart; ``source`` has functions and classes in the same order, and their names."""
    if data[:2] != b"M\x06":
        raise ValueError("this is no .mpy file of version 6")
    reader, found = _Reader(data), Contents()
    names, constants = reader.number(), reader.number()
    begin = reader.at
    for _ in range(names):
        reader.name()
    found.names = reader.at - begin
    begin = reader.at
    for _ in range(constants):
        reader.constant()
    found.constants = reader.at - begin
    reader.code(_labels(ast.parse(source), ""), "(module)", found.code)
    return found


def _labels(node: ast.AST, within: str) -> list[_Label]:
    found: list[_Label] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{within}{child.name}"
            found.append(_Label(name, _labels(child, f"{name}.")))
        elif isinstance(child, ast.Lambda | ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            found.append(_Label("", _labels(child, within)))
        else:
            found += _labels(child, within)
    return found

"""``headwater inspect`` run in this process, and what must hold of any bytes that it reads."""

import argparse
import contextlib
import functools
import io
import json
import sys
from collections.abc import Container, Iterable
from typing import Any

import pytest

from headwater_host.cli import inspect as command
from headwater_host.malformed import MalformedError


@functools.cache
def _parser() -> argparse.ArgumentParser:
    """The command's options. To make the parser of all commands takes longer than to inspect a packet."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser


def shown(data: bytes, *arguments: str) -> tuple[int, str]:
    """Run the command on the bytes of a file: its exit code, and what it prints."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    try:
        with contextlib.redirect_stdout(out):
            code = command.run(_parser().parse_args(["--file", "-", *arguments]))
            out.flush()
    finally:
        sys.stdin = stdin
    out.seek(0)
    return code, out.read()


def inspect(data: bytes, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command with ``--json``: its exit code, and its lines."""
    code, text = shown(data, "--json", *arguments)
    *lines, last = text.split("\n")
    assert last == ""
    return code, [json.loads(line, parse_constant=pytest.fail) for line in lines]


def check_reading(found: Iterable[tuple[int, int, Any]], size: int, reasons: Container[int]) -> None:
    """Frames follow each other without a gap, up to the end of ``size`` bytes or an error with one of the reasons."""
    at, end, code = 0, size, 0
    try:
        for begin, length, fields in found:
            assert begin == at
            assert length > 0
            json.dumps(fields, allow_nan=False)
            at = begin + length
    except MalformedError as error:
        end, code = error.offset, error.code
    assert at <= end <= size
    assert code in reasons if code else at == end

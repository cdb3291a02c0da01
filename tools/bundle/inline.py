"""A function that is called in one place stands there instead."""

from __future__ import annotations

from collections.abc import Collection

from tools.bundle.program import Program


def inline_calls(program: Program, public: Collection[str]) -> list[str]:
    """Inline what can be."""
    return []

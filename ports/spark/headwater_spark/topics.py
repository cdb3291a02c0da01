"""Resolve FMQ topics given as a hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater_host.fmq.hashes import hash_of

#: Prefix of a hash; no topic begins with it (``headwater_host.capture.fmq_frame.topic_text``).
_HASH = "#"


def hash_text(name: str) -> str:
    """Return a topic's hash as the tables show it."""
    return f"{_HASH}{hash_of(name):032x}"


def hashes_in(topics: Any) -> set[str]:
    """Return the hashes in a dictionary column of topics."""
    return {text for text in topics.dictionary.to_pylist() if text.startswith(_HASH)}


def names_in(topics: Any) -> set[str]:
    """Return the names in a dictionary column of topics."""
    return {text for text in topics.dictionary.to_pylist() if text and not text.startswith(_HASH)}


def with_names(topics: Any, names: Mapping[str, str]) -> Any:
    """Return the column with hashes replaced by their `names`."""
    if hashes_in(topics).isdisjoint(names):
        return topics
    texts = pa.array([names.get(text, text) for text in topics.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(topics.indices, texts).cast(pa.string()).dictionary_encode()

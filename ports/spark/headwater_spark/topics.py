"""Topics that frames of FMQ give by their hash: the names they have elsewhere in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater_host.fmq.hashes import hash_of

#: What a hash begins with, and no topic does (``headwater_host.capture.fmq_frame.topic_text``).
_HASH = "#"


def hash_text(name: str) -> str:
    """The hash of a topic as the tables show it."""
    return f"{_HASH}{hash_of(name):032x}"


def hashes_in(topics: Any) -> set[str]:
    """The hashes in a dictionary column of topics."""
    return {text for text in topics.dictionary.to_pylist() if text.startswith(_HASH)}


def names_in(topics: Any) -> set[str]:
    """The names in it."""
    return {text for text in topics.dictionary.to_pylist() if text and not text.startswith(_HASH)}


def with_names(topics: Any, names: Mapping[str, str]) -> Any:
    """The column with names in the place of the hashes that ``names`` has."""
    if hashes_in(topics).isdisjoint(names):
        return topics
    texts = pa.array([names.get(text, text) for text in topics.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(topics.indices, texts).cast(pa.string()).dictionary_encode()

"""Metrics of the storage."""

from collections.abc import Callable, Iterator

from headwater_host.hub.storage.store import Store

#: By name: the text, and the value. A name that ends with ``_total`` counts from the start of the hub.
STATISTICS: dict[str, tuple[str, Callable[[Store], float]]] = {
    "topics": ("Registered topics.", lambda store: len(store.topics)),
    "messages": ("Stored messages.", lambda store: store.topics.count),
    "message_bytes": ("Size of the stored messages.", lambda store: store.topics.bytes),
    "retained_messages": ("Retained messages.", lambda store: len(store.retained)),
    "sessions": ("Sessions that are kept.", lambda store: len(store.sessions)),
    "sequence": ("Sequence number of the last change on the disk.", lambda store: store.durable),
    "unwritten_bytes": ("Size of messages and changes that wait for the disk.", lambda store: store.waiting),
    "write_error": ("1 while the storage cannot be written.", lambda store: int(store.error is not None)),
    "commits_total": ("Transactions.", lambda store: store.commits),
    "duplicates_total": ("Messages that were stored already.", lambda store: store.duplicates),
    "dead_letters_total": ("Messages moved to a dead-letter topic.", lambda store: store.dead),
    "dropped_total": ("Messages dropped before every group had them.", lambda store: store.dropped),
    "damaged_total": ("Messages that could not be read.", lambda store: store.damaged),
}


def statistics(store: Store) -> dict[str, float]:
    """Return the value of each."""
    return {name: ask(store) for name, (_, ask) in STATISTICS.items()}


def backlog(store: Store) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield how many messages a group has not acknowledged, by topic and group. Topics may come and go meanwhile."""
    for topic in list(store.topics.values()):
        for group, positions in list(topic.groups.items()):
            behind = sum(
                position.behind(queue) for queue, position in zip(topic.queues, positions, strict=False)
            )
            yield (topic.name, group), behind

"""What the storage has to tell about itself, for metrics."""

from headwater_host.hub.storage.store import Store


def statistics(store: Store) -> dict[str, float]:
    """Numbers by name. What ends with ``_total`` has only grown since the start."""
    return {
        "topics": len(store.topics),
        "messages": sum(topic.count for topic in store.topics.values()),
        "message_bytes": store.bytes,
        "retained_messages": len(store.retained),
        "sessions": len(store.sessions),
        "sequence": store.durable,
        "unwritten_bytes": store.waiting,
        "write_error": int(store.error is not None),
        "commits_total": store.commits,
        "duplicates_total": store.duplicates,
        "dead_letters_total": store.dead,
        "dropped_total": store.dropped,
        "damaged_total": store.damaged,
    }


def backlog(store: Store) -> dict[tuple[str, ...], float]:
    """By topic and group: messages that the group has not acknowledged."""
    return {
        (topic.name, group): sum(
            position.behind(queue) for queue, position in zip(topic.queues, positions, strict=True)
        )
        for topic in store.topics.values()
        for group, positions in topic.groups.items()
    }

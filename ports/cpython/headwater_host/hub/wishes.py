"""What SUBSCRIBE, and CONSUME with ONCE, ask for."""

from typing import TYPE_CHECKING, Any

from headwater.fmq.frames import Frame
from headwater_host.fmq.values import decode_at
from headwater_host.hub.errors import TOPIC_FILTER_INVALID, RefusedError
from headwater_host.hub.storage import Subscription
from headwater_host.hub.topics import check_filter, is_literal

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker

#: Characters of a consumer group's name at most.
LONGEST_GROUP = 256
#: What begins so are names of the hub's own.
_OWN = "$"
_FIELDS = 4


def read_subscription(broker: "Broker", f: Frame) -> Subscription:
    """What SUBSCRIBE, or CONSUME with ONCE, asks for. Raises RefusedError."""
    buf = bytes(f.buf)
    values: list[Any] = [decode_at(buf, f.at[n], f.end)[0] for n in range(min(f.count, _FIELDS))]
    topic, tags, condition, group = values + [(), "", ""][len(values) - 1 :]
    topic = check_filter(broker.topics.name(topic))
    if len(group) > LONGEST_GROUP or group.startswith(_OWN) or not group.isprintable():
        text = f"a group's name is text of at most {LONGEST_GROUP} characters that does not begin with $"
        raise RefusedError(TOPIC_FILTER_INVALID, text)
    return Subscription(0, topic, tuple(tags), condition, group)


def have_topic(broker: "Broker", pattern: str) -> None:
    """A filter without wildcards names a topic, which there must be, unless it is the hub's own."""
    if is_literal(pattern) and not pattern.startswith(_OWN):
        broker.topics.have(pattern)

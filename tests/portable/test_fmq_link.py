# heap: 1M
"""FMQ over a bad serial line whose other end is reset: what is published is stored once, in order."""

from fmq_hub import Hub
from stream_pair import Dialer, Pair, Server, publish_all

from headwater.fmq.client import Client


def published(pair: Pair, cuts: "tuple[int, ...]") -> "tuple[list[bytes], Hub]":
    """What was handed in at QoS 1 and 2 in turn, and the hub behind the line."""
    hub = Hub()
    server = Server(pair, hub)
    client = Client(Dialer(pair, server), b"board", clean_start=False, keep_alive=0)
    return publish_all(client, server, (1, 2), cuts), hub


def test_over_a_good_line() -> None:
    handed, hub = published(Pair(), ())
    assert [message[1] for message in hub.stored] == handed and hub.duplicates == 0


def test_over_a_bad_line_and_resets_of_the_other_end() -> None:
    handed, hub = published(Pair(3, lose=40, flip=40, drop=40), (5, 6, 17, 29))
    assert [message[1] for message in hub.stored] == handed

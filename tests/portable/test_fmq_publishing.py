# heap: 1M
"""What FMQ's session publishes, against a scripted hub: once, in order, and again after a cut."""

from fmq_hub import PROCESS, Pair, pair, small

from headwater import errors
from headwater.connection import RamOutbox
from headwater.errors import E_AGAIN, E_ARGUMENT, E_OFFLINE, E_QOS, E_TOO_LARGE, E_TOPIC, E_WINDOW
from headwater.fmq import spec
from headwater.fmq.frames import tag_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame


def test_messages_at_every_qos() -> None:
    p = pair()
    assert [p.client.publish(b"a/b", b"%d" % qos, qos, qos == 1) for qos in (0, 1, 2)] == [0, 1, 2]
    assert p.run() == 0
    assert p.hub.stored == [(b"a/b", b"%d" % qos, qos, qos == 1) for qos in (0, 1, 2)]
    assert p.at.delivered == [1, 2]
    p.quiet()


def test_tags_go_along() -> None:
    p = pair()
    seen = []
    take = p.hub._publish

    def look(f: "Frame", ident: bytes) -> None:
        seen.append(bytes(f.buf[f.tags_at : f.payload_at]))
        take(f, ident)

    p.hub._publish = look  # type: ignore[method-assign]
    tags = tag_list((b"urgent", b"eu"))
    assert p.client.publish(b"t", b"x", 1, tags=tags) == 1
    assert p.client.publish(b"t", b"x", 0, tags=tags) == 0
    p.run()
    assert seen == [tags, tags]


def test_publish_refuses() -> None:
    p = pair()
    client = p.client
    for topic in (b"", b"a/+", b"#", b"\xff", b"a\0"):
        assert client.publish(topic, b"") == E_TOPIC
    assert client.publish(b"t", b"", 3) == E_QOS
    assert client.publish("t", b"", 0) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.publish(b"t", 5, 1) == E_ARGUMENT  # type: ignore[arg-type]
    assert client.publish(b"t", b"x" * 200) == E_TOO_LARGE
    assert client.publish(b"t", b"x" * 600, 1) == E_TOO_LARGE
    n = 0
    while client.publish(b"t", b"x" * 20) == 0:
        n += 1
    assert n == 3 and client.publish(b"t", b"x" * 20) == E_AGAIN
    while client.publish(b"t", b"x", 1) > 0:
        n += 1
    assert n == 9 and client.publish(b"t", b"x", 2) == E_WINDOW
    assert p.run() == 0
    assert len(p.hub.stored) == 9
    p.lose()
    assert client.publish(b"t", b"x") == E_OFFLINE
    assert client.publish(b"t", b"x", 1) > 0


def test_before_there_is_a_process_number_nothing_can_be_kept() -> None:
    client = small()
    assert client.publish(b"t", b"x", 1) == E_OFFLINE
    known = small(process=bytes([PROCESS]), boot=3)
    assert known.publish(b"t", b"first", 1) == 1
    p = Pair(known)
    p.connect()
    assert known.publish(b"t", b"second", 1) == 2
    p.run()
    assert [one[1] for one in p.hub.stored] == [b"first", b"second"]
    p.quiet()


def test_no_more_are_under_way_than_the_window() -> None:
    p = pair(window=2)
    for _ in range(5):
        assert p.client.publish(b"t", b"x", 1) > 0
    p.step_up()
    assert p.client.in_flight == 2 and len(p.hub.stored) == 2
    p.run()
    assert len(p.hub.stored) == 5


def test_answers_in_another_order_find_their_messages() -> None:
    p = pair()
    for qos in (1, 2, 1):
        p.client.publish(b"t", b"x", qos)
    p.step_up()
    p.hub._out = bytearray()
    a, b, c = p.hub.ids
    p.hub.say(spec.ACK << 4, c)
    p.hub.say(spec.PUBREC << 4, b)
    p.hub.say(spec.ACK << 4, a)
    p.run()
    assert p.at.delivered == [3, 1, 2]
    p.quiet()


def test_an_answer_to_what_was_not_sent_is_none() -> None:
    p = pair(window=1)
    p.client.publish(b"t", b"one", 1)
    p.client.publish(b"t", b"two", 1)
    box = p.client.outbox
    p.hub.say(spec.ACK << 4, bytes(box.buf[box.at[1] + 1 : box.at[1] + 13]))
    p.step_down()
    assert p.client.strays == 1 and p.at.delivered == []
    p.run()
    assert p.at.delivered == [1, 2]
    p.quiet()


def test_what_has_left_in_part_is_a_repetition() -> None:
    p = pair()
    p.client.publish(b"t", b"x", 1)
    assert p.client.out() > 5
    p.client.sent(5)
    p.lose()
    p.connect()
    assert [head for kind, head, _ in p.hub.log if kind == spec.PUBLISH] == [0x3A]
    p.quiet()


def test_answers_to_nothing_are_counted() -> None:
    p = pair()
    ident = p.hub.ident()
    for kind in (spec.ACK, spec.PUBREC, spec.PUBCOMP, spec.PUBREL):
        p.hub.say(kind << 4, ident)
    p.hub.say(spec.ACK << 4, p.hub.ident(spec.SUBSCRIBE), 0, 7)
    assert p.run() == 0
    # The sixth is the answer to what is answered here.
    assert p.client.strays == 6
    # So that the hub can forget its ids.
    assert [kind for kind, _, _ in p.hub.log[1:]] == [spec.PUBREL, spec.PUBCOMP]


def test_an_answer_of_the_wrong_kind_ends_the_connection() -> None:
    for qos, kind in ((1, spec.PUBREC), (1, spec.PUBCOMP), (2, spec.ACK), (2, spec.PUBCOMP)):
        p = pair()
        p.client.publish(b"t", b"x", qos)
        p.step_up()
        p.hub._out = bytearray()
        p.hub.say(kind << 4, p.hub.ids[0])
        assert p.run() == errors.E_ACK_KIND
        assert p.hub.refused == [(p.hub.ids[0], 0x82)]
        assert p.client.outbox.count == 1


def test_a_message_that_the_hub_refuses_is_over() -> None:
    p = pair()
    p.hub.refuse = (spec.PUBLISH, 0x87, b"no")
    for qos in (1, 2, 0):
        p.client.publish(b"t", b"x", qos)
    p.run()
    assert sorted(p.at.refused) == [(0, 0x87, b"no"), (1, 0x87, b"no"), (2, 0x87, b"no")]
    assert p.at.delivered == []
    p.quiet()


def test_the_same_bytes_go_out_again_with_dup() -> None:
    p = pair()
    p.client.publish(b"t", b"one", 1)
    p.client.publish(b"t", b"two", 2)
    p.step_up()
    up = bytes(p.link().up.log)
    first = up[up.index(p.hub.ids[0]) - 1 :]
    p.lose()
    p.connect()
    again = bytes(p.link().up.log)
    again = again[again.index(p.hub.ids[0]) - 1 :]
    # But for DUP, in the first byte of each.
    n = len(first) // 2
    assert first[0] | 8 == again[0] and first[1:n] == again[1:n]
    assert first[n] | 8 == again[n] and first[n + 1 :] == again[n + 1 : 2 * n]
    assert p.hub.duplicates == 2 and len(p.hub.stored) == 2
    p.quiet()


def test_pubrel_goes_out_again_and_publish_does_not() -> None:
    p = pair()
    p.client.publish(b"t", b"x", 2)
    p.step_up()
    p.step_down()
    p.lose()
    p.hub.log = []
    p.connect()
    assert [kind for kind, _, _ in p.hub.log] == [spec.AUTH, spec.PUBREL]
    assert p.hub.duplicates == 0
    p.quiet()


def test_what_a_store_has_kept_goes_out_again() -> None:
    """Restored as a message is, with DUP on its first byte: also when it had become a PUBREL by then."""
    box = RamOutbox(512, 6)
    p = Pair(small(outbox=box))
    p.connect()
    p.client.publish(b"t", b"one", 2)
    p.client.publish(b"t", b"two", 2)
    p.step_up()
    p.hub._out = p.hub._out[: len(p.hub._out) // 2]
    p.step_down()
    for i in range(2):
        box.buf[box.at[i]] |= 8
    hub = p.hub
    again = Pair(small(outbox=box))
    again.hub = hub
    hub.lost()
    hub.log = []
    again.connect()
    assert [kind for kind, _, _ in hub.log] == [spec.AUTH, spec.PUBREL, spec.PUBLISH, spec.PUBREL]
    assert [one[1] for one in hub.stored] == [b"one", b"two"]
    assert again.at.delivered == [1, 2]
    again.quiet()

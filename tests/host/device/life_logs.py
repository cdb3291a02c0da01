"""``headwater_board.logs`` on MicroPython."""

import sys

from headwater.errors import E_WINDOW
from headwater_board.logs import DEBUG, ERROR, INFO, WARNING, LogRing


def ring(**options):
    log = LogRing(256, line=40, **options)
    log.ticks_ms = lambda: 1234567
    return log


class Topic:
    """Takes messages, as a keeper's ``publish`` does."""

    def __init__(self):
        self.got = []
        self.status = 0

    def publish(self, topic, payload, qos):
        if self.status >= 0:
            self.got.append((topic, bytes(payload), qos))
        return self.status


class Stream:
    """A transport that takes a few bytes at a time."""

    def __init__(self):
        self.got = b""

    def write(self, buf, off, n):
        n = min(n, 7)
        self.got += bytes(buf[off : off + n])
        return n


def sent(log):
    topic = Topic()
    log.publish(topic.publish, b"log")
    return b"".join([payload for _, payload, _ in topic.got])


def test_a_record_is_a_line_with_level_and_time():
    log = ring(level=DEBUG)
    log.write(DEBUG, b"a")
    log.write(INFO, "b\u00e9")
    log.write(WARNING, memoryview(b"c\nd"))
    log.write(ERROR, b"")
    assert sent(log) == b"D 1234567 a\nI 1234567 b\xc3\xa9\nW 1234567 c d\nE 1234567 \n"
    assert log.waiting() == 0


def test_numbers():
    for ticks in (0, 9, 10, 99, 100, 1073741823):
        log = ring()
        log.ticks_ms = lambda ticks=ticks: ticks
        log.write(INFO, b"x")
        assert sent(log) == b"I %d x\n" % ticks, ticks


def test_the_level_decides_and_long_texts_are_cut():
    log = ring(level=WARNING)
    log.write(INFO, b"no")
    log.write(ERROR, b"0123456789" * 5)
    assert sent(log) == b"E 1234567 " + b"0123456789" * 4 + b"\n"


def test_the_oldest_are_dropped_and_counted():
    log = ring()
    for i in range(100):
        log.write(INFO, b"record %d" % i)
        assert log.waiting() <= 256
    lines = sent(log).split(b"\n")[:-1]
    kept = [int(line.split()[-1]) for line in lines]
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) >= 8
    assert log.dropped == 100 - len(kept)


def test_messages_have_whole_lines_and_stay_until_they_are_taken():
    log = ring()
    topic = Topic()
    for i in range(5):
        log.write(INFO, b"record %d" % i)
    topic.status = E_WINDOW
    assert log.publish(topic.publish, b"log") == E_WINDOW
    assert log.waiting() == 5 * 19
    topic.status = 7
    assert log.publish(topic.publish, b"log", 1, limit=40) == 7
    assert topic.got == [(b"log", b"I 1234567 record 0\nI 1234567 record 1\n", 1)]
    # A line that is longer than the limit is a message of its own.
    while log.waiting():
        assert log.publish(topic.publish, b"log", 1, limit=10) == 7
    assert [payload[-2:] for _, payload, _ in topic.got[1:]] == [b"2\n", b"3\n", b"4\n"]
    assert log.publish(topic.publish, b"log") == 0


def test_a_stream_takes_what_it_can():
    log = ring()
    stream = Stream()
    log.drain(stream)
    for i in range(3):
        log.write(INFO, b"record %d" % i)
    while log.waiting():
        log.drain(stream)
    assert stream.got == b"I 1234567 record 0\nI 1234567 record 1\nI 1234567 record 2\n"


def test_printing():
    log = ring()
    stream = log.stream(WARNING)
    print("one", 2, end=" ", file=stream)
    print("three\nfour", file=stream)
    assert sent(log) == b"W 1234567 one 2 three\nW 1234567 four\n"
    try:
        raise ValueError("x")
    except ValueError as error:
        sys.print_exception(error, stream)
    assert sent(log).endswith(b"W 1234567 ValueError: x\n")

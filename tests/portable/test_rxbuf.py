"""The receive buffer against a model of it: bytes go in in pieces, and come out in order, whatever their sizes."""

from pipe import Random

from headwater.connection import RxBuf


class Stream:
    """The bytes 0, 1, 2 … 250, 0, 1 …, so that one that is lost, doubled or displaced is seen."""

    def __init__(self) -> None:
        self.n = 0

    def take(self, count: int) -> bytes:
        data = bytes([(self.n + k) % 251 for k in range(count)])
        self.n += count
        return data


def read(rx: RxBuf, data: bytes) -> None:
    """As a session does when ``data`` was read."""
    n = len(data)
    rx.view[:n] = data
    if n and rx.gap:
        rx.join(n)
    rx.end += n


def check(rx: RxBuf, waiting: bytes) -> None:
    assert 0 <= rx.start <= rx.end <= rx.size
    assert bytes(rx.buf[rx.start : rx.end]) == waiting


def play(seed: int, size: int, most: int) -> None:
    """Packets of random sizes up to the capacity, read in pieces of up to ``most`` bytes, taken when they are whole."""
    random = Random(seed)
    rx = RxBuf(size)
    came, went = Stream(), Stream()
    waiting = b""
    packet = 1 + random.below(rx.capacity)
    for _ in range(300):
        room = rx.window()
        check(rx, waiting)
        assert room == rx.room and 0 < room <= size
        # The window is never empty while there is not a whole packet.
        data = came.take(min(room, random.below(most + 1)))
        read(rx, data)
        waiting += data
        check(rx, waiting)
        while len(waiting) >= packet:
            assert waiting[:packet] == went.take(packet)
            waiting = waiting[packet:]
            rx.start += packet
            packet = 1 + random.below(rx.capacity)
        check(rx, waiting)


def test_random_packets_in_random_pieces() -> None:
    seed = 1
    for size in (16, 17, 23, 24, 31, 64, 100, 127, 512):
        for most in (1, 3, 10, 64, 600):
            seed += 1
            play(seed, size, min(most, 4000))


def test_a_packet_of_exactly_the_capacity() -> None:
    """Byte by byte, in a buffer of every size, behind rests of every size that the one before may leave."""
    for size in (16, 19, 40, 63, 71):
        rx = RxBuf(size)
        for before in range(rx.capacity):
            rx.clear()
            came = Stream()
            assert rx.window() == size
            # The packet before fills what is in front.
            read(rx, came.take(before + 1))
            rx.start += before
            for _ in range(rx.capacity - 1):
                assert rx.window() > 0, (size, before)
                read(rx, came.take(1))
            assert bytes(rx.buf[rx.start : rx.end]) == bytes([(before + k) % 251 for k in range(rx.capacity)])


def test_full_of_unparsed_bytes() -> None:
    """What stalls may fill the buffer beyond the capacity: then there is no window until something is parsed."""
    rx = RxBuf(64)
    came = Stream()
    assert rx.window() == 64
    read(rx, came.take(64))
    assert rx.window() == 0 == rx.room
    check(rx, bytes(range(64)))
    rx.start += 7
    assert rx.window() == 0
    rx.start += 1
    assert rx.window() == 8
    read(rx, came.take(8))
    check(rx, bytes(range(8, 72)))
    rx.start = rx.end
    assert rx.window() == 64


def test_asking_twice_moves_nothing() -> None:
    rx = RxBuf(64)
    came = Stream()
    rx.window()
    read(rx, came.take(20))
    rx.start = 3
    rx.window()
    state = (rx.start, rx.end, rx.room, rx.gap)
    for _ in range(3):
        rx.window()
        assert (rx.start + rx.gap, rx.end + rx.gap, rx.room) == (
            state[0] + state[3],
            state[1] + state[3],
            state[2],
        )
        check(rx, bytes(range(3, 20)))
    # Parsed between asking and reading: what is read then still stands behind it.
    rx.start = rx.end
    read(rx, b"new")
    check(rx, b"new")


def test_the_work_is_in_proportion_to_the_bytes() -> None:
    """A packet that comes byte by byte is not moved as a whole for each of them."""

    class Counting(RxBuf):
        moved = 0

        def _move(self, start: int, to: int, n: int) -> None:
            self.moved += n
            super()._move(start, to, n)

    for piece in (1, 2, 7, 20, 100):
        rx = Counting(4096)
        came = 0
        while came < rx.capacity:
            room = rx.window()
            n = min(room, piece, rx.capacity - came)
            read(rx, bytes(n))
            came += n
        assert rx.moved <= 2 * rx.capacity, (piece, rx.moved)


def test_a_buffer_that_is_too_small() -> None:
    for size in (0, 1, 15):
        try:
            RxBuf(size)
        except ValueError:
            continue
        raise AssertionError(size)

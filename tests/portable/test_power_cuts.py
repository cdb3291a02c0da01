# heap: 4M
"""A client with a journal loses its power, at every byte of its flash and at every byte of its connection.

The other end keeps the session, unless a test says otherwise. At QoS 1 everything arrives, at QoS 2 exactly once, in
order, and what comes again says so (DUP). What was being handed in when the power went may arrive or not.
"""

import sys

from journal_file import MemoryFile, PowerCutError
from pipe import FIRST, Ends, Inbox, Link, Wire, feed

from headwater.connection import AT2, ONLINE
from headwater.errors import E_STORE
from headwater.journal import JournalOutbox
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

NEVER = 1 << 20
# MicroPython samples.
STEP = 7 if sys.implementation.name == "micropython" else 1


def ends_of(client: ClientSession, server: ServerSession, link: "Link | None" = None) -> Ends:
    """Back to back, and not connected again by themselves. Who published what is this module's affair."""
    ends = Ends(client, server, [link or Link()])
    ends.reconnect = False
    client.on_delivered = server.on_delivered = None
    return ends


class World:
    """A server, and the client's lives before it; both sides' memories of what they handed in and what they got."""

    #: The journal's file, of what an earlier life has left.
    file = MemoryFile

    def __init__(self, ways: "tuple[bool, bool]" = (True, False), sync_every: int = 1) -> None:
        self.up, self.down = ways
        self.sync_every = sync_every
        self.kept: bytes | None = None
        self.servers: list[Inbox] = []
        self.server = self.another_server()
        #: (payload, QoS) that were handed in at the client, and the one that may have been.
        self.accepted: list[tuple[bytes, int]] = []
        self.doubtful: list[bytes] = []
        self.sent_down: list[bytes] = []
        #: (payload, DUP) as the client's handler has taken them.
        self.taken: list[tuple[bytes, bool]] = []
        self.before_record: list[bytes] = []
        self.handing = b""
        self.n = 0
        self.links: list[Link] = []

    def another_server(self) -> ServerSession:
        """One that knows nothing."""
        self.server = ServerSession(64, 64, 512, slots=6, window=3, receive_window=6)
        self.servers.append(Inbox(self.server))
        return self.server

    def publish(self, client: ClientSession, qos: int) -> None:
        payload = b"%d.%d" % (self.n, qos)
        self.n += 1
        self.handing = payload
        if client.publish(b"t", payload, qos) > 0:
            self.accepted.append((payload, qos))
        self.handing = b""

    def take(self, p: "Packet") -> None:
        """The client's handler."""
        self.taken.append((p.payload_bytes(), p.dup()))
        self.handing = p.payload_bytes()

    def live(self, cut: int = NEVER, torn: int = 0, link: "Link | None" = None, publish: bool = True) -> int:
        """One life of the client: until the power goes, after ``cut`` bytes of flash or with its link, or until all is
        done. How many bytes of flash it took, syncs included."""
        file = self.file(self.kept, torn, cut)
        inbox = self.servers[-1]
        try:
            box = JournalOutbox(file, 200, 6, 4, 220, self.sync_every)
            client = ClientSession(b"c", 10, False, None, None, 64, 64, window=3, outbox=box)
            ends = ends_of(client, self.server, link)
            self.links.append(ends._next[0])
            self.server.on_message = inbox.message
            client.on_message = self.take
            if publish and self.up:
                self.publish(client, 2)
                self.publish(client, 1)
            ends.open()
            ends.run()
            for turn in range(3):
                if publish and self.up:
                    for qos in (1, 2, 2) if turn else (2, 1, 1):
                        self.publish(client, qos)
                if publish and self.down and client.state == ONLINE:
                    for _ in range(2):
                        payload = b"d%d" % len(self.sent_down)
                        if self.server.publish(b"t", payload, 2) > 0:
                            self.sent_down.append(payload)
                ends.run()
            if link is None:
                # All has been said.
                ends.quiet()
                assert box.sync() == 0
        except PowerCutError:
            if self.handing:
                (self.doubtful if self.up else self.before_record).append(self.handing)
        self.handing = b""
        self.server.lost()
        self.kept = file.kept
        return cut - file.cut_after

    def check(self) -> None:
        """All has arrived as promised."""
        for qos in (1, 2):
            got = [message for inbox in self.servers for message in inbox.got if message[2] == qos]
            payloads = [message[1] for message in got]
            accepted = [payload for payload, level in self.accepted if level == qos]
            first = []
            for i in range(len(got)):
                if payloads[i] in first:
                    assert qos == 1 or len(self.servers) > 1, (payloads[i], "twice at QoS 2")
                    assert got[i][4] or len(self.servers) > 1, (payloads[i], "again, without DUP")
                else:
                    first.append(payloads[i])
            known = [payload for payload in first if payload not in self.doubtful]
            assert known == accepted, (qos, known, accepted)
            assert first == sorted(first, key=lambda payload: int(payload.split(b".")[0])), "out of order"
        payloads = []
        for payload, dup in self.taken:
            if payload in payloads:
                # The power went between the end of the handler and the end of the record.
                assert dup and payload in self.before_record, payload
            else:
                payloads.append(payload)
        assert payloads == self.sent_down, (payloads, self.sent_down)


def flash_of_a_life(world: World) -> int:
    total = world.live()
    world.check()
    assert total > 100
    return total


def test_cut_at_every_byte_of_flash_while_publishing() -> None:
    total = flash_of_a_life(World())
    for torn in (0, 1, 13, 1000):
        for cut in range(torn % STEP, total, STEP):
            world = World()
            world.live(cut, torn)
            world.live()
            world.check()


def test_cut_at_every_byte_of_flash_while_receiving() -> None:
    total = flash_of_a_life(World((False, True)))
    doubled = 0
    for torn in (0, 5):
        for cut in range(0, total, STEP):
            world = World((False, True))
            world.live(cut, torn)
            world.live()
            world.check()
            doubled += len(world.taken) - len(world.sent_down)
    # That case is met, and only by a cut within one record and its sync.
    assert 0 < doubled <= total


def test_cut_again_and_again() -> None:
    total = flash_of_a_life(World((True, True)))
    for first in range(3, total, 7 * STEP):
        world = World((True, True))
        for cut in (first, 2 + first // 2, 40 + first // 3, 100):
            world.live(cut, first % 23)
        world.live()
        world.up = False
        check_up_only(world)


def check_up_only(world: World) -> None:
    world.taken = []
    world.sent_down = []
    world.check()


def test_cut_at_every_byte_of_the_connection() -> None:
    """The link goes at byte k, and the power with it; then again, 9 bytes into the next one's answers."""
    for sync_every in (1, 3):
        world = World()
        world.live()
        up, down = len(world.links[0].up.log), len(world.links[0].down.log)
        for k in range(0, up + down, STEP):
            world = World(sync_every=sync_every)
            world.live(link=Link(Wire(chunk=5, cut=k)) if k < up else Link(down=Wire(chunk=5, cut=k - up)))
            world.live(link=Link(down=Wire(cut=9 + k % 40)), publish=False)
            world.live(publish=False)
            if sync_every == 1:
                world.check()
            else:
                # At QoS 1 the last ones before the cut were not synced; nothing else is different.
                got = [message[1] for message in world.servers[0].got]
                lost = [m for m in world.accepted if m[0] not in got]
                assert len(lost) < sync_every and all(qos == 1 for _, qos in lost), lost
                world.accepted = [m for m in world.accepted if m not in lost]
                world.check()


def test_the_server_has_lost_the_session() -> None:
    """What it had not acknowledged to the end goes to the next one; that one knows none of the received ids."""
    total = flash_of_a_life(World((True, True)))
    for cut in range(0, total, STEP):
        world = World((True, True))
        world.live(cut)
        world.another_server()
        world.taken = []
        world.sent_down = []
        world.before_record = []
        world.live()
        world.up = False
        world.check()


def test_received_ids_end_with_the_session() -> None:
    """A server that has lost it begins with id 1 again: that is another message, in this life and in the next."""
    for lives in (1, 2):
        file = MemoryFile()
        assert JournalOutbox(file, 200, 6).opened(1) == 0
        server = ServerSession(64, 64, 512, slots=6)
        got: list[bytes] = []
        for life in range(lives):
            file = MemoryFile(file.kept)
            client = ClientSession(b"c", 10, False, None, None, 64, 64, outbox=JournalOutbox(file, 200, 6))
            ends = ends_of(client, server)
            client.on_message = lambda p, got=got: got.append(p.payload_bytes())
            ends.open()
            ends.run()
            assert client.session_present == (life > 0)
            if life + 1 == lives:
                assert server.publish(b"t", b"new", 2) == 1
                ends.run()
            ends.lose()
        assert got == [b"new"]


def test_ids_of_a_forgotten_life_are_released_before_they_are_used_again() -> None:
    """The journal is gone, the server's session is not: it holds three ids at QoS 2. The power goes again while they
    are being released."""
    for k in range(4, 60):
        world = World()
        client = ClientSession(
            b"c", 10, False, None, None, 64, 64, outbox=JournalOutbox(MemoryFile(), 200, 6)
        )
        ends = ends_of(client, world.server, Link(down=Wire(cut=5)))
        world.server.on_message = world.servers[0].message
        ends.open()
        ends.step()
        for name in (b"1.2", b"2.2", b"3.2"):
            client.publish(b"t", name, 2)
        ends.run()
        ends.lose()
        assert len([i for i in world.server.open_ids if i]) == 3
        old = [message[1] for message in world.servers[0].got]
        assert old == [b"1.2", b"2.2", b"3.2"]
        world.servers[0].got.clear()
        world.live(link=Link(Wire(cut=k)) if k & 1 else Link(down=Wire(cut=k)), publish=k % 3 > 0)
        world.live()
        world.check()


def test_a_store_that_fails_ends_the_connection_and_nothing_is_lost() -> None:
    """The file system is full in the middle: nothing leaves that is not kept, and when there is room it goes on."""
    for room in range(30, 260, 3):
        world = World((True, True))
        file = MemoryFile()
        box = JournalOutbox(file, 200, 6, 4, 220)
        client = ClientSession(b"c", 10, False, None, None, 64, 64, window=3, outbox=box)
        ends = ends_of(client, world.server)
        world.server.on_message = world.servers[0].message
        client.on_message = world.take
        ends.connect()
        file.room = room
        for _ in range(4):
            for qos in (2, 1, 2):
                world.publish(client, qos)
            payload = b"d%d" % len(world.sent_down)
            if world.server.state == ONLINE and world.server.publish(b"t", payload, 2) > 0:
                world.sent_down.append(payload)
            for _ in range(40):
                moved = ends.step()
                if moved <= 0:
                    break
            if client.status:
                ends.lose()
                ends.open()
                for _ in range(40):
                    if ends.step() <= 0:
                        break
        file.room = -1
        ends.lose()
        ends.open()
        ends.run()
        world.check()
        world.kept = file.kept
        world.live()
        world.check()


def test_a_received_id_that_was_not_stored_is_stored_before_it_is_answered() -> None:
    """The file is full for the identifier of a received message. Its duplicate is not answered before it is stored."""
    file = MemoryFile()
    server = ServerSession(64, 64, 512, slots=6)
    client = ClientSession(b"c", 10, False, None, None, 64, 64, outbox=JournalOutbox(file, 200, 6))
    ends = ends_of(client, server)
    ends.connect()
    server.publish(b"t", b"one", 2)
    file.room = 0
    while ends.step() > 0:
        pass
    assert client.status == E_STORE and ends.at_client.payloads(2) == [b"one"]
    ends.lose()
    ends.open()
    while ends.step() > 0:
        pass
    assert client.status == E_STORE and server.outbox.state[0] == AT2
    file.room = -1
    ends.lose()
    ends.open()
    ends.run()
    assert server.outbox.count == 0 and ends.at_client.payloads(2) == [b"one"]


def test_what_the_application_acknowledged_does_not_come_again() -> None:
    """With ``ManualAck``, and the connection is lost before it acknowledges: stored all the same."""
    file = MemoryFile()
    server = ServerSession(64, 64, 512, slots=6)
    client = ClientSession(b"c", 10, False, None, None, 64, 64, outbox=JournalOutbox(file, 200, 6))
    ManualAck(client)
    ends = ends_of(client, server)
    ends.connect()
    server.publish(b"t", b"one", 2)
    server.publish(b"t", b"two", 2)
    ends.run()
    first, second = ends.at_client.got
    ends.lose()
    assert client.acks.acknowledge(first[5], 2, FIRST) == 0
    again = ClientSession(
        b"c", 10, False, None, None, 64, 64, outbox=JournalOutbox(MemoryFile(file.kept), 200, 6)
    )
    ends = ends_of(again, server)
    ends.connect()
    ends.run()
    assert [message[1] for message in ends.at_client.got] == [second[1]] and again.duplicates == 1


def test_fewer_places_than_qos2_ids() -> None:
    """The window is smaller than what an earlier life had open: there is room for those all the same."""
    file = MemoryFile()
    box = JournalOutbox(file, 200, 6)
    for packet_id in range(1, 6):
        box.opened(packet_id)
    client = ClientSession(
        b"c", 10, False, receive_window=2, outbox=JournalOutbox(MemoryFile(file.kept), 200, 6)
    )
    client.connect(0)
    client.tx_end = 0
    assert feed(client, b"\x20\x02\x01\x00") == 0
    client.tx_end = 0
    assert feed(client, b"\x3c\x05\x00\x01t\x00\x04" + b"\x62\x02\x00\x04") == 0
    assert client.duplicates == 1 and client.strays == 0
    assert sorted([i for i in box.ids if i]) == [1, 2, 3, 4, 5]

"""The floor: MicroPython's socket with packets made beforehand, without decoding.

One write for each sent packet. For each received packet, two reads at QoS 0 (header, rest) and one at QoS 1 and 2,
as in `bench_floor_whole`. Clients that read more at a time can be faster: `bench_floor_512` reads as much as they
do, `bench_floor_64k` more.
"""

import socket

import common

# Packet identifiers of the canned peer; mosquitto uses fewer.
IDS = 8000


class Bench(common.Base):
    """The tasks of a client, by counting bytes. Reads have `READ` bytes; with 0, a packet's, `HEAD` bytes first."""

    READ = 0
    HEAD = 2

    def connect(self, host, port, clean):
        s = socket.socket()
        s.connect(socket.getaddrinfo(host, port)[0][-1])
        common.no_delay(s)
        name = common.CLIENT_ID.encode()
        rest = (
            b"\x00\x04MQTT\x04" + (b"\x02" if clean else b"\x00") + b"\x00\x3c" + bytes([0, len(name)]) + name
        )
        s.write(bytes([0x10, len(rest)]) + rest)
        if s.read(4) not in (b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"):
            raise ValueError("not accepted")
        s.setblocking(False)
        self.socket = s
        topic = common.TOPIC_BYTES
        ids = self.window
        id_size = 2 if self.qos else 0
        n = 2 + len(topic) + id_size + len(common.PAYLOAD)
        self.size = n + 2
        packets = b""
        for i in range(1, ids + 1):
            packets += bytes([0x30 | self.qos << 1, n, 0, len(topic)]) + topic
            packets += bytes([0, i])[:id_size] + common.PAYLOAD
        self.packets = packets
        self.room = self.READ or self.size
        self.buffer = bytearray(max(self.room, common.BUFFER))
        # Bytes of an incomplete packet; acknowledgements, and the next one.
        self.rest = self.at = 0
        self.acks = b""
        self.view = memoryview(self.buffer)
        self.answers = bytearray(len(self.buffer))
        self.id_at = 4 + len(topic)

    def publish(self, n):
        if self.qos == 0:
            self.publish0(n)
        elif self.qos == 1:
            self.publish1(n)
        else:
            self.publish2(n)

    def publish0(self, n):
        write = self.socket.write
        packet = self.packets
        size = self.size
        for _ in range(n):
            k = write(packet, 0, size)
            if k != size:
                # Count accepted bytes only.
                k = k or 0
                write_all(write, packet, k, size - k)

    def publish1(self, n):
        write = self.socket.write
        readinto = self.socket.readinto
        packets = self.packets
        size = self.size
        window = self.window
        buffer = self.buffer
        sent = acked = have = at = 0
        end = window * size
        while acked < n:
            while sent < n and sent - acked < window:
                if write(packets, at, size) != size:
                    raise OSError("a packet was written in part")
                at += size
                if at == end:
                    at = 0
                sent += 1
            k = readinto(buffer, 512)
            if k:
                have += k
                acked = have >> 2

    def publish2(self, n):
        write = self.socket.write
        readinto = self.socket.readinto
        packets = self.packets
        size = self.size
        window = self.window
        buffer = self.buffer
        release = bytearray(4 * window)
        sent = done = at = have = 0
        end = window * size
        view = memoryview(buffer)
        while done < n:
            while sent < n and sent - done < window:
                if write(packets, at, size) != size:
                    raise OSError("a packet was written in part")
                at += size
                if at == end:
                    at = 0
                sent += 1
            k = readinto(view[have:])
            if not k:
                continue
            k += have
            i = j = 0
            while i + 4 <= k:
                if buffer[i] == 0x50:
                    release[j] = 0x62
                    release[j + 1] = 2
                    release[j + 2] = buffer[i + 2]
                    release[j + 3] = buffer[i + 3]
                    j += 4
                else:
                    done += 1
                i += 4
            have = k - i
            buffer[:have] = buffer[i:k]
            if j and write(release, 0, j) != j:
                raise OSError("a packet was written in part")

    def subscribe(self):
        topic = common.TOPIC_BYTES
        s = self.socket
        s.setblocking(True)
        s.write(bytes([0x82, len(topic) + 5, 0, 1, 0, len(topic)]) + topic + bytes([self.qos]))
        if s.read(5) != bytes([0x90, 3, 0, 1, self.qos]):
            raise ValueError("not subscribed")
        s.setblocking(False)

    def pump(self):
        if self.qos == 0:
            self.pump0()
        elif self.qos == 1:
            self.pump1()
        else:
            self.pump2()

    def pump0(self):
        readinto = self.socket.readinto
        buffer = self.buffer
        head = self.HEAD
        room = self.room - head
        have = self.rest
        for _ in range(64):
            if head:
                k = readinto(buffer, head)
                if k:
                    have += k
            k = readinto(buffer, room)
            if k:
                have += k
        self.received += have // self.size
        self.rest = have % self.size

    def pump1(self):
        """Acknowledge by number: the peer's packet identifiers count from 1."""
        if not self.acks:
            self.acks = bytearray(4 * IDS)
            for i in range(IDS):
                self.acks[4 * i] = 0x40
                self.acks[4 * i + 1] = 2
                self.acks[4 * i + 2] = i + 1 >> 8
                self.acks[4 * i + 3] = i + 1 & 255
        readinto = self.socket.readinto
        write = self.socket.write
        buffer = self.buffer
        acks = self.acks
        room = self.room
        size = self.size
        have = self.rest
        at = self.at
        got = 0
        for _ in range(16):
            k = readinto(buffer, room)
            if k:
                have += k
                n = have // size
                have -= n * size
                got += n
                n *= 4
                if at + n > len(acks):
                    m = len(acks) - at
                    write_all(write, acks, at, m)
                    at = 0
                    n -= m
                if n:
                    write_all(write, acks, at, n)
                    at += n
        self.at = at
        self.rest = have
        self.received += got

    def pump2(self):
        """Answer PUBLISH with PUBREC and PUBREL with PUBCOMP, distinguished by their first bytes."""
        buffer = self.buffer
        have = self.rest
        k = self.socket.readinto(self.view[have:])
        if not k:
            return
        size = self.size
        answers = self.answers
        k += have
        i = j = 0
        while i < k:
            if buffer[i] == 0x62:
                n = 4
                id_at = i + 2
                kind = 0x70
            else:
                n = size
                id_at = i + self.id_at
                kind = 0x50
            if i + n > k:
                break
            answers[j] = kind
            answers[j + 1] = 2
            answers[j + 2] = buffer[id_at]
            answers[j + 3] = buffer[id_at + 1]
            if kind == 0x50:
                self.received += 1
            j += 4
            i += n
        have = k - i
        buffer[:have] = buffer[i:k]
        self.rest = have
        if j:
            write_all(self.socket.write, answers, 0, j)

    def check(self):
        pass


def write_all(write, buf, at, n):
    while n:
        k = write(buf, at, n)
        if k:
            at += k
            n -= k

"""The board's end of a serial line in tests/host/test_serial_link.py: MicroPython, checking every byte that comes.

``run`` sends ``size`` bytes in each stream, and reads. What a stream carries is a function of its sender's session
number and the position (``line.content``). It prints ``all N`` when so much has come and everything was acknowledged,
and ``end WHY N`` when a stream is over; then it opens the next one.
"""

import micropython
from line import content

from headwater.link.link import UP
from headwater_board.serial import Serial


def run(line, size, report=print, rounds=0, **options):
    """Go on for ever, or for so many streams that were whole."""
    serial = Serial(line, **options)
    buf = bytearray(256)
    whole = 0
    while True:
        stream = serial.open()
        channel = stream.channel
        sent = got = 0
        told = False
        while True:
            serial.wait(10)
            peer = channel.peer
            k = stream.readinto(buf, 256)
            if k == 0:
                report("end", channel.why, got)
                break
            if k:
                if buf[:k] != content(peer, got, k):
                    report("WRONG", channel.session, peer, got, k)
                    return
                got += k
            if sent < size and channel.state == UP:
                n = min(size - sent, 200)
                sent += stream.write(content(channel.session, sent, n), 0, n) or 0
            if not told and got >= size and sent == size and channel.waiting() == 0:
                told = True
                whole += 1
                report("all", got)
                if whole == rounds:
                    stream.close()
                    serial.drain(2000)
                    return


def run_locked(line, size):
    """Send and receive ``size`` bytes with the heap locked, and print ``locked N``; the other end is ``run`` in
    Python."""
    serial = Serial(line)
    stream = serial.open()
    channel = stream.channel
    while channel.state != UP:
        serial.wait(10)
    ours = content(channel.session, 0, size)
    theirs = content(channel.peer, 0, size)
    buf = bytearray(100)
    # Once around before: the first poll makes what the later ones use.
    serial.wait(1)
    got = _locked(serial, stream, ours, theirs, buf)
    print("locked", got)
    while True:
        serial.wait(10)
        stream.readinto(buf, 100)


def _locked(serial, stream, ours, theirs, buf):
    size = len(ours)
    channel = stream.channel
    sent = got = 0
    micropython.heap_lock()
    try:
        while got < size or sent < size or channel.waiting():
            serial.wait(10)
            k = stream.readinto(buf, 100)
            if k:
                for i in range(k):
                    if buf[i] != theirs[got + i]:
                        return -1
                got += k
            if sent < size:
                k = stream.write(ours, sent, min(150, size - sent))
                if k:
                    sent += k
    finally:
        micropython.heap_unlock()
    return got

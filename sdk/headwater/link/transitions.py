"""What may follow what on one channel of the link: the table of its states, and the rules it keeps.

Each end has a session number, another one for each stream that it opens. A stream is a pair of session numbers; what
belongs to it carries a key made of both, so that nothing of an old stream gets into a new one.

IDLE      no stream is wanted. Frames of a stream that the other end still believes in are answered with RESET.
OPENING   HELLO goes out, again and again; the other end's session number is not known.
HALF      it is known, and HELLO names it; whether the other end knows ours is not known.
UP        the other end knows ours: its HELLO named it, or a frame came with the key of the pair. Bytes can pass.
CLOSING   ``close`` was called: FIN is behind the last byte, and not yet acknowledged. What comes in is dropped.
ENDED     the other end closed or was reset, or the line is dead: what was received can be read, then the end.

- Data passes in UP and CLOSING only, so both ends agree on the pair before the first byte; sequence numbers begin at
  0.
- A HELLO with another session number than the one we are UP with says that the other end was reset (CHANGED): the
  stream has ended. It is not answered before the stream has been opened anew.
- A HELLO that does not name us while we are UP is doubtful: it may be a late one, or the other end was reset and
  chose the same number again. ASK tells: an end that has the stream answers ACK, one that has not answers RESET.
- RESET counts only when it carries the key of our own frames. It is never answered.
- A frame with the key of our own frames is our own, on a line that echoes. It is dropped; so is a HELLO with our own
  session number.
- When nothing was heard for a while, ASK goes out; when nothing was heard for ``dead_ms``, the stream is over (DEAD).
- Every FIN is acknowledged, in ENDED as well, so that the end that closed gets to know.
"""

from headwater.wire import const

IDLE = const(0)
OPENING = const(1)
HALF = const(2)
UP = const(3)
CLOSING = const(4)
ENDED = const(5)

OPEN = const(0)
CLOSE = const(1)
HEARD = const(2)
NAMED = const(3)
CHANGED = const(4)
FINISHED = const(5)
REFUSED = const(6)
DEAD = const(7)
DONE = const(8)
EVENTS = const(9)

#: The next state: ``NEXT[state * EVENTS + event]``.
NEXT = (
    # OPEN CLOSE HEARD NAMED CHANGED FINISHED REFUSED DEAD DONE
    b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"  # IDLE
    b"\x01\x00\x02\x03\x01\x01\x01\x01\x01"  # OPENING
    b"\x02\x00\x02\x03\x02\x02\x02\x01\x02"  # HALF
    b"\x03\x04\x03\x03\x05\x05\x05\x05\x03"  # UP
    b"\x04\x04\x04\x04\x00\x04\x00\x00\x00"  # CLOSING
    b"\x01\x00\x05\x05\x05\x05\x05\x05\x05"  # ENDED
)

# Why a stream ended: ``Channel.why``.
WHY_NOT = const(0)
WHY_CLOSED = const(1)
WHY_RESET = const(2)
WHY_DEAD = const(3)
WHY_LINE = const(4)

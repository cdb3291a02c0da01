"""Topics with queues, and consumers (docs/protocols/fmq.md, section 4).

    number = client.subscribe(b"jobs", group=b"workers")
    ...
    consume(client.session, number, 4, need_ack=True)

Each function returns the number of its request, which is passed to ``on_answer`` with the answer, or an error of
``ClientSession.subscribe``. The next poll sends the request. Requests allocate; receiving does not.
"""

from headwater.errors import E_ARGUMENT, E_UNKNOWN_ID
from headwater.fmq.frames import check_name
from headwater.fmq.session import CALL, LIVE, UNKNOWN, refused
from headwater.wire import const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.frames import Frame
    from headwater.fmq.session import ClientSession
    from headwater.types import Bytes

_REGISTER = const(2)
_CONSUME = const(10)
_ACK = const(14)
_UNREGISTER = const(15)
_LARGEST_WINDOW = const(1 << 29)


def register(session: "ClientSession", topic: "Bytes", queues: int = 1) -> int:
    """Create a topic with at least ``queues`` queues. E_TOPIC: the name is invalid."""
    bad = refused(check_name, topic)
    if bad or is_bytes(queues) or queues < 1:
        return bad or E_ARGUMENT
    return session.request(_REGISTER << 4, (topic,) if queues == 1 else (topic, queues))


def unregister(session: "ClientSession", topic: "Bytes") -> int:
    """Delete a topic and its messages. E_TOPIC: the name is invalid."""
    return refused(check_name, topic) or session.request(_UNREGISTER << 4, (topic,))


def consume(session: "ClientSession", subscription: int, window: int = 0, need_ack: bool = False) -> int:
    """Consume from a subscription with a group until ``on_answer`` is called.

    With ``need_ack`` each message is acknowledged, and ``window`` of them may be unacknowledged: at most
    ``receive_window`` (otherwise E_ARGUMENT), which is also the value of 0. E_UNKNOWN_ID: no such subscription.
    """
    asked = session.requests
    most = session.taken.places
    if not 0 <= window <= (most if need_ack else _LARGEST_WINDOW):
        return E_ARGUMENT
    i = asked.place(subscription)
    if i < 0 or asked.state[i] != LIVE:
        return E_UNKNOWN_ID
    session.find_request = find_request
    if need_ack and not window:
        window = most
    ident = asked.ident(i)
    n = session.request(_CONSUME << 4 | (1 if need_ack else 0), (ident, window) if window else (ident,))
    if n > 0:
        asked.more[asked.place(n)] = i
        asked.more[i] = 1 if need_ack else 0
    return n


def find_request(s: "ClientSession", f: "Frame") -> int:
    """Find the subscription or call of a CONSUMERESP. Return the type of the answer to it, 0 for no answer.

    Returns UNKNOWN if there is no such request. Sets ``source`` of the session, and ``ending`` to the place of a call.
    """
    asked = s.requests
    once = f.buf[f.at[0]] >> 4 == _CONSUME
    i = CALL if once else LIVE
    i = asked.find(i, i, f.buf, f.at[0], f.at[1])
    if i < 0:
        s.strays += 1
        return UNKNOWN
    s.source = asked.number(i)
    if once:
        s.ending = i
    return _ACK if asked.more[i] else 0

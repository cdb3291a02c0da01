"""Let the application acknowledge FMQ messages.

    client.session.auto_ack = False
    client.on_message = lambda frame: receipts.append(client.session.receipt)
    ...
    acknowledge(client.session, receipts.pop(0))

The next poll sends the acknowledgement. Nothing here allocates.
"""

from headwater.errors import E_AGAIN, E_UNKNOWN_ID
from headwater.fmq.session import ANSWER_SIZE, ANSWERED_2, OLD_2, WAITS_1, answer_taken
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.fmq.session import ClientSession

_ONLINE = const(2)


def acknowledge(session: "ClientSession", receipt: int) -> int:
    """Acknowledge the message with this ``receipt``. Return 0, or E_AGAIN if the transmit buffer is full.

    E_UNKNOWN_ID: it was acknowledged before, or its connection has ended and it will be redelivered.
    """
    taken = session.taken
    i = taken.place(receipt)
    if i < 0 or taken.state[i] == ANSWERED_2:
        return E_UNKNOWN_ID
    if session.state != _ONLINE or taken.state[i] == OLD_2:
        if taken.state[i] == WAITS_1:
            return E_UNKNOWN_ID
        # The redelivered message is answered at once.
        taken.state[i] = ANSWERED_2
        return 0
    if session.tx_size - session.tx_end < ANSWER_SIZE:
        return E_AGAIN
    answer_taken(session, i)
    return 0

"""$hub/time: the hub's own remote procedure that tells the time (docs/protocols/fmq.md, section 4)."""

from collections.abc import Callable

from headwater.mqtt import spec5
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode
from headwater_host.hub import frames
from headwater_host.hub.connection import Connection
from headwater_host.hub.errors import RefusedError
from headwater_host.lifetime import MACHINE, Clocks

#: The topic that is called.
TIME = "$hub/time"


def time_service(
    make_id: Callable[[], bytes], clocks: Clocks = MACHINE
) -> Callable[[Connection, bytes, bytes], None]:
    """Return the procedure. It refuses calls while the machine's clock is not synchronized."""

    def on_call(connection: Connection, ident: bytes, arguments: bytes) -> None:
        if not clocks.synchronized():
            raise RefusedError(
                spec5.IMPLEMENTATION_SPECIFIC_ERROR, "the clock of the hub is not synchronized"
            )
        answer = encode(DateTime(clocks.wall()))
        connection.send(frames.response(make_id(), ident, frames.message(None, (), answer)))

    return on_call

"""``headwater_board.service`` and a gateway that ends each stream at once: print the streams of ten seconds."""

from headwater.link.link import ENDED, IDLE, UP, Link
from headwater_board.service import Service


class Serial:
    """A serial line whose ends are in this program."""

    class Pump:
        error = None

        def pump(self):
            """The loop below moves the bytes."""

    def __init__(self, link):
        self.link = link
        self.pump = self.Pump()


now = 0
board, gateway = Link(7, 2), Link(9, 2)
service = Service(Serial(board))
service.ticks_ms = lambda: now
for now in range(0, 10000, 10):
    service.poll()
    channel = gateway.channels[1]
    if channel.state == UP:
        channel.close()
    elif channel.state == IDLE or channel.state == ENDED:
        channel.open()
    for link, to in ((board, gateway), (gateway, board)):
        link.poll(now)
        while True:
            n = link.out()
            if not n:
                break
            to.feed(link.out_buf, link.out_at, n, now)
            link.sent(n)
print("streams", board.channels[1].streams)

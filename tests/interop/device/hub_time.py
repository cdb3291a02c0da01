"""Set the clock from a hub: ``PORT``; prints what the clock is set to, or the reason code of the refusal."""

import sys


class Machine:
    """``machine`` with the clock that the unix build lacks."""

    class RTC:
        def datetime(self, when: "tuple[int, ...]") -> None:
            over.append(when)


over: "list[object]" = []
sys.modules["machine"] = Machine()

from headwater.fmq.calls import Calls  # noqa: E402 - after machine
from headwater.fmq.client import Client  # noqa: E402
from headwater_board.clock import ask_hub  # noqa: E402
from headwater_board.tcp import Tcp  # noqa: E402

client = Client(Tcp("127.0.0.1", int(sys.argv[1])), b"clock")
client.on_answer = lambda number, code: code and over.append(code)


def others(frame: "object") -> None:
    over.append("others")


client.session.on_result = others
client.connect()
assert ask_hub(client) > 0
# Results of the program's own calls go to its own handler, before and after.
for _ in range(2):
    assert Calls(client).call(b"$hub/topics") > 0
    n = len(over)
    while len(over) < min(n + 2, 3):
        client.wait(100)
print(over)
# Results that are lost with their connection leave one handler behind, the next one's.
for _ in range(3):
    assert ask_hub(client) > 0
    client.close()
    client.connect()
    assert client.session.on_result._others is others, "a handler is left for each lost result"
n = len(over)
assert ask_hub(client) > 0
for _ in range(300):
    client.wait(100)
    if len(over) > n:
        break
print(over[n:])
client.disconnect()

"""FMQ's RPC on MicroPython: ``PORT serve TOPIC COUNT`` answers so many calls, with what it was asked twice;
``PORT call TOPIC ARGUMENT...`` prints what each call brings."""

import sys

from headwater.fmq.calls import Calls
from headwater.fmq.client import Client
from headwater_board.tcp import Tcp

port, role, topic, *words = sys.argv[1:]
client = Client(Tcp("127.0.0.1", int(port)), role.encode())
session = client.session
calls = Calls(client)
over: "list[object]" = []


def asked(frame: object) -> None:
    arguments = frame.payload_bytes()
    assert calls.reply(frame, arguments + arguments) == 0
    over.append(arguments)


session.on_call = asked
session.on_result = lambda frame: over.append(frame.payload_bytes())
client.on_answer = lambda number, code: code and over.append((code, session.reason()))
client.connect()
if role == "serve":
    assert client.subscribe(b"$rpc/" + topic.encode()) > 0
    while len(over) < int(words[0]):
        client.wait(1000)
    client.flush(30000)
else:
    for n, word in enumerate(words):
        assert calls.call(topic.encode(), word.encode()) > 0
        while len(over) == n:
            client.wait(1000)
print(over)
client.disconnect()

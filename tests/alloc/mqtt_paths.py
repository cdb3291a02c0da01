# paths: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2, poll
# paths: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# paths: session refusals, publish again after a cut, publish again after a cut at PUBREL
# paths: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# paths: client against a full transport, a repetition is answered
# frames: publish qos 0, publish qos 1, publish qos 2, receive qos 0, receive qos 1, receive qos 2
# frames: keep-alive, large message to a sink, large message skipped, acknowledged by the application
# frames: session refusals, publish again after a cut, publish again after a cut at PUBREL
# frames: client publish qos 0, client window of qos 1, client publish qos 2, client receive qos 2
# frames: client against a full transport, a repetition is answered
"""MQTT 3.1.1, at every QoS."""

from pairs import OnLine, Pair, prove_client
from prove import prove_session

from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

prove_session(
    Pair(
        ClientSession(b"board", 10, False, rx_size=256, tx_size=128, outbox_size=2048, slots=4, window=4),
        ServerSession(rx_size=256, tx_size=128, outbox_size=2048, slots=4, window=4),
    )
)
prove_client(
    OnLine(
        ClientSession(b"board", clean_start=False, keep_alive=0),
        ServerSession(rx_size=2048, tx_size=512, outbox_size=512, slots=4),
    )
)

"""The blocking clients.

    with Client("broker.local", identifier="reader", reconnect=True) as client:
        client.subscribe("boards/#", qos=1)
        for message in client.messages(timeout=60):
            print(message.topic, message.payload)
            client.publish("seen", str(message.topic), qos=1)

Every method may be called from every thread, concurrently. A thread that has called ``get`` or iterates over
``messages`` may publish in between, and so may ``on_message``.
"""

from typing import Any

from headwater_host.client import fmq, mqtt
from headwater_host.client.mqtt import Message
from headwater_host.client.threads import Delivery, ThreadedClient, blocking, constructor
from headwater_host.mqtt_properties import Properties

__all__ = ["Client", "Delivery", "FmqClient", "Message"]


class Client(ThreadedClient[mqtt.Client, Message]):
    """``headwater_host.client.mqtt.Client`` for threads: the same parameters, methods and errors.

    ``with`` connects and disconnects; ``connect`` and ``disconnect`` do the same. After a lost connection ``connect``
    resumes the session. With ``reconnect=True`` the client reconnects automatically, and threads in ``publish``,
    ``get`` or ``messages`` wait meanwhile. A client that is still connected when the interpreter exits sends
    DISCONNECT.

    SystemExit (``sys.exit()``) and KeyboardInterrupt in a handler disconnect the client and end the program. Calls that
    wait raise the exception. When the main thread waits elsewhere, it gets SIGINT, and ``with`` raises the handler's
    exception in place of KeyboardInterrupt. A program that ignores SIGINT gets SIGTERM instead.

    Handlers of ``logger`` run on the loop's thread. A call there would wait for itself, and raises ReentrantError.
    """

    @constructor(mqtt.Client)
    def __init__(self, *args: Any, **options: Any):
        """Take the parameters of ``headwater_host.client.mqtt.Client``."""

    subscribe = blocking(mqtt.Client.subscribe)
    unsubscribe = blocking(mqtt.Client.unsubscribe)

    @property
    def granted(self) -> dict[str, int]:
        """The QoS that the broker granted, by filter."""
        return self._client.granted

    @property
    def server_properties(self) -> Properties:
        """The properties of CONNACK (MQTT 5.0)."""
        return self._client.server_properties

    @property
    def disconnect_properties(self) -> Properties | None:
        """Properties to send with DISCONNECT (MQTT 5.0)."""
        return self._client.disconnect_properties

    @disconnect_properties.setter
    def disconnect_properties(self, properties: Properties | None) -> None:
        self._client.disconnect_properties = properties


class FmqClient(ThreadedClient[fmq.Client, fmq.Message]):
    """``headwater_host.client.fmq.Client`` for threads; it can call remote procedures, but not provide them."""

    @constructor(fmq.Client)
    def __init__(self, *args: Any, **options: Any):
        """Take the parameters of ``headwater_host.client.fmq.Client``."""

    register = blocking(fmq.Client.register)
    unregister = blocking(fmq.Client.unregister)
    subscribe = blocking(fmq.Client.subscribe)
    unsubscribe = blocking(fmq.Client.unsubscribe)
    consume = blocking(fmq.Client.consume)
    consume_once = blocking(fmq.Client.consume_once)
    call = blocking(fmq.Client.call)

    def reject(self, message: fmq.Message, reason_code: int = 0x80) -> None:
        """Return the message of a consumer with ``need_ack`` to the group, which counts as a delivery attempt."""
        self._run(message.reject(reason_code))

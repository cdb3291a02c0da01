"""Options that only the MQTT client has."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headwater_host.client import options
from headwater_host.client.mqtt.filters import Filters
from headwater_host.mqtt_properties import Properties

#: A version of MQTT; or its protocol level, 3, 4 or 5.
Version: TypeAlias = Literal["3.1", "3.1.1", "5.0"]
ProtocolLevel: TypeAlias = Literal[3, 4, 5]


@dataclass(frozen=True, kw_only=True)
class SessionOptions(options.SessionOptions):
    """The session of an MQTT client; for ``clean_start``, ``store`` and ``auto_ack`` see the base class.

    - ``expiry``: how many seconds the broker keeps the session after the connection ends (MQTT 5.0). By default for
      ever, or with ``clean_start`` not at all.
    - ``subscriptions``: filters, each with its QoS or at QoS 0, to subscribe to when the client connects.
    - ``properties``: further properties of CONNECT (MQTT 5.0, ``headwater_host.mqtt_properties``).
    - ``puback_ends_qos_2``: True for brokers that do not implement QoS 2 and answer its messages with PUBACK, as
      RabbitMQ does. These messages then arrive at least once. Otherwise every such PUBACK closes the connection, as
      MQTT requires.
    """

    expiry: int | None = None
    subscriptions: Filters = ()
    properties: Properties | None = None
    puback_ends_qos_2: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits(options.Limits):
    """Bounds of an MQTT client; for the other fields see the base class. A client announces them with MQTT 5.0.

    - ``packet_size``: at least 16. With MQTT 5.0 a broker that sends a larger packet gets DISCONNECT with reason code
      0x95. Earlier versions cannot announce it: there the client skips larger messages, that is, acknowledges them,
      counts them in ``skipped`` and logs a warning.
    - ``receive_maximum``: how many QoS 1 and 2 messages the broker may send before the first of them is acknowledged,
      1 to 65535, which is the default. A broker that sends more gets DISCONNECT with reason code 0x93. With
      ``auto_ack`` a QoS 1 message is acknowledged at once while ``messages`` has room.
    - ``receive_limit``: how many such messages are accepted before that; by default ``receive_maximum``. Set a larger
      one for brokers that exceed the receive maximum, as mosquitto 2.0.11 does after the first acknowledgement.
    - ``topic_aliases``: how many topic aliases the broker may use. The client keeps these topics in memory.
    - ``outgoing_topic_aliases``: how many topic aliases the client uses at QoS 0, within the broker's maximum.
    """

    receive_maximum: int | None = None
    receive_limit: int | None = None
    topic_aliases: int = 0
    outgoing_topic_aliases: int = 0

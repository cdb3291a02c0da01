"""One wake-up of a deep-sleep sensor, for ``tools.round_trips``: arguments are the client, the host and the port."""

import sys
import time

client, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Machine:
    """``machine.deepsleep``, which the unix build lacks."""

    DEEPSLEEP_RESET = 4

    def deepsleep(self, ms):
        sys.exit()


def headwater():
    sys.modules["machine"] = Machine()
    from headwater.mqtt.client import Client
    from headwater.mqtt.keeper import Keeper
    from headwater_board import sleep
    from headwater_board.tcp import Tcp

    keeper = Keeper(Client(Tcp(host, port), b"sensor", clean_start=False))
    keeper.publish(b"sensor/celsius", b"21.5", 1)
    sleep.cycle(keeper, 600000)


def umqtt():
    from umqtt.simple import MQTTClient

    begin = time.ticks_ms()
    made = MQTTClient("sensor", host, port)
    made.connect(False)
    made.publish(b"sensor/celsius", b"21.5", qos=1)
    made.disconnect()
    print("awake", time.ticks_diff(time.ticks_ms(), begin), "ms")


{"headwater": headwater, "umqtt.simple": umqtt}[client]()

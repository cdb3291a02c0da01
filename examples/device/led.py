"""An LED that follows a retained topic."""

from machine import Pin

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

# The LED of a Pico W; the number of a pin on other boards.
led = Pin("LED", Pin.OUT)


def follow(message: "Packet") -> None:
    """Switch the LED, and say what it is now."""
    led.value(message.payload_bytes() == b"on")
    keeper.publish(b"board-1/led/state", b"on" if led.value() else b"off", 1, True)


client = Client(Tcp("broker.local"), b"board-1", clean_start=False)
client.on_message = follow
keeper = Keeper(client, network=Wifi([("workshop", "correct horse")]))
keeper.subscribe(b"board-1/led", 1)
keeper.start()
while keeper.wait(1000) == 0:
    pass

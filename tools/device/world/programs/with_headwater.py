from world.rig import HOST, PASSWORD, SSID

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

n = commands = 0


def received(message):
    global commands
    commands += 1


def run():
    global n
    client = Client(Tcp(HOST, resolver=Resolver()), b"board", clean_start=False, keep_alive=30)
    client.on_message = received
    keeper = Keeper(client, network=Wifi([(SSID, PASSWORD)]))
    keeper.subscribe(b"board/command", 1)
    keeper.start()
    while True:
        if keeper.publish(b"board/n", b"%08d" % n, 1) >= 0:
            n += 1
        keeper.wait(1000)

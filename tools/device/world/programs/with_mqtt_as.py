import asyncio

from mqtt_as import MQTTClient, config
from world.rig import HOST, PASSWORD, SSID

n = commands = 0


async def messages(client):
    global commands
    async for topic, message, retained in client.queue:
        commands += 1


async def up(client):
    while True:
        await client.up.wait()
        client.up.clear()
        await client.subscribe("board/command", 1)


async def main(client):
    global n
    await client.connect()
    asyncio.create_task(up(client))
    asyncio.create_task(messages(client))
    while True:
        await asyncio.sleep(1)
        await client.publish("board/n", "%08d" % n, qos=1)
        n += 1


def run():
    config["ssid"] = SSID
    config["wifi_pw"] = PASSWORD
    config["server"] = HOST
    config["client_id"] = "board"
    config["queue_len"] = 1
    config["keepalive"] = 30
    asyncio.run(main(MQTTClient(config)))

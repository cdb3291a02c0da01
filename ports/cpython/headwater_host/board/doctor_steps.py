"""Steps of ``headwater board doctor`` on the board: from its settings to an acknowledged message.

Each step is code for the board that prints what it found, or raises; a text that starts with "-" means that there is
nothing to check. Later steps use the names of earlier ones. The steps use the board's own modules, so a step that
passes here passes in the board's program.
"""

from typing import NamedTuple


class Step(NamedTuple):
    """A step: its name, its code, the seconds that it may be silent, and remedies.

    A remedy belongs to a pattern, which the failure matches; the first match counts.
    """

    name: str
    code: str
    seconds: float
    remedies: dict[str, str]


#: Steps in their order.
STEPS = (
    Step(
        "settings",
        """
import time
from headwater_board.settings import load
class Failed(Exception):
    pass
def wait(seconds, done):
    end = time.ticks_add(time.ticks_ms(), seconds * 1000)
    while not done():
        if time.ticks_diff(end, time.ticks_ms()) < 0:
            return False
        time.sleep_ms(20)
    return True
settings = load()
broker, serial = settings["broker"], settings["serial"]
tls = not serial and broker["tls"]
if settings["update"]:
    from headwater_board.device import check_files
    check_files("/headwater.json", "update", settings["update"], ("key_file",))
print("serial link" if serial else "%s at %s" % (broker["protocol"].upper(), broker["host"]))
""",
        20,
        {
            "ImportError": "`headwater board install headwater-device` adds the module that reads the settings",
            "key_file": "copy the key that signs this board's updates: `headwater board files put FILE NAME`",
            "": "correct /headwater.json: `headwater board install --settings FILE`, or --wifi and --broker",
        },
    ),
    Step(
        "WiFi",
        """
def joined():
    # Also without an address: RP2 has a status for it, an ESP32 a signal.
    if interface.poll():
        return True
    if network.STAT_GOT_IP == 3:
        return nic.status() == 2
    try:
        return nic.status("rssi") < 0
    except OSError:
        return False
def ended():
    # A board that is well may need a second attempt, and hides the first one's failure then.
    global reason
    if joined():
        return True
    if interface.reason not in ("idle", "connecting", "no address yet", "connected"):
        reason = interface.reason
    return interface.reconnects >= 2 * len(settings["wifi"])
if settings["wifi"]:
    import network
    from headwater_board.device import make_network
    interface = make_network(settings, lambda: None)
    nic = interface.nic
    began = time.ticks_ms()
    interface.start()
    reason = ""
    wait(40, ended)
    if not joined():
        interface.stop()
        nic.active(True)
        found = sorted({one[0].decode() for one in nic.scan()})
        nic.active(False)
        wanted = [one["ssid"] for one in settings["wifi"]]
        if not [one for one in wanted if one in found]:
            reason = "no access point found"
        reason = reason or "no answer"
        raise Failed("%s: %s; in range: %s" % (", ".join(wanted), reason, ", ".join(found) or "no network"))
    print("joined %s after %d ms" % (nic.config("ssid"), time.ticks_diff(time.ticks_ms(), began)))
elif settings["ethernet"]:
    from headwater_board.device import make_network
    interface = make_network(settings, lambda: None)
    nic = interface.nic
    interface.start()
    print("- Ethernet")
else:
    print("- not in the settings")
""",
        60,
        {
            "wrong password|handshake": "enter the password again: `headwater board install --wifi SSID`",
            "no access point found": (
                "compare the network's name letter by letter and move closer; boards need 2.4 GHz: "
                "`headwater board install --wifi SSID`"
            ),
            "": "restart the access point; check its blocked devices, its security mode and its channel",
        },
    ),
    Step(
        "address",
        """
if settings["wifi"]:
    if not wait(15, interface.poll):
        raise Failed("joined the network, but DHCP gives no address")
    print("%s, mask %s, gateway %s, DNS %s; signal %d dBm" % (nic.ifconfig() + (nic.status("rssi"),)))
elif settings["ethernet"]:
    if not wait(30, interface.poll):
        raise Failed("Ethernet: no link, or DHCP gives no address; status %d" % nic.status())
    print("%s, mask %s, gateway %s, DNS %s" % nic.ifconfig())
else:
    print("- not in the settings")
""",
        40,
        {
            "Ethernet": "check the cable, the chip's pins in the settings, and the router's DHCP server",
            "": "check the router's DHCP server, or set a static `address` in the settings",
        },
    ),
    Step(
        "name",
        """
import socket
if serial:
    print("- serial link")
else:
    address = socket.getaddrinfo(broker["host"], 1)[0][-1]
    print("%s is found" % broker["host"])
""",
        30,
        {
            "": (
                "the name server does not know the broker's host: correct the name, or use the address: "
                "`headwater board install --broker mqtt://ADDRESS`"
            )
        },
    ),
    Step(
        "TCP",
        """
from headwater_board.device import make_dialer
dialer = make_dialer(settings)
if serial:
    print("- serial link")
else:
    from headwater_board.tcp import Tcp
    tcp = Tcp(dialer.host, dialer.port, 8000)
    began = time.ticks_ms()
    tcp.open().close()
    tcp.hang_up()
    print("port %d of %s, after %d ms" % (dialer.port, dialer.host, time.ticks_diff(time.ticks_ms(), began)))
""",
        30,
        {
            "ECONNREFUSED": (
                "nothing listens at that port: start the broker, check its port, and let it listen on the network "
                "(mosquitto 2 listens on its own machine only, without a `listener` in its configuration)"
            ),
            "ETIMEDOUT|UNREACH": "no answer: check the address and the firewall of the broker's machine",
            "ENOENT": "a certificate file of the settings is missing: `headwater board install --ca FILE`",
            "": "check the broker's host and port: `headwater board install --broker mqtt://HOST:PORT`",
        },
    ),
    Step(
        "time",
        """
if tls:
    from headwater_board.clock import Sntp, is_set
    if not is_set():
        server = settings["ntp"] or "pool.ntp.org"
        sntp = Sntp((server,))
        answered = wait(10, sntp.poll)
        sntp.close()
        if not answered:
            raise Failed("the clock is not set, and %s does not answer" % server)
    print("%04d-%02d-%02d %02d:%02d UTC" % time.gmtime()[:5])
else:
    print("- TLS is not in the settings")
""",
        30,
        {"": "TLS checks dates: allow UDP port 123, or set `ntp` in the settings to a server nearby"},
    ),
    Step(
        "TLS",
        """
name = (broker["client_id"] or "board") + "-doctor"
options = {one: broker[one].encode() for one in ("user", "password") if broker[one] is not None}
refused = []
if broker["protocol"] == "fmq":
    from headwater.fmq.client import Client
    options["boot"] = int(time.time())
else:
    from headwater.mqtt.client import Client
    if broker["version"] == "5.0":
        from headwater.mqtt.v5 import ClientV5
        options["version"] = ClientV5()
        options["version"].on_refused = lambda number, code: refused.append(code)
client = Client(dialer, name.encode(), **options)
error = None
if not serial or serial["line"] != "usb":
    try:
        client.connect()
    except Exception as e:
        error = e
if not tls:
    print("- not in the settings")
elif dialer.error is not None:
    raise error
else:
    print("the certificate is valid for " + dialer.server_name)
""",
        60,
        {
            "(?i)common name|cn.?mismatch": (
                "the certificate names another host: use that name, or set `broker.tls.server_name`"
            ),
            "(?i)expired|future|validity": "compare the certificate's dates with the time above",
            "(?i)trusted|signed|CA ": "the certificate is not from the board's CA: `headwater board install --ca FILE`",
            "ENOMEM|MemoryError": "the board's memory is short: docs/tls-on-boards.md",
            "ETIMEDOUT": "the server does not speak TLS at this port; mostly it is 8883",
            "": "check that the server speaks TLS at this port, and whether it requires a client certificate",
        },
    ),
    Step(
        "CONNECT",
        """
if serial and serial["line"] == "usb":
    print("- the serial link uses this port: check it with `headwater gateway --serial`")
elif error is not None:
    raise Failed("%s, return code %d" % (error, client.session.return_code))
else:
    print("accepted as " + name)
""",
        20,
        {
            r"return code (4|5|134|135)\b": (
                "correct user and password: `headwater board install --broker mqtt://USER@HOST`"
            ),
            r"return code (2|133)\b": "correct the client identifier: `headwater board install --client-id ID`",
            r"return code (1|132)\b": "the broker does not speak this version: set `broker.version` in the settings",
            "TIMEOUT": "the server does not answer CONNECT: is it a broker, and does this port need TLS?",
            "": "look at the broker's log: it may require TLS, or another port",
        },
    ),
    Step(
        "publish",
        """
if client.connected:
    topic = (settings["topic"] or broker["client_id"] or "board") + "/doctor"
    number = client.publish(topic.encode(), b"doctor", 1)
    if number < 0:
        from headwater.errors import name_of
        raise Failed(name_of(number))
    print("QoS 1 to " + topic)
else:
    print("- no connection")
""",
        20,
        {"E_LIMIT": "the broker offers QoS 0 only", "": "look at the broker's log"},
    ),
    Step(
        "acknowledgement",
        """
if client.connected:
    began = time.ticks_ms()
    client.flush(10000)
    if refused:
        raise Failed("the broker refused the message, reason code %d" % refused[0])
    print("after %d ms" % time.ticks_diff(time.ticks_ms(), began))
    client.disconnect()
else:
    print("- no connection")
""",
        30,
        {"": "allow this user to publish to the topic above, and look at the broker's log"},
    ),
)

"""A whole board as one object, built from its settings: network, connection, store, watchdog, identity.

    device = Device()
    device.subscribe(b"lamp", 1)
    device.on_message = lambda message: print(message.payload_bytes())
    with device:
        while device.wait(1000) == 0:
            device.send({"celsius": 21.5})

Only the modules that the settings need are imported. ``docs/board-settings.md`` describes the settings.
"""

import json
import sys
from binascii import hexlify

from micropython import const

from headwater_board.boots import Boots
from headwater_board.ids import board_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.types import Dialer, Network
    from headwater_board.resolver import Resolver

# Of ``headwater.errors``, whose file a program of the components need not load.
_E_TOO_LARGE = const(-23)
_E_STORE = const(-26)
_E_LIMIT = const(-27)


class Device:
    """``settings`` is the path of the settings, or what ``headwater_board.settings`` returned.

    ``network`` and ``dialer`` replace those of the settings, for instance by Ethernet.

    - ``name`` is the client identifier, ``topic`` the prefix of the board's topics.
    - ``keeper``, its ``client``, ``network``, ``boots``, ``watchdog``, ``log`` and ``update`` are the parts. Those
      that the settings do not name are None.
    - ``start``, ``wait``, ``flush``, ``publish``, ``subscribe`` and ``unsubscribe`` are the keeper's methods.
    - ``on_message(message)``, ``on_online(session_present)`` and ``on_offline(status)`` are the client's and the
      keeper's handlers.

    A watchdog runs from the construction on, so a program calls ``poll`` a few times a second, or ``wait``.
    ``headwater_board.aio.Client(device.keeper)`` polls in a task. As a context manager, the device starts and stops,
    and ``boots`` records the exception that ends it.

    Raises SettingsError for settings that are wrong, and for what they name if the board does not have it: a file, a
    pin, a module. Its text names the file, the key and the cause.
    """

    def __init__(
        self,
        settings: "str | dict[str, Any]" = "/headwater.json",
        network: "Network | None" = None,
        dialer: "Dialer | None" = None,
    ):
        name = "settings"
        if isinstance(settings, str):
            name = settings
            settings = _load(settings)
        self.settings = settings
        #: What the settings are called in errors.
        self.settings_name = name
        self.boots = Boots()
        self.name: str = settings["broker"]["client_id"] or "board-" + hexlify(board_id()).decode()
        self.topic = (settings["topic"] or self.name).encode()
        boots = self.boots
        self.network = network or _made(
            name,
            "ethernet" if settings["ethernet"] else "wifi",
            lambda: make_network(settings, lambda: boots.reset("network")),
        )
        self.resolver: Any = None
        self._cycle: Any = None
        addresses: Any = None
        if settings["sleep"]:
            from headwater_board.sleep import check, cycle, load_addresses

            _made(name, "sleep.seconds", lambda: check(settings["sleep"]["seconds"] * 1000))
            self._cycle = cycle
            addresses = load_addresses()
        if self.network is not None:
            from headwater_board.resolver import Resolver

            self.resolver = Resolver(addresses=addresses)
        self.keeper = keeper = _keeper(self, dialer or _dialer(self))
        self.client = keeper.client
        self.log: Any = None
        if settings["log"]:
            from headwater_board.logs import LogRing

            self.log = LogRing(settings["log"]["size"])
            log_topic = settings["log"]["topic"]
            self._log_topic = log_topic.encode() if log_topic else self.topic + b"/log"
        self._service: Any = None
        if settings["serial"] and dialer is None:
            from headwater_board.service import Service

            self._service = Service(self.client.dialer, self.log)
        self.update: Any = None
        if settings["update"]:
            check_files(name, "update", settings["update"], ("key_file",))
            self.update = _made(name, "update", lambda: _receiver(self, settings["update"]))
        self._handler: Any = None
        self._filter = self._message
        # A board that sleeps between its messages does not report each start.
        self._reported = self.boots.cause == "deep sleep"
        # The keeper's own loops, and the asyncio client, poll the whole device.
        self._poll: Callable[[], int] = keeper.poll
        keeper.poll = self.poll
        self.start: Callable[[], None] = keeper.start
        self.wait: Callable[[int], int] = keeper.wait
        self.flush: Callable[[int], int] = keeper.flush
        self.publish: Callable[..., int] = keeper.publish
        self.subscribe: Callable[..., int] = keeper.subscribe
        self.unsubscribe: Callable[..., int] = keeper.unsubscribe
        self.watchdog: Any = None
        # The loader of updates may have started one.
        running = getattr(sys.modules.get("headwater_board.loader"), "watchdog", None)
        timeout_ms = settings["watchdog_ms"]
        if timeout_ms or running is not None:
            from headwater_board.watchdog import Watchdog

            # ``running`` is ignored if the settings have a time of their own.
            options = (timeout_ms,) if timeout_ms else (8000, running)
            self.watchdog = _made(name, "watchdog_ms", lambda: Watchdog(*options))

    def stop(self, timeout_ms: int = 0) -> int:
        """Stop the keeper and the network: as the keeper's ``stop``."""
        status: int = self.keeper.stop(timeout_ms)
        if self.network is not None:
            self.network.stop()
        return status

    def __enter__(self) -> "Device":
        self.start()
        return self

    def __exit__(self, kind: object, error: "BaseException | None", trace: object) -> None:
        # Not KeyboardInterrupt, which stops the program from the console.
        if isinstance(error, Exception):
            self.boots.failed(error)
        self.stop(0 if error else 5000)

    def poll(self) -> int:
        """Drive the device. Return the status of the keeper's ``poll``. Allocates nothing while connected."""
        if self.update is not None:
            self._intercept()
        status = self._poll()
        if self.watchdog is not None:
            self.watchdog.fed(status)
        if not self._reported and self.client.connected:
            self._report()
        if self._service is not None:
            self._service.poll()
        elif self.log is not None and self.client.connected and self.log.waiting():
            self.log.publish(self.publish, self._log_topic)
        return status

    def sleep(self) -> None:
        """Connect, deliver what was published, and sleep as the settings say. The board then restarts."""
        times = self.settings["sleep"]
        self._cycle(
            self.keeper,
            times["seconds"] * 1000,
            times["awake_ms"],
            boots=self.boots,
            resolver=self.resolver,
        )

    def send(self, values: "dict[str, Any]", qos: int = 1) -> int:
        """Publish values as JSON, with the identity of the message (board, boot, seq): as ``publish``."""
        reading = {"board": self.name, "boot": self.boots.boot, "seq": self.boots.next_seq()}
        reading.update(values)
        return self.publish(self.topic, json.dumps(reading).encode(), qos)

    def _report(self) -> None:
        topic = self.topic + b"/boot"
        report = self.boots.report(self.name)
        status = self.publish(topic, report, 1)
        if status in (_E_TOO_LARGE, _E_STORE, _E_LIMIT):
            # The outbox is too small, its flash fails, or the server takes QoS 0 only: do without the outbox, and do
            # not try again at each poll.
            status = self.publish(topic, report)
        self._reported = status >= 0 or status == _E_TOO_LARGE

    def _intercept(self) -> None:
        """Poll ``update``, and offer it each message first, before any handler."""
        session = self.client.session
        if session.on_message is not self._filter:
            self._handler = session.on_message
            session.on_message = self._filter
        self.update.poll()

    def _message(self, message: "Any") -> object:
        if self.update.take(message) or self._handler is None:
            return None
        result: object = self._handler(message)
        return result

    @property
    def on_message(self) -> "Any":
        """Called with the reusable cursor of each message that arrives."""
        return self.client.on_message

    @on_message.setter
    def on_message(self, handler: "Any") -> None:
        self.client.on_message = handler

    @property
    def on_offline(self) -> "Callable[[int], object] | None":
        """Called with the status of a connection that was lost."""
        handler: Callable[[int], object] | None = self.keeper.on_offline
        return handler

    @on_offline.setter
    def on_offline(self, handler: "Callable[[int], object] | None") -> None:
        self.keeper.on_offline = handler

    @property
    def on_online(self) -> "Callable[[bool], object] | None":
        """Called after a connection was accepted, with whether the server had kept the session."""
        handler: Callable[[bool], object] | None = self.keeper.on_online
        return handler

    @on_online.setter
    def on_online(self, handler: "Callable[[bool], object] | None") -> None:
        self.keeper.on_online = handler


def _load(path: str) -> "dict[str, Any]":
    """Load the settings, and free the module, whose rules are large."""
    import headwater_board.settings

    settings: dict[str, Any] = headwater_board.settings.load(path)
    del sys.modules["headwater_board.settings"], headwater_board.settings
    return settings


def _made(name: str, key: str, make: "Callable[[], Any]", remedy: str = "") -> "Any":
    """Return what ``make`` returns. Its error becomes a SettingsError with the settings' name, the key and a remedy."""
    try:
        return make()
    except ImportError as e:
        error: Exception = e
        remedy = ": install the component that has it"
    except (OSError, ValueError) as e:
        error = e
    raise _error(name, "%s: %s%s" % (key, error, remedy))


def _error(name: str, text: str) -> ValueError:
    from headwater_board.settings import SettingsError

    return SettingsError("%s: %s" % (name, text))


def check_files(name: str, table: str, files: "dict[str, Any]", keys: "tuple[str, ...]") -> None:
    """Raise SettingsError unless the files of these keys can be read and are not empty."""
    for key in keys:
        path = files[key]
        if path is not None:
            try:
                with open(path, "rb") as file:
                    wrong = "" if file.read(1) else "is empty"
            except OSError as e:
                wrong = "cannot be read (%s)" % e
            if wrong:
                text = '%s.%s is "%s", which %s: copy the file to the board'
                raise _error(name, text % (table, key, path, wrong))


def make_network(settings: "dict[str, Any]", reset: "Callable[[], object] | None" = None) -> "Network | None":
    """Return the WiFi or Ethernet of the settings, or None; ``reset`` resets the board.

    Raises ValueError or OSError if the board cannot have it.
    """
    address = settings["address"]
    options: dict[str, Any] = {
        "address": address and (address["ip"], address["mask"], address["gateway"], address["dns"]),
        "offline_ms": (settings["reset_s"] or 0) * 1000,
        "reset": reset,
    }
    ethernet = settings["ethernet"]
    if ethernet:
        import network

        from headwater_board.ethernet import Ethernet, make_nic

        if settings["hostname"] is not None:
            network.hostname(settings["hostname"])
        return Ethernet(make_nic(ethernet), **options)
    if not settings["wifi"]:
        return None
    from headwater_board.wifi import Wifi

    return Wifi(
        [_network(one["ssid"], one["password"], one["security"]) for one in settings["wifi"]],
        settings["country"],
        settings["hostname"],
        settings["tx_power"],
        settings["power_save"],
        **options,
    )


def _network(ssid: str, password: str, security: str) -> "tuple[Any, ...]":
    if security == "wpa2":
        return (ssid, password or None)
    import network

    return (
        ssid,
        password or None,
        None,
        getattr(network.WLAN, "SEC_WPA3" if security == "wpa3" else "SEC_WPA2_WPA3"),
    )


def make_dialer(settings: "dict[str, Any]", resolver: "Resolver | None" = None) -> "Dialer":
    """Return the dialer to the broker of the settings."""
    serial = settings["serial"]
    if serial:
        from headwater_board.serial import Serial

        pins = {name: serial[name] for name in ("tx", "rx") if serial[name] is not None}
        return Serial(serial["line"], serial["baudrate"], channels=2, **pins)
    broker = settings["broker"]
    port = broker["port"] or (7760 if broker["protocol"] == "fmq" else 8883 if broker["tls"] else 1883)
    if broker["tls"]:
        from headwater_board.tls import Tls

        return Tls(broker["host"], port, resolver=resolver, **broker["tls"])
    from headwater_board.tcp import Tcp

    return Tcp(broker["host"], port, resolver=resolver)


def _dialer(device: Device) -> "Dialer":
    settings = device.settings
    tls = settings["broker"]["tls"]
    key = "serial" if settings["serial"] else "broker"
    if key == "broker" and tls:
        key = "broker.tls"
        check_files(device.settings_name, key, tls, ("ca", "cert", "key"))
    remedy = ": give the number and the pins of another UART" if settings["serial"] else ""
    made: Dialer = _made(device.settings_name, key, lambda: make_dialer(settings, device.resolver), remedy)
    return made


def _keeper(device: Device, dialer: "Dialer") -> "Any":
    broker = device.settings["broker"]
    options: dict[str, Any] = {
        name: value.encode() for name in ("user", "password") if (value := broker[name]) is not None
    }
    options.update(keep_alive=broker["keep_alive"], clean_start=broker["clean_start"])
    keeper: Any
    client: Any
    protocol = 0
    if broker["protocol"] == "fmq":
        from headwater.fmq import client, keeper

        options["boot"] = device.boots.boot
    else:
        from headwater.mqtt import client, keeper

        protocol = 4
        if broker["version"] == "5.0":
            from headwater.mqtt.v5 import ClientV5

            protocol = 5
            options["version"] = ClientV5()
    outbox = device.settings["outbox"]
    if outbox:
        from headwater_board.flash import flash_outbox

        options["outbox"] = _made(
            device.settings_name,
            "outbox.path",
            lambda: flash_outbox(outbox["path"], outbox["size"], protocol=protocol),
            ": create its directory",
        )
    else:
        options["outbox_size"] = 2048
    made = _made(
        device.settings_name, "broker", lambda: client.Client(dialer, device.name.encode(), **options)
    )
    return keeper.Keeper(made, network=_timed(device))


def _timed(device: Device) -> "Network | None":
    """Return the network, which counts as up once the clock is set, if there is something to set it by."""
    server = device.settings["ntp"] or (device.settings["broker"]["tls"] and "pool.ntp.org")
    if not server or device.network is None:
        return device.network
    from headwater_board.clock import Sntp, TimedNetwork
    from headwater_board.resolver import Resolver

    return TimedNetwork(device.network, Sntp((server,), Resolver()))


def _receiver(device: Device, update: "dict[str, Any]") -> "Any":
    from headwater_board.ota import Receiver, read_key

    topic = update["topic"].encode()
    if device.settings["broker"]["protocol"] == "fmq":
        device.keeper.subscribe(topic)
    else:
        device.keeper.subscribe(topic, 1)
    boots = device.boots
    key = read_key(update["key_file"])
    return Receiver(device.keeper, topic, key, device.name, restart=lambda: boots.reset("update"))

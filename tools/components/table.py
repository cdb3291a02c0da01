"""The components, and the files that they consist of.

A file ("unit") is one module on the board that holds the code of one or more modules of the core; the names of these
modules stay importable. A component lists modules for programs to import; the units that they need come with them.
Components share units: installing two of them leaves one copy of each.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Unit, named after its package: it holds these modules and what they import of the same package. Every other module of
#: the core is a unit of its own, for instance the optional parts of a client.
UNITS: Mapping[str, tuple[str, ...]] = {
    "headwater": ("headwater", "headwater.wire", "headwater.errors"),
    "headwater.endpoint": ("headwater.connection",),
    "headwater.mqtt": ("headwater.mqtt", "headwater.mqtt.client"),
    "headwater.fmq": ("headwater.fmq", "headwater.fmq.client"),
    "headwater.link": ("headwater.link", "headwater.link.link", "headwater.link.pump"),
    "headwater.ibmmq": ("headwater.ibmmq", "headwater.ibmmq.segments"),
}

#: Modules whose public numbers go into a file of their own, which a program loads only if it imports the module: within
#: the unit the numbers are folded into the code.
NUMBERS = frozenset({"headwater.errors", "headwater.connection"})

_NET = ("headwater_board.tcp", "headwater_board.tls", "headwater_board.ids")
_MQTT = (
    "headwater.mqtt.client",
    "headwater.mqtt.keeper",
    "headwater.mqtt.backlog",
    "headwater.mqtt.spec",
    "headwater.mqtt.manual_ack",
    "headwater.mqtt.topics",
    "headwater.reasons",
    "headwater.streaming",
)
_FMQ = (
    "headwater.fmq.client",
    "headwater.fmq.keeper",
    "headwater.fmq.calls",
    "headwater.fmq.manual_ack",
    "headwater.fmq.names",
    "headwater.fmq.numbers",
    "headwater.fmq.queues",
    "headwater.fmq.spec",
    "headwater.fmq.values",
    "headwater.streaming",
)
_LINK = ("headwater.link.link", "headwater_board.serial")
_STORE = ("headwater.journal", "headwater_board.flash")
_LIFE = (
    "headwater_board.boots",
    "headwater_board.watchdog",
    "headwater_board.clock",
    "headwater_board.logs",
    "headwater_board.sleep",
    "headwater_board.service",
)

#: Component: the modules that it is for.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "headwater-mqtt": (*_MQTT, *_NET),
    "headwater-mqtt5": (
        *_MQTT,
        "headwater.mqtt.client5",
        "headwater.mqtt.v5",
        "headwater.mqtt.v31",
        "headwater.mqtt.topic_aliases",
        "headwater.mqtt.spec5",
        *_NET,
    ),
    "headwater-fmq": (*_FMQ, *_NET),
    "headwater-wifi": (
        "headwater_board.wifi",
        "headwater_board.wifi_reasons",
        "headwater_board.ethernet",
        "headwater_board.resolver",
    ),
    "headwater-link": _LINK,
    "headwater-store": _STORE,
    "headwater-life": _LIFE,
    "headwater-device": (
        *_MQTT,
        "headwater.mqtt.v5",
        *_NET,
        *_STORE,
        *_LIFE,
        "headwater_board.aio",
        "headwater_board.device",
        "headwater_board.settings",
    ),
    "headwater-update": (
        "headwater_board.loader",
        "headwater_board.ota",
        "headwater_board.ota_firmware",
    ),
    "headwater-ibmmq": ("headwater.ibmmq.segments", "headwater.ibmmq.chain", "headwater.ibmmq.text"),
    "headwater": (),
}
#: The component of everything: all modules of the core and of the board's port.
ALL = "headwater"

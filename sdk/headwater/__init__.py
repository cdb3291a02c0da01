"""Headwater's core: message protocols without I/O, without a clock, without allocation after construction.

The same source runs under MicroPython and CPython. It imports nothing by itself, so that a board pays only
for what it uses: ``from headwater.mqtt.client import Client``.
"""

__version__ = "0.1.0"

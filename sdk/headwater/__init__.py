"""Headwater's core: message protocols without I/O, without a clock, without allocation after construction.

The same source runs under MicroPython and CPython. This package imports nothing, so that a board loads only the
modules that it uses: ``from headwater.mqtt.client import Client``.
"""

__version__ = "0.1.0"

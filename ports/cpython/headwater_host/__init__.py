"""Headwater on a computer (CPython 3.10 or newer): what a gateway, a script and a pipeline use.

=================  =====================================================================================
``aio``            asyncio client, in the shape that aiomqtt's users know
``connection``     an MQTT session of the core over an asyncio transport
``route``          how to reach a server: TCP, TLS, WebSocket (``docs/security.md``)
``serial_port``    a serial line to a board
``capture``        the capture log: writer, reader (``docs/capture-log.md``)
``gateway``        serial boards and broker topics into the capture log (``docs/gateway.md``)
``inspect``        packets from bytes, for people and for programs
``cli``            the command ``headwater`` (``docs/cli.md``)
=================  =====================================================================================

Importing this package imports none of them.
"""

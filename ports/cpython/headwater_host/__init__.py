"""Headwater on a computer (CPython 3.10 or newer): clients, gateway, hub and tools.

=================  =====================================================================================
``client``         asyncio and blocking clients of MQTT and FMQ (``docs/host-clients.md``)
``hub``            the server of FMQ (``docs/hub.md``)
``gateway``        records what serial boards, broker topics and hubs publish (``docs/gateway.md``)
``capture``        the capture log: writer, reader (``docs/capture-log.md``)
``mq``             IBM MQ's headers, reassembly and forwarding (``docs/ibm-mq-reassembly.md``)
``fmq``            FMQ's values
``inspect``        decodes packets for display
``cli``            the command ``headwater`` (``docs/cli.md``)
=================  =====================================================================================

Importing this package imports none of them.
"""

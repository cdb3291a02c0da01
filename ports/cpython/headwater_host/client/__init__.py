"""Clients of MQTT and FMQ, for asyncio and for threads.

=======================================  ==========================================================================
``headwater_host.client.mqtt``           the asyncio client of MQTT: ``Client``, ``Message``, ``Will``
``headwater_host.client.fmq``            the asyncio client of FMQ: ``Client``, ``Message``, ``encode``, ``decode``
``headwater_host.client.blocking``       both clients for threads: ``Client``, ``FmqClient``
=======================================  ==========================================================================

Errors are in ``headwater_host.errors``. ``docs/host-clients.md`` describes all of them.
"""

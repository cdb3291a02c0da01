"""Clients of MQTT and FMQ, for asyncio and for threads, and what they share."""

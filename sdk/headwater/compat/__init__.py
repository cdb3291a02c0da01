"""Interfaces of other MQTT libraries."""

"""MQTT: packets (``encode``, ``decode``), topics, and the sessions of both ends (``session``, ``server``)."""

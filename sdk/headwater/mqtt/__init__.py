"""MQTT: packets, topics, and the sessions of clients (``session``) and servers (``server``)."""

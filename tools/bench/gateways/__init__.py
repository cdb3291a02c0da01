"""Processes of the gateway's benchmark: a subscriber that only writes, and a tap that takes the time."""

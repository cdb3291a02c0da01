"""Processes of the gateway's benchmark: a subscriber that only writes and syncs, and a tap that measures times."""

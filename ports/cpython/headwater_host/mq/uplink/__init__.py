"""The uplink from a local queue to a queue manager, through IBM's client."""

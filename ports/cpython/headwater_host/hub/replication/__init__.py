"""Replication between hubs without a shared database: SLAVEOF, ``sync``, promotion (docs/hub-cluster.md)."""

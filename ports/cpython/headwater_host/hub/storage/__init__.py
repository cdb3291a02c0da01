"""The hub's persistent state: one SQLite file or a PostgreSQL database, and what is read often in memory.

Every change goes through ``writer`` and an engine; nothing else writes. docs/architecture.md lists the modules; a
contract in pyproject.toml orders them.
"""

from headwater_host.hub.storage.records import Change, Message
from headwater_host.hub.storage.sessions import Session, Sessions, Subscription
from headwater_host.hub.storage.statistics import backlog, statistics
from headwater_host.hub.storage.store import POSTGRES, Delivery, Store
from headwater_host.hub.storage.topic import DEAD, Limits

__all__ = [
    "DEAD",
    "POSTGRES",
    "Change",
    "Delivery",
    "Limits",
    "Message",
    "Session",
    "Sessions",
    "Store",
    "Subscription",
    "backlog",
    "statistics",
]

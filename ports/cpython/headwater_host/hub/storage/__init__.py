"""The hub's persistent state.

Every change goes through ``writer``; nothing else writes the file. Imports point up in this table only.

==============  ====================================================================================
``store``       what the hub calls: topics, messages, consumer groups, retained messages
``statistics``  numbers for metrics
``counters``    age time, starts, how far back changes are kept
``follow``      the changes in order, for a replica
``restore``     what a file holds, back into memory
``positions``   how far each group is in each queue
``removal``     removes what nobody needs any more, bit by bit
``seen``        message ids that find duplicates
``sessions``    process numbers, sessions, subscriptions, QoS 2 handshakes, wills
``cache``       the last messages, in memory
``writer``      changes of one turn of the event loop as one transaction, in a thread
``file``        the file itself: one process at a time, the right program, not damaged
``upgrade``     a file of an earlier version, as this one keeps it
``topic``       topics in memory, and the limits of all
``queues``      one queue's messages as numbers; how far a group is in it
``records``     a message, a change, and how they stand in the file
==============  ====================================================================================
"""

from headwater_host.hub.storage.records import Change, Message
from headwater_host.hub.storage.sessions import Session, Sessions, Subscription
from headwater_host.hub.storage.statistics import backlog, statistics
from headwater_host.hub.storage.store import Delivery, Store
from headwater_host.hub.storage.topic import DEAD, Limits

__all__ = [
    "DEAD",
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

"""Everything of the hub that outlives the process: one SQLite file, with what is asked often in memory before it.

==============  ====================================================================================
``store``       what the hub calls: topics, messages, consumer groups, retained messages, limits
``sessions``    process numbers, sessions, subscriptions, open handshakes of QoS 2
``topic``       a topic's queues and groups, and the limits of all
``queues``      one queue's messages as numbers; how far a group is in it
``records``     a message, a change, and how they stand in the file
``statistics``  numbers for metrics
``writer``      changes of one turn of the event loop as one transaction, in a thread
``restore``     what a file holds, back into memory
``upgrade``     a file of an earlier version, as this one keeps it
``follow``      the changes in order, for a replica
``file``        the file itself: one process at a time, the right program, not damaged
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

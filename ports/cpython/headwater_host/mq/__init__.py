"""IBM MQ on a computer: headers as dictionaries (``structures``), constants by IBM's names (``CMQC``), a local queue
manager with the face that those who know the MQI from Python know (docs/ibm-mq-queue.md).

    from headwater_host import mq as ibmmq

    with ibmmq.QueueManager("QM1", "queues.db") as qmgr, ibmmq.Queue(qmgr, "READINGS") as queue:
        queue.put(b"21.5", ibmmq.MD(Format=ibmmq.CMQC.MQFMT_STRING))
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater_host.mq.errors import MQMIError
    from headwater_host.mq.queue.descriptors import GMO, MD, OD, PMO
    from headwater_host.mq.queue.manager import QueueManager, connect
    from headwater_host.mq.queue.queue import Queue

__all__ = ["GMO", "MD", "OD", "PMO", "MQMIError", "Queue", "QueueManager", "connect"]

_WHERE = {
    **dict.fromkeys(("GMO", "MD", "OD", "PMO"), "queue.descriptors"),
    **dict.fromkeys(("QueueManager", "connect"), "queue.manager"),
    "MQMIError": "errors",
    "Queue": "queue.queue",
}


def __getattr__(name: str) -> Any:
    """The names above, imported when they are asked for: what reads headers needs no database."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

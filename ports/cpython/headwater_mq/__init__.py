"""A local queue manager: IBM MQ's MQPUT, MQPUT1 and MQGET over queues in an SQLite file (docs/ibm-mq-queue.md).

import headwater_mq as ibmmq

with ibmmq.QueueManager("QM1", "queues.db") as qmgr, ibmmq.Queue(qmgr, "READINGS") as queue:
    queue.put(b"21.5", ibmmq.MD(Format=ibmmq.CMQC.MQFMT_STRING))
"""

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO, OD, PMO
from headwater_mq.queue import Queue

__all__ = ["CMQC", "GMO", "MD", "OD", "PMO", "MQMIError", "Queue", "QueueManager"]

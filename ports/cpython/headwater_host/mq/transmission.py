"""What a message looks like on a transmission queue: MQXQH with its MQMD, an MQMDE when there is need of one, the data.

No I/O. Everything the queue manager writes is in its own encoding and character set.
"""

from headwater.ibmmq.chain import MQMD1, MQXQH
from headwater_host.mq import CMQC, get, structures
from headwater_host.mq.descriptors import MD, QueueManagerSettings

#: Bytes that are put in front of the data at most.
OVERHEAD = CMQC.MQXQH_LENGTH_1 + CMQC.MQMDE_LENGTH_2


def wrap(
    md: MD, data: "bytes | memoryview", remote_q: bytes, remote_q_mgr: bytes, settings: QueueManagerSettings
) -> bytes:
    """The data of a message on a transmission queue. ``md``: as the message is kept, of version 2.

    The order MQXQH, MQMDE, MQDLH comes about when ``md`` has group or segment fields, and MQXQH, MQDLH, MQMDE when
    ``put.dead_letter`` has moved them behind the MQDLH already.
    """
    inner, body = get.returned(md, data, CMQC.MQMD_VERSION_1, settings)
    fields = {"RemoteQName": text(remote_q), "RemoteQMgrName": text(remote_q_mgr)}
    xqh = structures.encode(MQXQH, fields, big=settings.big, ccsid=settings.text_ccsid)
    return xqh + descriptor(inner, settings) + body


def outer(md: MD, settings: QueueManagerSettings) -> MD:
    """The descriptor of the message on the transmission queue: what is in it; how it is treated is inherited."""
    separate = md.copy()
    separate.reset_v2()
    separate.set(
        Format=CMQC.MQFMT_XMIT_Q_HEADER,
        Encoding=settings.encoding,
        CodedCharSetId=settings.ccsid,
        CorrelId=md.MsgId,
        MsgType=CMQC.MQMT_DATAGRAM,
        Report=CMQC.MQRO_NONE,
        Feedback=CMQC.MQFB_NONE,
    )
    return separate


def descriptor(md: MD, settings: QueueManagerSettings) -> bytes:
    """The 324 bytes of an MQMD of version 1."""
    names = [row[0] for row in MQMD1[3] if row[1] < MQMD1[2]]
    fields = {name: text(value) if md.FIELDS[name][0] == "c" else value for name, value in md.get().items()}
    fields["Version"] = CMQC.MQMD_VERSION_1
    chosen = {name: fields[name] for name in names}
    return structures.encode(MQMD1, chosen, big=settings.big, ccsid=settings.text_ccsid)


def text(value: object) -> str:
    """Characters of a descriptor as text."""
    assert isinstance(value, bytes)
    return value.decode("latin-1")

"""Messages on transmission queues: MQXQH with an MQMD, an MQMDE if needed, the data. No I/O.

Headers are written in the queue manager's encoding and character set.
"""

from headwater.ibmmq.chain import MQMD1, MQXQH
from headwater_host.mq import CMQC, get, structures
from headwater_host.mq.descriptors import MD, QueueManagerSettings

#: Maximum length of the headers, in bytes.
OVERHEAD = CMQC.MQXQH_LENGTH_1 + CMQC.MQMDE_LENGTH_2


def wrap(
    md: MD, data: "bytes | memoryview", remote_q: bytes, remote_q_mgr: bytes, settings: QueueManagerSettings
) -> bytes:
    """Return the data of a message on a transmission queue. ``md`` is the stored descriptor, of version 2.

    The order is MQXQH, MQMDE, MQDLH if ``md`` has group or segment fields, and MQXQH, MQDLH, MQMDE if
    ``put.dead_letter`` has moved them after the MQDLH.
    """
    inner, body = get.returned(md, data, CMQC.MQMD_VERSION_1, settings)
    fields = {"RemoteQName": text(remote_q), "RemoteQMgrName": text(remote_q_mgr)}
    xqh = structures.encode(MQXQH, fields, big=settings.big, ccsid=settings.text_ccsid)
    return xqh + descriptor(inner, settings) + body


def outer(md: MD, settings: QueueManagerSettings) -> MD:
    """Return the descriptor of the message on the transmission queue."""
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
    """Encode an MQMD of version 1: 324 bytes."""
    names = [row[0] for row in MQMD1[3] if row[1] < MQMD1[2]]
    fields = {name: text(value) if md.FIELDS[name][0] == "c" else value for name, value in md.get().items()}
    fields["Version"] = CMQC.MQMD_VERSION_1
    chosen = {name: fields[name] for name in names}
    return structures.encode(MQMD1, chosen, big=settings.big, ccsid=settings.text_ccsid)


def text(value: object) -> str:
    """Decode characters of a descriptor."""
    assert isinstance(value, bytes)
    return value.decode("latin-1")

"""Payloads that begin with an MQMDE: messages and groups, cut into segments."""

from headwater.ibmmq.header import MQMDE
from headwater_host.mq.CMQC import MQMF_LAST_MSG_IN_GROUP, MQMF_LAST_SEGMENT, MQMF_MSG_IN_GROUP, MQMF_SEGMENT
from headwater_host.mq.structures import encode

#: MsgFlags of a segment, the last one, a message in a group, and the last of these.
S, LS, G, LG = MQMF_SEGMENT, MQMF_LAST_SEGMENT, MQMF_MSG_IN_GROUP, MQMF_LAST_MSG_IN_GROUP


def payload(
    group_id: bytes,
    seq: int,
    offset: int,
    flags: int,
    data: bytes,
    *,
    big: bool = True,
    ccsid: int = 819,
    **fields: object,
) -> bytes:
    """An MQMDE, and data."""
    values = {
        "GroupId": group_id,
        "MsgSeqNumber": seq,
        "Offset": offset,
        "MsgFlags": flags,
        "CodedCharSetId": 1208,
    }
    return encode(MQMDE, {**values, "Encoding": 273, **fields}, big=big, ccsid=ccsid) + data


def cut(
    group_id: bytes,
    seq: int,
    data: bytes,
    size: int,
    *,
    grouped: bool = False,
    last: bool = False,
    **how: object,
) -> list[bytes]:
    """A logical message in segments of ``size`` bytes."""
    flags = S | (G if grouped else 0) | (LG if last else 0)
    starts = range(0, max(len(data), 1), size)
    return [
        payload(
            group_id,
            seq,
            at,
            flags | (LS if at == starts[-1] else 0),
            data[at : at + size],
            **how,  # type: ignore[arg-type]
        )
        for at in starts
    ]

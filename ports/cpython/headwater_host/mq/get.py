"""What a get gives back of a message that is kept: with an MQMDE in front for callers of version 1, or as it is.

No I/O.
"""

from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import GMO, MD, V2_FIELDS
from headwater_host.mq.validate import IN_GROUP, IN_SEGMENTS, QueueManagerSettings


def returned(
    kept: MD, data: "bytes | memoryview", version: int, settings: QueueManagerSettings
) -> tuple[MD, bytes]:
    """What a caller whose MQMD has this version is given of a message.

    Version 1 gets an MQMDE when one of the five fields is not at its default, in the queue manager's own encoding and
    character set; version 2 never does.
    """
    md = kept.copy()
    if version != CMQC.MQMD_VERSION_1 or kept.has_defaults():
        return md, bytes(data)
    mde: dict[str, object] = {name: kept[name] for name in V2_FIELDS}
    mde |= {
        "Encoding": kept.Encoding,
        "CodedCharSetId": kept.CodedCharSetId,
        "Format": kept.Format.decode("latin-1"),
    }
    md.set(
        Format=CMQC.MQFMT_MD_EXTENSION,
        Encoding=settings.encoding,
        CodedCharSetId=settings.ccsid,
    )
    prefix = structures.encode(MQMDE, mde, big=settings.big, ccsid=settings.text_ccsid)
    return md, b"".join((prefix, data))


def report(gmo: GMO, md: MD, length: int, queue: bytes, *, zos: bool) -> None:
    """Fill in what the options return of a message: those fields that their version has."""
    gmo.ResolvedQName = queue
    if gmo.Version >= CMQC.MQGMO_VERSION_2:
        flags = md.MsgFlags
        gmo.GroupStatus = (
            CMQC.MQGS_LAST_MSG_IN_GROUP
            if flags & CMQC.MQMF_LAST_MSG_IN_GROUP
            else CMQC.MQGS_MSG_IN_GROUP
            if flags & IN_GROUP
            else CMQC.MQGS_NOT_IN_GROUP
        )
        gmo.SegmentStatus = (
            CMQC.MQSS_NOT_A_SEGMENT
            if zos or not flags & IN_SEGMENTS
            else CMQC.MQSS_LAST_SEGMENT
            if flags & CMQC.MQMF_LAST_SEGMENT
            else CMQC.MQSS_SEGMENT
        )
        allowed = flags & CMQC.MQMF_SEGMENTATION_ALLOWED and not zos
        gmo.Segmentation = CMQC.MQSEG_ALLOWED if allowed else CMQC.MQSEG_INHIBITED
    if gmo.Version >= CMQC.MQGMO_VERSION_3:
        gmo.ReturnedLength = length

"""Rule of MQGET: an MQMDE in front of the data for callers with an MQMD of version 1. No I/O."""

from headwater.ibmmq.header import MQMDE
from headwater_host.mq import CMQC, structures
from headwater_host.mq.descriptors import MD, V2_FIELDS, QueueManagerSettings


def returned(
    kept: MD, data: "bytes | memoryview", version: int, settings: QueueManagerSettings
) -> tuple[MD, bytes]:
    """Return descriptor and data of a stored message for a caller whose MQMD has this version.

    Version 1 gets an MQMDE, in the queue manager's encoding and character set, if one of the last five fields is not at
    its default; version 2 never does.
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
    md.set(Format=CMQC.MQFMT_MD_EXTENSION, Encoding=settings.encoding, CodedCharSetId=settings.ccsid)
    prefix = structures.encode(MQMDE, mde, big=settings.big, ccsid=settings.text_ccsid)
    return md, b"".join((prefix, data))

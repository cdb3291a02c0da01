"""Text lines for IBM MQ's headers, as ``headwater inspect`` prints them."""

import json
from typing import Any

from headwater_host.inspect.mq import Fields, flags, names, reason_name
from headwater_host.mq import CMQC

#: Fields whose numbers have names, by what these begin with.
_NAMED = {
    "MsgType": "MQMT_",
    "Expiry": "MQEI_",
    "Priority": "MQPRI_",
    "Persistence": "MQPER_",
    "PutApplType": "MQAT_",
    "CodedCharSetId": "MQCCSI_",
}
#: Fields that are flags.
_FLAGS = {"Report": "MQRO_", "MsgFlags": "MQMF_", "Flags": "MQMDEF_"}
_ENCODINGS = ("MQENC_NORMAL", "MQENC_REVERSED", "MQENC_S390", "MQENC_TNS")


def _readable(name: str, value: Any) -> str:
    """A field's value, with the name of a number that has one."""
    if isinstance(value, str):
        return json.dumps(value.rstrip(" \0"), ensure_ascii=False)
    if name in _FLAGS:
        return flags(value, _FLAGS[name])
    if name == "Encoding":
        said = next((known for known in _ENCODINGS if getattr(CMQC, known) == value), "")
    elif name in ("Reason", "Feedback"):
        said = names("MQFB_").get(value) or reason_name(value)
    else:
        said = names(_NAMED[name]).get(value, "") if name in _NAMED else ""
    return f"{value} ({said})" if said else str(value)


def line(at: int, size: int, fields: Fields) -> str:
    """A header, or what is behind the last one; both of what ``extension`` gives. Empty fields are left out."""
    if "type" not in fields:
        end = CMQC.MQMDE_LENGTH_2
        head = line(at, end, {"type": "MQMDE", "fields": fields["fields"]})
        return f"{head}\n{line(at + end, size - end, {'type': 'data', 'payload': fields['payload']})}"
    told = fields.get("fields") or {name: fields[name] for name in fields if name != "type"}
    shown = [f"{name}={_readable(name, value)}" for name, value in told.items() if _says(name, value)]
    return f"{at:>8}  {size:>6} bytes  {fields['type']:<11}  {'  '.join(shown)}".rstrip()


def _says(name: str, value: int | str) -> bool:
    """Whether there is something in a field that ``line`` has not said yet."""
    if name in ("StrucId", "StrucLength"):
        return False
    if isinstance(value, int):
        return value != 0
    # Ids and tokens have 24 bytes or more.
    empty = not value.strip(" \0") or (len(value) >= 48 and set(value) == {"0"})
    return name == "payload" or not empty

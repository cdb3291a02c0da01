"""Print IBM MQ's headers as text."""

import json
from typing import Any

from headwater_host.inspect.mq import Fields, flags, names, reason_name
from headwater_host.mq import CMQC

#: Fields whose numbers have names: the prefix of these.
_NAMED = {
    "MsgType": "MQMT_",
    "Expiry": "MQEI_",
    "Priority": "MQPRI_",
    "Persistence": "MQPER_",
    "PutApplType": "MQAT_",
    "CodedCharSetId": "MQCCSI_",
}
#: Fields of flags: the prefix of their names.
_FLAGS = {"Report": "MQRO_", "MsgFlags": "MQMF_", "Flags": "MQMDEF_"}
_ENCODINGS = ("MQENC_NORMAL", "MQENC_REVERSED", "MQENC_S390", "MQENC_TNS")


def _readable(name: str, value: Any) -> str:
    """Format the value of a field; add the name of a number."""
    if isinstance(value, str):
        return json.dumps(value.rstrip(" \0"), ensure_ascii=False)
    if name in _FLAGS:
        return flags(value, _FLAGS[name])
    if name == "Encoding":
        label = next((known for known in _ENCODINGS if getattr(CMQC, known) == value), "")
    elif name in ("Reason", "Feedback"):
        label = names("MQFB_").get(value) or reason_name(value)
    else:
        label = names(_NAMED[name]).get(value, "") if name in _NAMED else ""
    return f"{value} ({label})" if label else str(value)


def line(at: int, size: int, fields: Fields) -> str:
    """Format a header or the data after it; for ``extension``, both. Omits empty fields."""
    if "type" not in fields:
        end = CMQC.MQMDE_LENGTH_2
        head = line(at, end, {"type": "MQMDE", "fields": fields["fields"]})
        return f"{head}\n{line(at + end, size - end, {'type': 'data', 'payload': fields['payload']})}"
    told = fields.get("fields") or {name: fields[name] for name in fields if name != "type"}
    shown = [f"{name}={_readable(name, value)}" for name, value in told.items() if _says(name, value)]
    return f"{at:>8}  {size:>6} bytes  {fields['type']:<11}  {'  '.join(shown)}".rstrip()


def _says(name: str, value: int | str) -> bool:
    """Return whether ``line`` prints a field: not empty, and not implied by the type."""
    if name in ("StrucId", "StrucLength"):
        return False
    if isinstance(value, int):
        return value != 0
    # Identifiers and tokens have at least 24 bytes.
    empty = not value.strip(" \0") or (len(value) >= 48 and set(value) == {"0"})
    return name == "payload" or not empty

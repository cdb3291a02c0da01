"""IBM MQ's numbers and names, as far as the core needs them; ``headwater_host.mq.CMQC`` has more."""

from headwater.wire import const

#: Structures' lengths in bytes. MQXQH's is without the MQMD behind it, of which IBM's MQXQH_LENGTH_1 (428) counts 324.
MQMDE_LENGTH_2 = const(72)
MQMD_LENGTH_1 = const(324)
MQMD_LENGTH_2 = const(364)
MQXQH_OWN_LENGTH = const(104)
MQDLH_LENGTH_1 = const(172)

#: How numbers are written. Of an Encoding, the integers' part says whether they are big-endian or little-endian.
MQENC_NORMAL = const(0x111)
MQENC_REVERSED = const(0x222)
MQENC_INTEGER_MASK = const(0xF)
MQENC_INTEGER_NORMAL = const(1)
MQENC_INTEGER_REVERSED = const(2)

#: In an MQMD, the queue manager's character set.
MQCCSI_Q_MGR = const(0)
#: The character set of the structure itself.
MQCCSI_INHERIT = const(-2)

#: Format names.
MQFMT_NONE = b"        "
MQFMT_MD_EXTENSION = b"MQHMDE  "
MQFMT_DEAD_LETTER_HEADER = b"MQDEAD  "
MQFMT_XMIT_Q_HEADER = b"MQXMIT  "
MQFMT_STRING = b"MQSTR   "

#: Bits of MsgFlags.
MQMF_NONE = const(0)
MQMF_SEGMENTATION_ALLOWED = const(1)
MQMF_SEGMENT = const(2)
MQMF_LAST_SEGMENT = const(4)
MQMF_MSG_IN_GROUP = const(8)
MQMF_LAST_MSG_IN_GROUP = const(16)

#: OriginalLength, when there is none.
MQOL_UNDEFINED = const(-1)

#: Reason codes.
MQRC_NONE = const(0)
MQRC_MD_ERROR = const(2026)
MQRC_DLH_ERROR = const(2141)
MQRC_MDE_ERROR = const(2248)
MQRC_XQH_ERROR = const(2260)

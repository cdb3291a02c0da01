# paths: begin a segment, look at an MQMDE, read its fields, sniff, sniff in vain, numbers beyond small integers
# paths: names in EBCDIC, refusals, walk a chain, walk a broken chain, an MQMD, an MQDLH behind an MQXQH
"""IBM MQ's headers: written, checked, read and walked in place, in either byte order, in ASCII and EBCDIC."""

from prove import prove

from headwater.errors import E_ARGUMENT, E_CODE, E_TOO_LARGE, E_TRUNCATED
from headwater.ibmmq.chain import (
    DLH_FORMAT,
    DLH_REASON,
    MD_CODED_CHAR_SET_ID,
    MD_ENCODING,
    MD_FORMAT,
    MD_MSG_ID,
    MD_MSG_SEQ_NUMBER,
    MD_ORIGINAL_LENGTH,
    MD_REPLY_TO_Q,
    MQDLH,
    MQMD,
    MQMD1,
    MQXQH,
    XQH_REMOTE_Q_NAME,
    Chain,
)
from headwater.ibmmq.header import (
    MDE_CODED_CHAR_SET_ID,
    MDE_ENCODING,
    MDE_FLAGS,
    MDE_FORMAT,
    MDE_GROUP_ID,
    MDE_MSG_FLAGS,
    MDE_MSG_SEQ_NUMBER,
    MDE_OFFSET,
    MDE_ORIGINAL_LENGTH,
    MQMDE,
    Header,
    sniff,
)

GROUP = bytes(range(24))
buf = bytearray(1024)
h = Header(buf)
other = Header(buf)


def segment() -> None:
    for big in (True, False):
        assert h.begin(MQMDE, 0, big, 819) == 72
        h.put(MDE_CODED_CHAR_SET_ID, 1208)
        h.put_name(MDE_FORMAT, b"MQSTR   ")
        h.put_raw(MDE_GROUP_ID, GROUP)
        h.put(MDE_MSG_SEQ_NUMBER, 999999999)
        h.put(MDE_OFFSET, 4096)
        h.put(MDE_MSG_FLAGS, 3)


def look() -> None:
    assert other.look(MQMDE, 0, 1024, False, 819) == 72


def read() -> None:
    assert other.get(MDE_MSG_SEQ_NUMBER) == 999999999
    assert other.get(MDE_OFFSET) == 4096
    assert other.get(MDE_MSG_FLAGS) == 3
    assert other.get(MDE_ORIGINAL_LENGTH) == -1
    assert other.get(MDE_ENCODING) == 546
    assert other.is_name(MDE_FORMAT, b"MQSTR")
    assert not other.is_name(MDE_FORMAT, b"MQHMDE  ")


ebcdic = bytearray(buf)
Header(ebcdic).begin(MQMDE, 0, True, 500)
text = b"any other payload of more than twelve bytes"


def sniff_both() -> None:
    assert sniff(buf, 0, 1024) == 2
    assert sniff(ebcdic, 0, 1024) == 5


def sniff_nothing() -> None:
    assert sniff(text, 0, 40) == 0
    assert sniff(buf, 0, 11) == 0


wide = bytearray(buf)
hostile = Header(wide)
hostile.begin(MQMDE, 0, True, 819)
# Numbers that are objects on a 32-bit board, in what is checked and in what is walked.
wide[4:20] = b"\x80\x00\x00\x02" + b"\x7f\xff\xff\xff" + b"\x40\x00\x00\x01" + b"\x9f\xff\xff\xff"
wide[64:68] = b"\x80\x00\x00\x00"
hostile.put_name(MDE_FORMAT, b"MQDEAD")
hostile_chain = Chain(wide)


def beyond() -> None:
    wide[4] = 128
    assert hostile.look(MQMDE, 0, 72, True, 819) == E_CODE
    wide[4] = 0
    assert hostile.look(MQMDE, 0, 72, True, 819) == E_CODE
    wide[8:12] = b"\x00\x00\x00\x48"
    assert hostile.look(MQMDE, 0, 72, True, 819) == 72
    assert hostile.high(MDE_MSG_FLAGS) == -32768
    assert hostile.low(MDE_MSG_FLAGS) == 0
    hostile_chain.start(0, 1024, True, 819, b"MQHMDE  ")
    assert hostile_chain.next() == 1
    assert hostile_chain.next() == E_CODE
    wide[8:12] = b"\x7f\xff\xff\xff"


eb = Header(ebcdic)


def names() -> None:
    assert eb.begin(MQXQH, 0, True, 1047) == 104
    assert eb.put_name(XQH_REMOTE_Q_NAME, b"PLANT.1/PUMPS_%") == 0
    assert eb.is_name(XQH_REMOTE_Q_NAME, b"PLANT.1/PUMPS_%")
    assert not eb.is_name(XQH_REMOTE_Q_NAME, b"PLANT.1")
    assert eb.look(MQXQH, 0, 104, True, 37) == 104


def refusals() -> None:
    assert other.look(MQMDE, 0, 71, False, 819) == E_TRUNCATED
    assert other.reason == 2248
    assert other.bad_field == "OriginalLength"
    assert other.bad_at == 68
    assert other.look(MQMDE, 0, 72, False, 500) == E_CODE
    assert other.look(MQMDE, 0, 72, True, 819) == E_CODE
    assert other.look(MQDLH, 0, 1024, False, 819) == E_CODE
    assert other.look(MQMDE, 0, 72, False, 819) == 72
    assert other.put_raw(MDE_GROUP_ID, buf) == E_TOO_LARGE
    assert other.put_name(MDE_FORMAT, b"MQ-STR") == E_ARGUMENT
    assert other.begin(MQMD, 1000, False, 819) == E_TOO_LARGE
    assert other.look(MQMDE, 0, 72, False, 819) == 72


def build(at: "bytearray") -> int:
    w = Header(at)
    end = w.begin(MQXQH, 0, True, 500)
    end = w.begin(MQMD1, end, True, 500)
    w.put(MD_ENCODING, 546)
    w.put(MD_CODED_CHAR_SET_ID, 819)
    w.put_name(MD_FORMAT, b"MQHMDE")
    end = w.begin(MQMDE, end, False, 819)
    w.put(MDE_ENCODING, 785)
    w.put(MDE_CODED_CHAR_SET_ID, 37)
    w.put_name(MDE_FORMAT, b"MQDEAD")
    end = w.begin(MQDLH, end, True, 37)
    w.put_name(DLH_FORMAT, b"MQSTR")
    return end


linked = bytearray(1024)
end = build(linked)
chain = Chain(linked)


def walk() -> None:
    chain.start(0, 1024, True, 500)
    found = 0
    while chain.next() > 0:
        found += 1
    assert found == 4
    assert chain.at == end
    assert chain.is_format(b"MQSTR   ")
    assert chain.encoding() == 0
    assert chain.ccsid() == 0


cut = Chain(linked)


def walk_broken() -> None:
    cut.start(0, end - 1, True, 500)
    while cut.next() > 0:
        pass
    assert cut.next() == E_TRUNCATED
    assert cut.header.bad_field == "PutTime"
    cut.start(0, 1024, True, 500, b"MQDEAD  ")
    assert cut.next() == E_CODE


md = Header(bytearray(364))


def descriptor() -> None:
    assert md.begin(MQMD, 0, False, 819) == 364
    assert md.put_raw(MD_MSG_ID, GROUP) == 0
    assert md.put_name(MD_REPLY_TO_Q, b"ANSWERS") == 0
    assert md.put(MD_MSG_SEQ_NUMBER, 7) == 0
    assert md.look(MQMD, 0, 364, False, 819) == 364
    assert md.get(MD_MSG_SEQ_NUMBER) == 7
    assert md.begin(MQMD1, 0, False, 819) == 324
    assert md.get(MD_MSG_SEQ_NUMBER) == 1
    assert md.put(MD_ORIGINAL_LENGTH, 1) == E_ARGUMENT


dead = Header(bytearray(1024))


def dead_letter() -> None:
    at = dead.begin(MQXQH, 0, False, 500)
    at = dead.begin(MQMD1, at, False, 500)
    dead.put_name(MD_FORMAT, b"MQDEAD")
    assert dead.begin(MQDLH, at, False, 500) == 600
    assert dead.put(DLH_REASON, 2053) == 0
    assert dead.get(DLH_REASON) == 2053
    assert dead.get(MDE_FLAGS) == 0


prove("begin a segment", segment)
prove("look at an MQMDE", look)
prove("read its fields", read)
prove("sniff", sniff_both)
prove("sniff in vain", sniff_nothing)
prove("numbers beyond small integers", beyond)
prove("names in EBCDIC", names)
prove("refusals", refusals)
prove("walk a chain", walk)
prove("walk a broken chain", walk_broken)
prove("an MQMD", descriptor)
prove("an MQDLH behind an MQXQH", dead_letter)

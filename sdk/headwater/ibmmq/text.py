"""Text in EBCDIC and other character sets. Each of the 256 bytes is one character, so decoded text encodes to the same
bytes.

EBCDIC is 037, 500, 1047, and 1140 (037 with the euro sign); line feed is 0x25 and next line (U+0085) 0x15, as in IBM's
tables. All other character sets are read as Latin-1. All functions allocate.
"""

from headwater.errors import E_ARGUMENT
from headwater.ibmmq.header import is_ebcdic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.ibmmq.chain import Chain
    from headwater.ibmmq.header import Header
    from headwater.types import Bytes

# The bytes of 037 in Latin-1.
_037 = (
    b"\x00\x01\x02\x03\x9c\x09\x86\x7f\x97\x8d\x8e\x0b\x0c\x0d\x0e\x0f"
    b"\x10\x11\x12\x13\x9d\x85\x08\x87\x18\x19\x92\x8f\x1c\x1d\x1e\x1f"
    b"\x80\x81\x82\x83\x84\x0a\x17\x1b\x88\x89\x8a\x8b\x8c\x05\x06\x07"
    b"\x90\x91\x16\x93\x94\x95\x96\x04\x98\x99\x9a\x9b\x14\x15\x9e\x1a"
    b"\x20\xa0\xe2\xe4\xe0\xe1\xe3\xe5\xe7\xf1\xa2\x2e\x3c\x28\x2b\x7c"
    b"\x26\xe9\xea\xeb\xe8\xed\xee\xef\xec\xdf\x21\x24\x2a\x29\x3b\xac"
    b"\x2d\x2f\xc2\xc4\xc0\xc1\xc3\xc5\xc7\xd1\xa6\x2c\x25\x5f\x3e\x3f"
    b"\xf8\xc9\xca\xcb\xc8\xcd\xce\xcf\xcc\x60\x3a\x23\x40\x27\x3d\x22"
    b"\xd8\x61\x62\x63\x64\x65\x66\x67\x68\x69\xab\xbb\xf0\xfd\xfe\xb1"
    b"\xb0\x6a\x6b\x6c\x6d\x6e\x6f\x70\x71\x72\xaa\xba\xe6\xb8\xc6\xa4"
    b"\xb5\x7e\x73\x74\x75\x76\x77\x78\x79\x7a\xa1\xbf\xd0\xdd\xde\xae"
    b"\x5e\xa3\xa5\xb7\xa9\xa7\xb6\xbc\xbd\xbe\x5b\x5d\xaf\xa8\xb4\xd7"
    b"\x7b\x41\x42\x43\x44\x45\x46\x47\x48\x49\xad\xf4\xf6\xf2\xf3\xf5"
    b"\x7d\x4a\x4b\x4c\x4d\x4e\x4f\x50\x51\x52\xb9\xfb\xfc\xf9\xfa\xff"
    b"\x5c\xf7\x53\x54\x55\x56\x57\x58\x59\x5a\xb2\xd4\xd6\xd2\xd3\xd5"
    b"\x30\x31\x32\x33\x34\x35\x36\x37\x38\x39\xb3\xdb\xdc\xd9\xda\x9f"
)
# Differences of other sets: byte, Latin-1.
_DIFFERENCES = {
    500: b"\x4a\x5b\x4f\x21\x5a\x5d\x5f\x5e\xb0\xa2\xba\xac\xbb\x7c",
    1047: b"\x5f\x5e\xad\x5b\xb0\xac\xba\xdd\xbb\xa8\xbd\x5d",
}
_EURO = 0x20AC


def _table(ccsid: int) -> bytearray:
    """Return the Latin-1 byte of each EBCDIC byte, without the euro sign of 1140."""
    found = bytearray(_037)
    pairs = _DIFFERENCES.get(ccsid, b"")
    for i in range(0, len(pairs), 2):
        found[pairs[i]] = pairs[i + 1]
    return found


def decode(data: "Bytes", ccsid: int) -> str:
    """Decode bytes."""
    if not is_ebcdic(ccsid):
        return "".join([chr(b) for b in data])
    codes = _table(ccsid)
    return "".join([chr(_EURO if b == 0x9F and ccsid == 1140 else codes[b]) for b in data])


def encode(text: str, ccsid: int) -> "bytes | None":
    """Encode text, or return None if a character is not in the character set."""
    places = bytearray(range(256))
    if is_ebcdic(ccsid):
        codes = _table(ccsid)
        for i in range(256):
            places[codes[i]] = i
    found = bytearray(len(text))
    for at, character in enumerate(text):
        code = ord(character)
        if ccsid == 1140 and (code == _EURO or code == 0xA4):
            code = 0xA4 if code == _EURO else _EURO
        if code > 255:
            return None
        found[at] = places[code]
    return bytes(found)


def text_of(header: "Header", row: int) -> str:
    """Return a field of characters, with its blanks."""
    return decode(header.raw(row), header.ccsid)


def put_text(header: "Header", row: int, text: str) -> int:
    """Write a field of characters, padded with blanks.

    Return 0, E_TOO_LARGE if the field is shorter, or E_ARGUMENT if a character is not in the character set.
    """
    data = encode(text + " " * (header.layout[3][row][2] - len(text)), header.ccsid)
    return E_ARGUMENT if data is None else header.put_raw(row, data)


def format_of(chain: "Chain") -> str:
    """Return the Format of what follows in a chain, with its blanks; only blanks if it is not known."""
    if chain.row >= 0:
        return text_of(chain.header, chain.row + 2)
    given = decode(chain.given, 0)
    return given + " " * (8 - len(given))

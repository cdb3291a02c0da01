"""Users and their passwords, as scrypt hashes: ``$scrypt$ln=15,r=8,p=3$SALT$HASH``, both in base64 without ``=``.

A hash takes a tenth of a second and 32 MiB, on purpose; so it is computed in threads, a few at a time, and a password
that was right is remembered (as a keyed digest, in memory only). A name that does not exist takes as long as one that
does.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from headwater_host.hub.errors import QUOTA_EXCEEDED, RefusedError

#: What a new hash costs: 2 ** ln rounds, of blocks of r * 128 bytes, p times.
LN, R, P = 15, 8, 3
#: What is taken from a file: more would need gigabytes, or minutes.
_MOST_MEMORY = 256 << 20
_MOST_P = 16
_FORM = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,3}),p=(\d{1,3})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")


class Hash(NamedTuple):
    """A hashed password."""

    ln: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> "Hash":
        """Read one. Raises ValueError, which does not quote it."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("a password is a hash, as 'headwater hub passwd' makes it")
        ln, r, p = (int(part) for part in found.groups()[:3])
        if not ln >= 1 or not r >= 1 or not 1 <= p <= _MOST_P or 128 * r << ln > _MOST_MEMORY:
            raise ValueError("the hash of this password costs too much, or nothing")
        try:
            salt, digest = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in found.groups()[3:])
        except binascii.Error:
            raise ValueError("the hash of this password is cut") from None
        if len(salt) < 8 or len(digest) < 16:
            raise ValueError("the hash of this password is cut")
        return cls(ln, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.ln},r={self.r},p={self.p}${salt}${digest}"

    def __repr__(self) -> str:
        return "Hash(...)"

    def holds(self, password: bytes) -> bool:
        """Whether it is this password: slow, and in a time that does not depend on the answer."""
        return hmac.compare_digest(self.digest, _digest(self, password))


def _digest(cost: Hash, password: bytes) -> bytes:
    memory = (128 * cost.r << cost.ln) + 128 * cost.r * cost.p + (1 << 20)
    return hashlib.scrypt(
        password,
        salt=cost.salt,
        n=1 << cost.ln,
        r=cost.r,
        p=cost.p,
        maxmem=memory,
        dklen=len(cost.digest),
    )


def hashed(password: bytes, ln: int = LN, r: int = R, p: int = P) -> Hash:
    """Hash a password with a salt of its own."""
    empty = Hash(ln, r, p, secrets.token_bytes(16), bytes(32))
    return empty._replace(digest=_digest(empty, password))


def check_name(name: str) -> str:
    """A user's name: text without control characters, of at most 256. Raises ValueError."""
    if not 1 <= len(name) <= 256 or not name.isprintable():
        raise ValueError("a user's name is text of 1 to 256 characters, without control characters")
    return name


def entry(name: str, password: bytes) -> str:
    """The lines that make a user, for the hub's file. Raises ValueError."""
    if not password:
        raise ValueError("a password is not empty")
    return f'[[user]]\nname = {json.dumps(check_name(name), ensure_ascii=False)}\npassword = "{hashed(password)}"\n'


class Users:
    """Who there is. At most ``threads`` hashes are computed at a time, and ``waiting`` more may wait."""

    def __init__(self, hashes: Mapping[str, Hash], threads: int = 2, waiting: int = 1000):
        self._hashes = dict(hashes)
        # For names that there are not: as costly as those that there are.
        like = next(iter(self._hashes.values()), Hash(LN, R, P, b"", bytes(32)))
        self._nobody = like._replace(
            salt=secrets.token_bytes(16), digest=secrets.token_bytes(len(like.digest))
        )
        self._threads = ThreadPoolExecutor(threads, "headwater-hub-users")
        self._limit = threads + waiting
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    async def verify(self, name: str, password: bytes) -> bool:
        """Whether there is this user, with this password. RefusedError: too many are waiting to know."""
        known = self._right.get(name)
        digest = hmac.digest(self._key, password, "sha256")
        if known is not None and hmac.compare_digest(known, digest):
            return True
        if self._waiting >= self._limit:
            raise RefusedError(QUOTA_EXCEEDED, "too many log in at the same time")
        found = self._hashes.get(name)
        self._waiting += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(
                self._threads, (found or self._nobody).holds, password
            )
        finally:
            self._waiting -= 1
        if right and found is not None:
            self._right[name] = digest
            return True
        return False

    def close(self) -> None:
        """Wait for nobody any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

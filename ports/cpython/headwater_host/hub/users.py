"""Users and their passwords, as scrypt hashes: ``$scrypt$ln=15,r=8,p=3$SALT$HASH``, both in base64 without ``=``.

A hash takes a tenth of a second and 32 MiB, on purpose; so it is computed in threads, a few at a time, and a password
that was right is remembered (as a keyed digest, in memory only). A name that does not exist takes as long as one that
does.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
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


def _give_way() -> None:
    """The thread that asks gives way to what serves those who are in already; where that can be had."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class Users:
    """Who there is. At most ``threads`` hashes are computed at a time, for one address after the other; ``waiting``
    more may wait, and ``each`` of one address."""

    def __init__(self, hashes: Mapping[str, Hash], threads: int = 2, waiting: int = 1000, each: int = 100):
        self._hashes = dict(hashes)
        # For names that there are not: as costly as those that there are.
        like = next(iter(self._hashes.values()), Hash(LN, R, P, b"", bytes(32)))
        self._nobody = like._replace(
            salt=secrets.token_bytes(16), digest=secrets.token_bytes(len(like.digest))
        )
        self._threads = ThreadPoolExecutor(threads, "headwater-hub-users", _give_way)
        self._free = threads
        self._most = waiting
        self._each = each
        #: Who waits for a thread, by address; the first one is next.
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    async def verify(self, name: str, password: bytes, address: Hashable = None) -> bool:
        """Whether there is this user, with this password; somebody at ``address`` wants to know. RefusedError: too many
        are waiting to know."""
        digest = hmac.digest(self._key, password, "sha256")
        if self._known(name, digest):
            return True
        await self._turn(address)
        # Others with the same password may have been in front.
        if self._known(name, digest):
            self._release()
            return True
        found = self._hashes.get(name)
        hashing = asyncio.get_running_loop().run_in_executor(
            self._threads, (found or self._nobody).holds, password
        )
        hashing.add_done_callback(lambda _: self._release())
        # A thread is not free because nobody waits for it any more.
        right = await asyncio.shield(hashing)
        if right and found is not None:
            self._right[name] = digest
            return True
        return False

    def _known(self, name: str, digest: bytes) -> bool:
        known = self._right.get(name)
        return known is not None and hmac.compare_digest(known, digest)

    async def _turn(self, address: Hashable) -> None:
        """Wait for a thread. Raises RefusedError."""
        if self._free:
            self._free -= 1
            return
        if sum(map(len, self._waiting.values())) >= self._most:
            raise RefusedError(QUOTA_EXCEEDED, "too many log in at the same time")
        queue = self._waiting.setdefault(address, deque())
        if len(queue) >= self._each:
            raise RefusedError(QUOTA_EXCEEDED, "too many log in from this address at the same time")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            elif turn in queue:
                queue.remove(turn)
                if not queue and self._waiting.get(address) is queue:
                    del self._waiting[address]
            raise

    def _release(self) -> None:
        """A thread is free: it is the next address's turn."""
        while self._waiting:
            address, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[address] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Wait for nobody any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

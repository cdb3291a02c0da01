"""Users and their scrypt hashes.

A hash deliberately takes 0.1 seconds and 32 MiB. So hashes are computed in a few threads, and correct passwords are
remembered as keyed digests, in memory only. An unknown name takes as long as a known one.
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

from headwater.mqtt import spec5
from headwater_host.hub.errors import RefusedError

#: Parameters of a new hash: 2 ** ln rounds of blocks of r * 128 bytes, p times.
LN, R, P = 15, 8, 3
#: The highest parameters in a configuration: more would need gigabytes or minutes.
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
        """Parse the text form. The ValueError does not quote it."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("a password must be a hash made by 'headwater hub passwd'")
        ln, r, p = (int(part) for part in found.groups()[:3])
        if not ln >= 1 or not r >= 1 or not 1 <= p <= _MOST_P or 128 * r << ln > _MOST_MEMORY:
            raise ValueError("the parameters of this password's hash are too high or too low")
        try:
            salt, digest = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in found.groups()[3:])
        except binascii.Error:
            raise ValueError("this password's hash is incomplete") from None
        if len(salt) < 8 or len(digest) < 16:
            raise ValueError("this password's hash is incomplete")
        return cls(ln, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.ln},r={self.r},p={self.p}${salt}${digest}"

    def __repr__(self) -> str:
        return "Hash(...)"

    def holds(self, password: bytes) -> bool:
        """Return whether it is this password. Slow, in a time that does not depend on the answer."""
        return hmac.compare_digest(self.digest, _digest(self, password))


def _digest(cost: Hash, password: bytes) -> bytes:
    memory = (128 * cost.r << cost.ln) + 128 * cost.r * cost.p + (1 << 20)
    return hashlib.scrypt(
        password, salt=cost.salt, n=1 << cost.ln, r=cost.r, p=cost.p, maxmem=memory, dklen=len(cost.digest)
    )


def hashed(password: bytes, ln: int = LN, r: int = R, p: int = P) -> Hash:
    """Hash a password with a fresh salt."""
    empty = Hash(ln, r, p, secrets.token_bytes(16), bytes(32))
    return empty._replace(digest=_digest(empty, password))


def check_name(name: str) -> str:
    """Return a user's name, checked. Raises ValueError."""
    if not 1 <= len(name) <= 256 or not name.isprintable():
        raise ValueError("a user name is printable text of 1 to 256 characters")
    return name


def entry(name: str, password: bytes) -> str:
    """Return the lines of a user for the hub's configuration. Raises ValueError."""
    if not password:
        raise ValueError("the password is empty")
    return f'[[user]]\nname = {json.dumps(check_name(name), ensure_ascii=False)}\npassword = "{hashed(password)}"\n'


def _give_way() -> None:
    """Lower the priority of this thread, if the system can: connected clients come first."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


class Users:
    """The users. At most ``threads`` hashes are computed at a time, one address after the other; ``waiting`` more may
    wait, ``each`` of one address."""

    def __init__(self, hashes: Mapping[str, Hash], threads: int = 2, waiting: int = 1000, each: int = 100):
        self._hashes = dict(hashes)
        # For unknown names: as slow as the others.
        like = next(iter(self._hashes.values()), Hash(LN, R, P, b"", bytes(32)))
        self._nobody = like._replace(
            salt=secrets.token_bytes(16), digest=secrets.token_bytes(len(like.digest))
        )
        self._threads = ThreadPoolExecutor(threads, "headwater-hub-users", _give_way)
        self._free = threads
        self._most = waiting
        self._each = each
        #: Logins that wait for a thread, by address; the first one is next.
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    async def verify(self, name: str, password: bytes, address: Hashable = None) -> bool:
        """Return whether a user exists and has this password. RefusedError: too many logins wait, in all or of this
        address."""
        digest = hmac.digest(self._key, password, "sha256")
        if self._known(name, digest):
            return True
        await self._turn(address)
        # The same password may have been checked meanwhile.
        if self._known(name, digest):
            self._release()
            return True
        found = self._hashes.get(name)
        hashing = asyncio.get_running_loop().run_in_executor(
            self._threads, (found or self._nobody).holds, password
        )

        def hashed(hashing: "asyncio.Future[bool]") -> None:
            self._release()
            if found is not None and not hashing.cancelled() and not hashing.exception() and hashing.result():
                self._right[name] = digest

        hashing.add_done_callback(hashed)
        # The thread is busy until the hash is done. If this task is cancelled meanwhile, the client's next login finds
        # the result: on a busy machine, no hash may be done in time.
        return await asyncio.shield(hashing) and found is not None

    def _known(self, name: str, digest: bytes) -> bool:
        known = self._right.get(name)
        return known is not None and hmac.compare_digest(known, digest)

    async def _turn(self, address: Hashable) -> None:
        """Wait for a thread. Raises RefusedError."""
        if self._free:
            self._free -= 1
            return
        if sum(map(len, self._waiting.values())) >= self._most:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "too many logins at the same time")
        queue = self._waiting.setdefault(address, deque())
        if len(queue) >= self._each:
            raise RefusedError(spec5.QUOTA_EXCEEDED, "too many logins from this address at the same time")
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
        """Give a free thread to the next address."""
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
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Receive updates of the program's files over MQTT or FMQ, and switch to them.

    update = Receiver(keeper, b"boards/shed/update", key, "shed")
    keeper.client.on_message = lambda message: update.take(message) or command(message)
    keeper.subscribe(b"boards/shed/update", 1)
    keeper.start()
    while True:
        keeper.wait(100)
        update.poll()

``headwater board publish-update`` sends an update image in pieces and follows the reports on the topic + ``/state``.
The image is a signed manifest and the files (``docs/updates.md``). The receiver writes them to the slot that does not
run, compares their hashes, switches the slot with ``headwater_board.loader``, and restarts the board. It finds its
progress in the sizes of the files, so it continues after a reconnect, a reset and a power cut.

Taking pieces allocates nothing; opening a file, checking a manifest and most reports do.
"""

import gc
import json
import os
from binascii import hexlify, unhexlify
from hashlib import sha256

from micropython import const

from headwater_board import loader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.types import Bytes
    from headwater.wire import Message

#: No update is in progress.
IDLE = const(0)
#: Files are being received.
RECEIVING = const(1)
#: All of them are there, and their hashes are being compared.
CHECKING = const(2)
#: The next start runs the new version.
READY = const(3)

# A piece: id (8 bytes), flags (1), offset (3), data.
_ID = const(8)
_PIECE = const(12)
_ASKS = const(1)
_AGAIN = const(2)
# An image: magic (4 bytes), length of the manifest (2), HMAC (32), manifest, files.
_MAGIC = b"HWU1"
_SIGNATURE = const(6)
_HEAD = const(38)
_LARGEST = const(1 << 24)
# What a message has beside topic and payload: header, properties, FMQ's id.
_AROUND = const(48)
_MANIFEST = "update.hwu"
_NO_MEMORY = "out of memory; try again after a restart of the board"
_LOADER = const(2)
_OLD_LOADER = "this board's headwater_board.loader is too old: install headwater-update over USB"
_FIRMWARE = "firmware"
_NAME = const(96)
_SYNC = const(16384)
_BLOCK = const(1024)
_BLOCKS = const(16)
# Flash blocks to leave free: the loader's file, an outbox, and what littlefs itself needs.
_SPARE = const(8)
_ATTEMPTS = const(3)
_LAST_REPORT_MS = const(5000)
# How long the program polls without a connection until the start counts as offline, and until the next try to confirm.
_TRIAL_MS = const(5000)
_NUMBER = const(8)
_SHORTEST_KEY = const(16)
# Of ``headwater.reconnect``, ``headwater.errors`` and ``headwater.wire``.
_PAUSE = const(1)
_CONNECTING = const(2)
_ONLINE = const(3)
_REFUSED = const(-60)
_PASSING = b"\x03\x88\x89\x97\x9c\x9d\x9f"
_TICKS_MASK = const(0x3FFFFFFF)


class RefusedError(Exception):
    """An image that this board does not install; the text says why."""


# Made once, because there may be no memory for them when they are needed.
_FAILURES = (OSError, MemoryError)
_UNUSABLE = (OSError, MemoryError, RefusedError, IndexError)


class Receiver:
    """Takes updates for the board ``target``, signed with ``key``, from ``topic``.

    ``keeper`` publishes the reports. ``restart`` is called when the new version is to be started; None leaves that to
    the program, once ``state`` is READY. With ``confirm`` the version that runs counts as healthy as soon as it is
    connected; without it the program calls ``loader.confirm()``. ``starts`` is how many starts a new version gets, and
    ``offline_starts`` how many that end without a connection or by a power cut. Raises ValueError for a key that is too
    short, and RefusedError in a version on trial whose receiver needs a newer loader.
    """

    def __init__(
        self,
        keeper: "Any",
        topic: bytes,
        key: bytes,
        target: str,
        restart: "Callable[[], object] | None" = None,
        confirm: bool = True,
        starts: int = 3,
        manifest_size: int = 8192,
        offline_starts: int = 144,
    ):
        if len(key) < _SHORTEST_KEY:
            raise ValueError("the key has %d bytes; at least %d are needed" % (len(key), _SHORTEST_KEY))
        if loader.on_trial and _is_loader_old():
            # It could not receive another update: the loader returns to the previous version.
            raise RefusedError(_OLD_LOADER)
        self.topic = topic
        self.target = target
        self.restart = restart
        self.confirm = confirm
        self.starts = starts
        self.offline_starts = offline_starts
        self.manifest_size = manifest_size
        #: IDLE, RECEIVING, CHECKING or READY.
        self.state = IDLE
        #: Bytes of the image that are there, and its size.
        self.at = self.size = 0
        #: Messages on the topic that are no pieces.
        self.malformed = 0
        self._keeper = keeper
        # Bound once, because binding allocates.
        self._publish: Callable[..., int] = keeper.publish
        self._key = key
        self._topic_state = topic + b"/state"
        self._now = loader.read()
        self._slot = "/b" if self._now["slot"] == "a" else "/a"
        self._path = self._slot + "/" + _MANIFEST
        # The connection that has been reported; there may be one already.
        self._connections = 0
        # A version on trial: since when it has been polled without a change, and why the flash cannot be written.
        self._trial_at: int = keeper.client.dialer.ticks_ms()
        self._unstored = ""
        # Bytes of a piece that the receive buffer holds.
        self._most: int = keeper.client.session.rx.capacity - len(topic) - _PIECE - _AROUND
        # A manifest that is being collected, with what is before it in the image; how much of it is there.
        self._head: bytearray | None = None
        self._head_at = 0
        # The image that was accepted: its id, names, sizes and hashes of its files; the file that is open.
        self._id = bytearray(_ID)
        self._manifest: dict[str, Any] = {}
        self._files: list[tuple[str, int, str]] = []
        self._index = self._file_at = self._unsynced = 0
        self._file: Any = None
        self._hash: Any = None
        self._block = bytearray(0)
        self._bad = 0
        # Why the image cannot be installed: `poll` gives it up, which takes memory.
        self._error: BaseException | str | None = None
        # What to report: the progress, the running version, the state of an image that was accepted, refused or has
        # failed. Kept in parts, because there may be no memory for the text.
        self._progress = bytearray(0)
        self._says_progress = self._says_version = False
        self._about = bytearray(_ID)
        self._about_state = self._about_why = ""
        self._gap = -1
        self._ready_at = 0
        self._resume()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def take(self, message: "Message") -> bool:
        """Take a message if it is on the topic. Return whether it was. For ``on_message``; raises nothing."""
        if not message.topic_is(self.topic):
            return False
        self._take_safely(message.buf, message.payload_at, message.end - message.payload_at - _PIECE)
        return True

    def _take_safely(self, buf: "Bytes", at: int, n: int) -> None:
        """Take a piece without raising MemoryError. Its own method, to keep the frame of ``take`` off the heap."""
        try:
            self._take(buf, at, n)
        except MemoryError:
            self._conclude(buf, at, _NO_MEMORY)

    def _take(self, buf: "Bytes", at: int, n: int) -> None:
        """Take the piece at ``at``, with ``n`` bytes of data."""
        if n < 0:
            self.malformed += 1
            return
        asks = buf[at + _ID] & _ASKS != 0
        offset = buf[at + 9] << 16 | buf[at + 10] << 8 | buf[at + 11]
        if self.state and _same(buf, at, self._id, 0):
            if self.state == RECEIVING and self._error is None:
                self._store(buf, at + _PIECE, n, offset)
            self._says_progress = self._says_progress or asks
        elif self._head is not None and _same(buf, at, self._head, _SIGNATURE):
            self._collect(buf, at + _PIECE, n, offset)
            self._says_progress = self._says_progress or asks
        elif offset == 0 and n >= _HEAD:
            self._offer(buf, at, n)
        elif asks:
            self._says_version = True

    def _offer(self, buf: "Bytes", at: int, n: int) -> None:
        """Start to collect a manifest. A running update continues until the manifest is complete and verified."""
        where = at + _PIECE
        image_id = _hex(buf, at)
        failed = not buf[at + _ID] & _AGAIN and self._now.get("failed", {}).get("id")
        if image_id == self._now["id"] or image_id == failed:
            # It was installed already, or has failed and is not to be tried again: nothing to do but to say so.
            self._says_version = True
            return
        size = buf[where + 4] << 8 | buf[where + 5]
        if bytes(buf[where : where + 4]) != _MAGIC or not _same(buf, at, buf, where + _SIGNATURE):
            self._conclude(buf, at, "this is no update image of a known format")
        elif size > self.manifest_size:
            self._conclude(buf, at, "the manifest has %d bytes; at most %d" % (size, self.manifest_size))
        else:
            self._head = bytearray(_HEAD + size)
            self._head[:_HEAD] = buf[where : where + _HEAD]
            self._head_at = 0
            self._collect(buf, where, n, 0)
            self._says_progress = True

    def _collect(self, buf: "Bytes", at: int, n: int, offset: int) -> None:
        head: Any = self._head
        if offset <= self._head_at < len(head):
            # Bytes after the manifest are dropped, and requested once the manifest is accepted.
            for i in range(self._head_at - offset, min(n, len(head) - offset)):
                head[offset + i] = buf[at + i]
                self._head_at += 1
        elif offset > self._head_at:
            self._says_progress = True

    def _store(self, buf: "Bytes", at: int, n: int, offset: int) -> None:
        """Write what is new in a piece to the files."""
        skip = self.at - offset
        if skip < 0:
            # A gap: one report for each.
            self._says_progress = self._says_progress or self._gap != self.at
            self._gap = self.at
            return
        try:
            while skip < n and self.state == RECEIVING:
                k = min(n - skip, self._files[self._index][1] - self._file_at)
                if self._file.write(buf, at + skip, k) != k:
                    raise OSError(28)
                skip += k
                self.at += k
                self._file_at += k
                self._unsynced += k
                self._settle()
        except _FAILURES as error:
            self._error = error

    def _settle(self) -> None:
        """Sync at times; close a file that is complete, and open the next one."""
        if self._unsynced >= _SYNC:
            self._unsynced = 0
            self._file.flush()
        while self._file_at == self._files[self._index][1]:
            self._file.close()
            self._file = None
            self._index += 1
            if self._index == len(self._files):
                self.state = CHECKING
                self._index = 0
                self._says_progress = True
                return
            self._open()

    # -- what a program calls in its loop ------------------------------------------------------------------------------

    def poll(self) -> int:
        """Check and report what is due, and restart the board into a new version: ``state``. Call it after
        ``keeper.poll``.
        """
        if (
            self._head is not None
            or self._error is not None
            or self.state == CHECKING
            or loader.on_trial
            or (self._keeper.state == _ONLINE and self._is_due())
        ):
            self._work_safely()
        if self.state == READY and self.restart is not None:
            waited = self._keeper.client.dialer.ticks_ms() - self._ready_at & _TICKS_MASK
            if waited >= _LAST_REPORT_MS or not (self._about_state or self._keeper.waiting()):
                # The report has arrived, or never will.
                self.restart()
        return self.state

    def _is_due(self) -> bool:
        """Return whether there is something to report."""
        return (
            self._says_version
            or self._says_progress
            or self._about_state != ""
            or self._keeper.connections != self._connections
            or "left" in self._now
        )

    def _work_safely(self) -> None:
        """Do what is due, without raising MemoryError. Its own method, because its frame takes heap."""
        try:
            self._work()
        except MemoryError:
            # A later poll does the rest.
            gc.collect()

    def _work(self) -> None:
        if self._head is not None and self._head_at == len(self._head):
            self._decide(self._head)
        if self.state == CHECKING and self._error is None:
            self._check()
        if self._error is not None:
            self._fail(self._error)
        keeper = self._keeper
        online = keeper.state == _ONLINE
        if loader.on_trial:
            self._try(online)
        if online:
            if keeper.connections != self._connections:
                self._connections = keeper.connections
                self._says_version = True
                self._says_progress = self.state == RECEIVING
            if "left" in self._now and loader.started and not loader.on_trial:
                # The program has called ``loader.confirm``, or this has.
                self._now = loader.read()
                self._says_version = self._says_version or "left" not in self._now
            self._report()

    def _try(self, online: bool) -> None:
        """Confirm the version on trial once it is connected, or record that only the connection is missing."""
        keeper = self._keeper
        now = keeper.client.dialer.ticks_ms()
        waited = now - self._trial_at & _TICKS_MASK >= _TRIAL_MS
        if online and self.confirm:
            # On the first connection at once.
            if waited or not self._unstored:
                self._trial_at = now
                self._unstored = loader.confirm()
                self._says_version = True
        elif waited:
            self._trial_at = now
            # A broker that refuses the program is there.
            loader.mark_offline(
                keeper.state == _CONNECTING
                or (
                    keeper.state == _PAUSE
                    and (keeper.status != _REFUSED or keeper.client.session.return_code in _PASSING)
                )
            )

    def _report(self) -> None:
        """Publish what is to be reported, as far as there is room."""
        publish = self._publish
        if self._about_state and publish(self._topic_state, self._result(), 1) >= 0:
            self._about_state = self._about_why = ""
        if self._says_version and publish(self._topic_state, self._version(), 1) >= 0:
            self._says_version = False
        if self._says_progress:
            if self._head is not None:
                publish(self._topic_state, self._form(self._head, _SIGNATURE, 0, self._head_at), 0)
            # Another sender may wait for the report about its image.
            if self.state:
                number = self.at
                for i in range(len(self._progress) - 2, len(self._progress) - 2 - _NUMBER, -1):
                    self._progress[i] = 48 + number % 10 if number or i == len(self._progress) - 2 else 32
                    number //= 10
                publish(self._topic_state, self._progress, 0)
            self._says_progress = False

    def _form(self, buf: "Bytes", at: int, size: int, done: int) -> bytearray:
        """Return a report of progress, whose number is at its end and has a fixed width."""
        text = '{"state": "receiving", "id": "%s", "size": %d, "piece": %d, "next": %8d}'
        return bytearray((text % (_hex(buf, at), size, self._most, done)).encode())

    def _version(self) -> bytes:
        """Return the report of the version that runs, and of the last one that did not stay."""
        now = self._now
        report = {"state": "running", "id": now["id"], "version": now["version"], "trial": "left" in now}
        if self._unstored:
            report["why"] = self._unstored
        if "failed" in now:
            report["failed"] = now["failed"]
        return json.dumps(report).encode()

    def _result(self) -> bytes:
        """Return the report of an image that was accepted, refused or has failed."""
        report = {"state": self._about_state, "id": _hex(self._about, 0)}
        report["version" if self._about_state == "ready" else "why"] = self._about_why
        return json.dumps(report).encode()

    def _conclude(self, buf: "Bytes", at: int, why: str, state: str = "refused") -> None:
        """Report the state of the image with the id at ``at``. Allocates nothing."""
        for i in range(_ID):
            self._about[i] = buf[at + i]
        self._about_state = state
        self._about_why = why

    def _fail(self, error: "BaseException | str") -> None:
        """Give the image up."""
        self._error = None
        self.state = IDLE
        self._manifest = {}
        self._hash = None
        try:
            self._close()
            self._conclude(self._id, 0, _reason(error), "failed")
            os.remove(self._path)
        except OSError:
            pass
        except MemoryError:
            self._conclude(self._id, 0, _NO_MEMORY, "failed")

    def _close(self) -> None:
        file = self._file
        if file is not None:
            self._file = None
            try:
                file.close()
            except OSError:
                pass

    # -- the manifest --------------------------------------------------------------------------------------------------

    def _decide(self, head: bytearray) -> None:
        """Accept an image by its manifest, or refuse it."""
        self._head = None
        try:
            manifest = self._verified(head)
            again = _hex(head, _SIGNATURE) == self._now.get("failed", {}).get("id")
            self._allow(manifest, again)
        except RefusedError as error:
            self._conclude(head, _SIGNATURE, error.args[0])
            return
        except MemoryError:
            gc.collect()
            self._conclude(head, _SIGNATURE, _NO_MEMORY)
            return
        for i in range(_ID):
            self._id[i] = head[_SIGNATURE + i]
        try:
            if again:
                loader.retry(self._now["failed"]["id"])
                self._now = loader.read()
            self._accept(head, manifest)
        except _FAILURES as error:
            self._error = error

    def _verified(self, head: bytearray) -> "dict[str, Any]":
        """Return the manifest of an image that was made for this board by a holder of its key, and is well-formed."""
        signed = bytes(head[:_SIGNATURE]) + bytes(head[_HEAD:])
        if not same_digest(hmac_sha256(self._key, signed), head, _SIGNATURE):
            raise RefusedError("the signature does not match this board's key")
        try:
            manifest = json.loads(bytes(head[_HEAD:]))
            _check_manifest(manifest)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError):
            raise RefusedError("the manifest is not of a known format")
        if manifest["target"] != self.target:
            raise RefusedError("it is for the board %s; this is %s" % (manifest["target"], self.target))
        return manifest  # type: ignore[no-any-return]

    def _allow(self, manifest: "dict[str, Any]", again: bool) -> None:
        """Raise RefusedError for an image that must not be installed now. ``again``: it is the one that failed last."""
        now = self._now
        if not loader.started:
            raise RefusedError("main.py does not start the program with headwater_board.loader")
        if _is_loader_old():
            raise RefusedError(_OLD_LOADER)
        if "left" in now:
            raise RefusedError("version %s is on trial; try again once it is healthy" % now["version"])
        if self.state == READY:
            raise RefusedError("version %s waits for the restart of the board" % self._manifest["version"])
        newest = self._manifest["serial"] if self.state else now["serial"] - (1 if again else 0)
        if manifest["serial"] <= newest:
            raise RefusedError("replayed: it is not newer than the last update that was accepted")
        if _number(manifest["version"]) < _number(now["version"]) and not manifest.get("downgrade"):
            raise RefusedError(
                "version %s runs; %s is a downgrade, and not signed as one"
                % (now["version"], manifest["version"])
            )
        if "firmware" in manifest:
            from headwater_board.ota_firmware import room

            if manifest["firmware"][0] > room():
                raise RefusedError(
                    "this board's firmware has no OTA partition for %d bytes" % manifest["firmware"][0]
                )
        status = os.statvfs("/")
        block = status[0]
        needed = _blocks(manifest["files"], block)
        there = status[3] + (_used(self._slot, block) if _is_there(self._slot) else 0)
        if needed > there:
            raise RefusedError(
                "the files need %d bytes of flash; %d are free" % (needed * block, there * block)
            )

    def _accept(self, head: bytearray, manifest: "dict[str, Any]") -> None:
        """Store the manifest in the slot, which is emptied if it has other files."""
        self._close()
        self._hash = None
        path = self._path
        old = self._manifest
        if not old or old["files"] != manifest["files"] or old.get("firmware") != manifest.get("firmware"):
            self.state = IDLE
            # The manifest goes first: without it the slot has no progress that could be continued.
            if _is_there(path):
                os.remove(path)
            if _is_there(self._slot):
                _remove_all(self._slot)
            os.mkdir(self._slot)
        with open(path + ".new", "wb") as file:
            file.write(head)
        os.rename(path + ".new", path)
        self._begin(head, manifest)

    def _resume(self) -> None:
        """Continue with the image whose manifest is in the slot."""
        if not loader.started:
            # The next start would not run what is in the slot.
            return
        try:
            with open(self._path, "rb") as file:
                head = bytearray(file.read())
            manifest = self._verified(head)
            if manifest["serial"] > self._now["serial"] and "left" not in self._now:
                self._begin(head, manifest)
        except _UNUSABLE:
            # There is none, it is not ours to continue, or there is no memory for it now.
            self._close()
            self.state = IDLE
            self._manifest = {}

    def _begin(self, head: bytearray, manifest: "dict[str, Any]") -> None:
        """Find the parts of the image that are already stored, and receive the rest."""
        self._manifest = manifest
        self._id[:] = head[_SIGNATURE : _SIGNATURE + _ID]
        self._files = [(self._slot + "/" + name, size, digest) for name, size, digest in manifest["files"]]
        if "firmware" in manifest:
            size, digest = manifest["firmware"]
            self._files.append((_FIRMWARE, size, digest))
        self.at = len(head)
        self.size = self.at + sum([size for _, size, _ in self._files])
        self._progress = self._form(self._id, 0, self.size, self.at)
        self._bad = 0
        self._continue()

    def _continue(self) -> None:
        """Open the first file that is not complete."""
        self.state = RECEIVING
        self._index = self._unsynced = 0
        self._gap = -1
        self._says_progress = True
        self._open()
        self._settle()

    def _open(self) -> None:
        """Open the file at ``_index`` to append to it."""
        name, size, _ = self._files[self._index]
        if name == _FIRMWARE:
            from headwater_board.ota_firmware import Image

            self._file = Image(self._slot + "/firmware.at")
            self._file_at = self._file.at
        else:
            _make_folders(name)
            self._file = open(name, "ab")
            # littlefs goes to the end only when it writes.
            self._file_at = self._file.seek(0, 2)
        if self._file_at > size:
            self._file.close()
            raise OSError(5)
        self.at += self._file_at

    # -- the hashes ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Hash some blocks of what was written; at the end of a file compare, at the end of all switch the slot."""
        name, size, digest = self._files[self._index]
        try:
            if self._hash is None:
                self._hash = sha256()
                self._block = bytearray(_BLOCK)
                self._file = self._written(name, size)
            n = _BLOCK
            for _ in range(_BLOCKS):
                n = self._file.readinto(self._block)
                if n < _BLOCK:
                    break
                self._hash.update(self._block)
            if n == _BLOCK:
                return
            self._hash.update(self._block[:n])
            good = hexlify(self._hash.digest()).decode() == digest
            self._hash = None
            self._close()
            self._next_check(good)
        except _FAILURES as error:
            self._error = error

    def _written(self, name: str, size: int) -> "Any":
        if name != _FIRMWARE:
            return open(name, "rb")
        from headwater_board.ota_firmware import Written

        return Written(size)

    def _next_check(self, good: bool) -> None:
        name = self._files[self._index][0]
        if not good:
            self._bad += 1
            if self._bad == _ATTEMPTS:
                self._error = "%s arrived damaged %d times" % (name, _ATTEMPTS)
                return
            # This one and all after it are received again, because what is there is one number.
            for name, _, _ in self._files[self._index :]:
                os.remove(self._slot + "/firmware.at" if name == _FIRMWARE else name)
            self.at = self.size - sum([size for _, size, _ in self._files])
            self._continue()
            return
        self._index += 1
        if self._index == len(self._files):
            self._switch()

    def _switch(self) -> None:
        manifest = self._manifest
        label = ""
        image_id = _hex(self._id, 0)
        if "firmware" in manifest:
            from headwater_board.ota_firmware import next_partition

            label = next_partition().info()[4]
        loader.switch(
            self._slot[1:],
            manifest["version"],
            image_id,
            manifest["serial"],
            self.starts,
            label,
            self.offline_starts,
        )
        self.state = READY
        self._ready_at = self._keeper.client.dialer.ticks_ms()
        self._conclude(self._id, 0, manifest["version"], "ready")


# -- the parts that have no state --------------------------------------------------------------------------------------


def _reason(error: "BaseException | str") -> str:
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    return error if isinstance(error, str) else "%s: %s" % (type(error).__name__, error)


def _hex(buf: "Bytes", at: int) -> str:
    """Return the id at ``at`` in hexadecimal."""
    return hexlify(bytes(buf[at : at + _ID])).decode()


def read_key(path: str) -> bytes:
    """Return the key in a file: hexadecimal digits, or the bytes themselves. Raises OSError."""
    with open(path, "rb") as file:
        data: bytes = file.read()
    try:
        return unhexlify(data.strip())
    except ValueError:
        return data


def hmac_sha256(key: bytes, data: bytes) -> bytes:
    """Return the HMAC of ``data`` (RFC 2104)."""
    if len(key) > 64:
        key = sha256(key).digest()
    key = key + bytes(64 - len(key))
    inner = sha256(bytes([c ^ 0x36 for c in key]))
    inner.update(data)
    outer = sha256(bytes([c ^ 0x5C for c in key]))
    outer.update(inner.digest())
    return outer.digest()  # type: ignore[no-any-return]


def same_digest(digest: bytes, buf: "Bytes", at: int) -> bool:
    """Compare in a time that does not depend on where they differ."""
    different = 0
    for i in range(len(digest)):
        different |= digest[i] ^ buf[at + i]
    return different == 0


def _is_loader_old() -> bool:
    """Return whether the installed loader, which updates do not change, lacks what this receiver calls."""
    return getattr(loader, "VERSION", 1) < _LOADER


def _same(a: "Bytes", at: int, b: "Bytes", where: int) -> bool:
    """Return whether two ids are the same. Allocates nothing."""
    for i in range(_ID):
        if a[at + i] != b[where + i]:
            return False
    return True


def _number(version: str) -> "list[int]":
    """Return a version such as 1.10.2 for comparing. Raises ValueError."""
    return [int(part) for part in version.split(".")]


def _check_manifest(manifest: "dict[str, Any]") -> None:
    """Raise ValueError or TypeError for a manifest that was not made by the rules."""
    files = manifest["files"]
    entries = list(files)
    if "firmware" in manifest:
        entries.append([_FIRMWARE] + manifest["firmware"])
    total = 0
    for _, size, digest in entries:
        if not isinstance(size, int) or not 0 <= size < _LARGEST or len(digest) != 64:
            raise ValueError
        total += size
    names = [name for name, _, _ in files]
    if not entries or total + 65536 > _LARGEST or len(set(names)) != len(names):
        raise ValueError
    for name in names:
        parts = name.split("/")
        if not 0 < len(name) <= _NAME or "" in parts or "." in parts or ".." in parts:
            raise ValueError
        if (
            name == _MANIFEST
            or name == _MANIFEST + ".new"
            or name == "firmware.at"
            # Of bytes: MicroPython keeps each different character of a string for ever.
            or min(name.encode()) < 32
            or "\\" in name
        ):
            raise ValueError
        for i in range(1, len(parts)):
            # A file cannot be a folder as well.
            if "/".join(parts[:i]) in names:
                raise ValueError
    _number(manifest["version"])
    serial = manifest["serial"]
    if manifest["format"] != 1 or not isinstance(serial, int) or not isinstance(manifest["target"], str):
        raise ValueError


def _blocks(files: "list[Any]", block: int) -> int:
    """Return the flash blocks that files take: littlefs stores pointers in them, and two blocks for a folder."""
    folders = set()
    blocks = 4
    for name, size, _ in files:
        blocks += (size + size // 256 + block) // block
        folders.add("/".join(name.split("/")[:-1]))
    return blocks + 2 * len(folders) + _SPARE


def _used(folder: str, block: int) -> int:
    """Return the blocks that removing a folder gives back at least."""
    blocks = 0
    for entry in os.ilistdir(folder):
        path = folder + "/" + entry[0]
        blocks += _used(path, block) + 2 if entry[1] & 0x4000 else os.stat(path)[6] // block
    return blocks


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True


def _remove_all(folder: str) -> None:
    for entry in os.ilistdir(folder):
        path = folder + "/" + entry[0]
        if entry[1] & 0x4000:
            _remove_all(path)
        else:
            os.remove(path)
    os.rmdir(folder)


def _make_folders(path: str) -> None:
    parts = path.split("/")
    for i in range(2, len(parts)):
        folder = "/".join(parts[:i])
        if not _is_there(folder):
            os.mkdir(folder)

"""Send an update image to a board over MQTT or FMQ, and follow what the board reports."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from headwater_host.board.image import HEAD, ID
from headwater_host.exits import FAILED, TIMED_OUT, CommandError
from headwater_host.timeouts import within

#: Pieces that are sent before the board has to report.
WINDOW = 16
#: Seconds without a report after which the last request is repeated.
SILENCE_S = 5.0
_ASKS = 1
_AGAIN = 2
#: What ``Transfer.state`` may be, in this order; "failed" ends it as well.
WAITING, RECEIVING, CHECKING, READY, TRIAL, RUNNING = (
    "waiting",
    "receiving",
    "checking",
    "ready",
    "trial",
    "running",
)


class UpdateError(CommandError):
    """The board did not install the image; the text says why and what it runs."""


class Transfer:
    """The sending end of an image: which pieces come next. Does no I/O.

    Send ``pieces()``; give each payload of the state topic to ``report``, which returns whether to call ``pieces``
    again. After ``SILENCE_S`` without a report call ``repeat`` and ``pieces``.
    """

    def __init__(self, image: bytes, window: int = WINDOW, *, again: bool = False) -> None:
        """Begin with the request for the board's state. ``again`` installs an image that was rolled back once more."""
        self.image = image
        self.id = image[ID]
        self.window = window
        self._body = HEAD + int.from_bytes(image[4:6], "big")
        self.state = WAITING
        #: Why the board cannot confirm the version that is on trial.
        self.why = ""
        self._flags = _AGAIN if again else 0
        #: Bytes of the image that the board has.
        self.at = 0
        # Data bytes in a piece; before the board has said how many fit, its first message has the head alone.
        self._piece = 0
        self._sent_from = -1

    def pieces(self) -> list[bytes]:
        """Return the pieces from ``at`` on; the last one asks for a report."""
        if not self._piece or self.state not in (WAITING, RECEIVING):
            return [self._form(0, HEAD, _ASKS)]
        self._sent_from = self.at
        # The board writes nothing of the files before it has checked the manifest.
        end = self._body if self.at < self._body else len(self.image)
        starts = range(self.at, end, self._piece)[: self.window]
        return [self._form(at, min(self._piece, end - at), _ASKS if at == starts[-1] else 0) for at in starts]

    def repeat(self) -> None:
        """Ask the board where it is: a message was lost, or the board was off."""
        self._piece = 0

    def _form(self, at: int, n: int, flags: int) -> bytes:
        return self.id + bytes([flags | self._flags]) + at.to_bytes(3, "big") + self.image[at : at + n]

    def report(self, payload: bytes) -> bool:
        """Take a report of the board. Return whether to send pieces. Raises UpdateError if the update has failed."""
        try:
            report = json.loads(payload)
            state = report["state"]
            ours = report["id"] == self.id.hex()
        except (ValueError, TypeError, KeyError):
            return False
        if state == "running":
            return self._running(report, ours)
        if not ours:
            return False
        if state in ("refused", "failed"):
            raise UpdateError(f"the board {state} the update: {report.get('why')}", FAILED)
        if state == "ready":
            self.state = READY
            return False
        at, piece = report.get("next"), report.get("piece")
        if (
            state != "receiving"
            or not isinstance(at, int)
            or not isinstance(piece, int)
            or at < 0
            or piece < 1
        ):
            return False
        before, self.at = self._sent_from, at
        if self.at >= len(self.image):
            # A report of the progress may follow the one that the files are good.
            if self.state != READY:
                self.state = CHECKING
            return False
        self.state = RECEIVING
        # A report that is older than the last pieces begins where they did; they are in flight.
        stale = self.at == before and piece == self._piece
        self._piece = piece
        return not stale

    def _running(self, report: dict[str, Any], ours: bool) -> bool:
        failed = report.get("failed")
        # With ``again``, a failure from before does not count until the board has begun.
        old = self._flags and self.state == WAITING
        if isinstance(failed, dict) and failed.get("id") == self.id.hex() and not old:
            raise UpdateError(
                f"version {failed.get('version')} did not become healthy ({failed.get('why')}); "
                f"the board runs {report.get('version')} again",
                FAILED,
            )
        if ours:
            self.state = TRIAL if report.get("trial") else RUNNING
            self.why = str(report.get("why", ""))
        if ours or self.state in (READY, TRIAL):
            return False
        # The board has restarted, or does not know of the image yet.
        self.repeat()
        return True


async def send(
    client: Any,
    topic: str,
    image: bytes,
    *,
    progress: Callable[[str, int, int], object] = lambda state, at, size: None,
    timeout: float = 120.0,
    window: int = WINDOW,
    silence: float = SILENCE_S,
    again: bool = False,
) -> None:
    """Send ``image`` to the board at ``topic``; return when the board runs it and has confirmed it.

    ``client`` is connected, of MQTT or FMQ, and has no other user. ``progress(state, at, size)`` is called with each
    report. ``again`` has the board try an image once more that it has rolled back. Raises UpdateError: the board
    refused the image, returned to its previous version, or reported nothing for ``timeout`` seconds.
    """
    await client.subscribe(f"{topic}/state")
    transfer = Transfer(image, window, again=again)
    heard = time.monotonic()
    due = True
    while transfer.state != RUNNING:
        if due:
            await asyncio.gather(*(client.publish(topic, piece, qos=1) for piece in transfer.pieces()))
        try:
            message = await within(min(silence, timeout), client.messages.__anext__())
        except asyncio.TimeoutError:
            if time.monotonic() - heard > timeout:
                raise _silent(transfer, topic, timeout) from None
            transfer.repeat()
            due = True
            continue
        heard = time.monotonic()
        due = transfer.report(bytes(message.payload))
        progress(transfer.state, transfer.at, len(image))


def _silent(transfer: Transfer, topic: str, timeout: float) -> UpdateError:
    where = {
        WAITING: f"it is off, has no update receiver on the topic {topic}, or its server is another one",
        RECEIVING: f"it has {transfer.at:,} of {len(transfer.image):,} bytes; repeat the command to continue",
        READY: "it restarts into the new version, or back from it",
        TRIAL: f"the new version runs on trial{transfer.why and ', and cannot be confirmed: '}{transfer.why}",
    }.get(transfer.state, f"its last state was {transfer.state!r}")
    return UpdateError(f"no report from the board for {timeout:g} s: {where}", TIMED_OUT)

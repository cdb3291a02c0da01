"""What a command reads while it is connected: in a thread, so that neither a signal nor the server has to wait."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator


def lines() -> Iterator[bytes]:
    """The lines of standard input, without their ends."""
    # Not through sys.stdin: its lock, held by a thread that waits, would abort the interpreter at its end.
    begun: list[bytes] = []
    while data := os.read(0, 1 << 16):
        first, *lines = data.split(b"\n")
        begun.append(first)
        for line in lines:
            yield b"".join(begun).removesuffix(b"\r")
            begun = [line]
    if any(begun):
        yield b"".join(begun).removesuffix(b"\r")


async def in_thread(source: Iterator[bytes], room: int) -> AsyncIterator[bytes]:
    """What a source has, or raises; so many of it may be read ahead."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
    free = threading.Semaphore(room)

    def put(found: bytes | Exception | None) -> None:
        free.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, found)

    def read() -> None:
        # RuntimeError: the loop is closed, the command has ended.
        with contextlib.suppress(RuntimeError):
            try:
                for found in source:
                    put(found)
                put(None)
            except Exception as error:
                put(error)

    threading.Thread(target=read, daemon=True).start()
    while (found := await queue.get()) is not None:
        if isinstance(found, Exception):
            raise found
        free.release()
        yield found

"""Read standard input in a thread."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator


def lines() -> Iterator[bytes]:
    """Yield the lines of standard input without line ends."""
    # A thread that waits in sys.stdin holds its lock, which would abort the interpreter at exit: use os.read.
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
    """Yield the items of ``source``, at most ``room`` read ahead. Raises what it raises."""
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

"""The hub's metrics over HTTP, for Prometheus: GET /metrics, and nothing else."""

import asyncio
from collections.abc import Callable

from headwater_host.hub.metrics import CONTENT_TYPE

#: Seconds that a request may take, and how long its head may be.
_PATIENCE = 10.0
_LONGEST = 8192
#: Requests at the same time.
_MOST = 20
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 400: "Bad Request"}


async def serve(host: str, port: int, text: Callable[[], str]) -> asyncio.AbstractServer:
    """Listen. Raises OSError."""
    busy = asyncio.Semaphore(_MOST)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with busy:
                await asyncio.wait_for(_answer(reader, writer, text), _PATIENCE)
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_LONGEST)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: Callable[[], str]
) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.partition(b"\r\n")[0].split(b" ")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        status, body = 400, b"This is no request.\n"
    else:
        if path.partition(b"?")[0] != b"/metrics":
            status, body = 404, b"There is /metrics.\n"
        elif method not in (b"GET", b"HEAD"):
            status, body = 405, b"There is GET.\n"
        else:
            status, body = 200, text().encode()
        if method == b"HEAD":
            writer.write(_head(status, len(body)))
            return await writer.drain()
    writer.write(_head(status, len(body)) + body)
    return await writer.drain()


def _head(status: int, length: int) -> bytes:
    kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {length}",
        "Connection: close",
    ]
    return "".join(line + "\r\n" for line in [*lines, ""]).encode()

"""``headwater rpc``: call a remote procedure over FMQ, or provide one with a command."""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING

from headwater_host.cli import connection, fmq
from headwater_host.cli.argument_types import topic, topic_filter
from headwater_host.cli.options import FLAG, SECONDS, content, integer, option, subcommand, whole
from headwater_host.errors import ClientError
from headwater_host.exits import OK, SIGNALLED, USAGE, CommandError
from headwater_host.timeouts import within

if TYPE_CHECKING:
    from headwater_host.client.fmq import Client
    from headwater_host.client.fmq.messages import Call

#: Reason codes (MQTT 5.0, 2.4) of refused calls.
_FAILED, _TOO_SLOW, _TOO_LARGE = 0x80, 0x83, 0x95
#: Maximum bytes of a result, and of standard error that is searched for its last line.
_LONGEST = 15 << 20
_WORDS = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    parser.description = "Call or provide a remote procedure over FMQ."
    commands = parser.add_subparsers(dest="rpc_command", metavar="COMMAND", required=True)
    call = subcommand(commands, "call", "call a procedure and print its result")
    option(call, "topic", "Topic of the procedure", type=topic, metavar="TOPIC")
    given = call.add_mutually_exclusive_group()
    option(given, "arguments", "Arguments as text; default: none", nargs="?", metavar="ARGUMENTS")
    option(given, "-f --file", "File with the arguments; - reads standard input", metavar="FILE")
    option(call, "--value", "Convert JSON arguments to an FMQ value, and back", FLAG)
    option(call, "-N --no-newline", "Add no newline to the result", FLAG)
    option(call, "-W --wait", "Timeout for the result; default: %(default)g", SECONDS, default=60.0)
    connection.add_connection(call, False)
    serve = subcommand(
        commands,
        "serve",
        "answer calls by running a command",
        "COMMAND gets the arguments as its standard input; its standard output is the result. If COMMAND fails, the "
        "call is refused with the last line of its standard error.",
    )
    option(serve, "topic", "Topic filter of the procedures", type=topic_filter, metavar="TOPIC")
    option(
        serve,
        "words",
        "Command and its arguments, after --; gets $HEADWATER_TOPIC",
        nargs="+",
        metavar="COMMAND",
    )
    option(serve, "--value", "Convert an FMQ value to JSON, and the result back", FLAG)
    option(
        serve, "-j --jobs", "Maximum of concurrent calls; default: %(default)s", integer(1, 1000), default=4
    )
    option(serve, "-C --count", "Stop after this many calls", type=whole(1, 1 << 62))
    option(
        serve,
        "-W --wait",
        "Timeout after which COMMAND is killed; default: %(default)g",
        SECONDS,
        default=30.0,
    )
    connection.add_connection(serve, True)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; return 0, or 128 + n after signal n. ``serve`` without a count returns 0 after a signal."""
    fmq.no_topic(args)
    if args.rpc_command == "call":
        return connection.run_until_signal(_call(fmq.make_client(args, False), args, _arguments(args)))
    if shutil.which(args.words[0]) is None:
        raise CommandError(f"command not found: {args.words[0]!r}", USAGE)
    code = connection.run_until_signal(_serve(fmq.make_client(args, True), args))
    return OK if code > SIGNALLED and args.count is None else code


# -- call --------------------------------------------------------------------------------------------------------------


def _arguments(args: argparse.Namespace) -> bytes:
    if args.file is None:
        data = (args.arguments or "").encode("utf-8", "surrogateescape")
    else:
        data = content(args.file)
    if not args.value or (args.file is None and not data):
        return data
    try:
        return fmq.value(data.decode())
    except UnicodeDecodeError as error:
        raise CommandError("the value is not JSON: it is not UTF-8", USAGE) from error


async def _call(client: "Client", args: argparse.Namespace, arguments: bytes) -> int:
    async with client:
        connection.show_connection(client)
        result = await client.call(args.topic, arguments, timeout=args.wait)
    result = fmq.shown(result) if args.value else result
    sys.stdout.buffer.write(result)
    sys.stdout.buffer.write(b"" if args.no_newline or result.endswith(b"\n") else b"\n")
    sys.stdout.buffer.flush()
    return OK


# -- serve -------------------------------------------------------------------------------------------------------------


async def _serve(client: "Client", args: argparse.Namespace) -> int:
    room = asyncio.Semaphore(args.jobs)
    jobs: set[asyncio.Task[None]] = set()

    async def job(call: "Call") -> None:
        try:
            await _answer(call, args)
        except ClientError as error:
            # The caller has the error already, or gets a timeout.
            connection.log.debug("not answered: %s", error)
        finally:
            room.release()

    left = args.count
    async with client:
        connection.show_connection(client)
        await client.serve(str(args.topic))
        connection.log.debug("serving %r", str(args.topic))
        try:
            while left is None or left > 0:
                await room.acquire()
                call = await client.calls.__anext__()
                left = None if left is None else left - 1
                task = asyncio.ensure_future(job(call))
                jobs.add(task)
                task.add_done_callback(jobs.discard)
            await asyncio.gather(*jobs)
        finally:
            for task in jobs:
                task.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
    return OK


class _RefusedError(Exception):
    """The command has no result: ``code`` and the text go to the caller."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


async def _answer(call: "Call", args: argparse.Namespace) -> None:
    """Run the command for ``call`` and answer it."""
    connection.log.debug("called: %r", call)
    try:
        try:
            given = fmq.shown(call.arguments) if args.value else call.arguments
            result = await within(args.wait, _result(call, given, args.words))
            if args.value:
                result = fmq.value(result.decode())
        except asyncio.TimeoutError:
            raise _RefusedError(_TOO_SLOW, "the command took too long") from None
        except (CommandError, UnicodeDecodeError):
            raise _RefusedError(_FAILED, "the output of the command is not JSON") from None
    except _RefusedError as error:
        connection.log.debug("refused: %s", error)
        await call.refuse(error.code, str(error))
    else:
        connection.log.debug("answered with %d bytes", len(result))
        await call.reply(result)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _result(call: "Call", given: bytes, words: list[str]) -> bytes:
    """Run the command with ``given`` as its input; return its output. Raises _RefusedError.

    If cancelled, kills the command and the processes that it started.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"HEADWATER_TOPIC": str(call.topic)},
            start_new_session=True,
        )
    )
    try:
        # Cancelled, asyncio would kill only the command, and wait for those that it has started.
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            process = await starting
            _kill(process)
            await process.wait()
        raise
    except (OSError, ValueError) as error:
        raise _RefusedError(_FAILED, f"cannot run {words[0]!r}: {error}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    parts = (
        asyncio.ensure_future(_feed(process.stdin, given)),
        asyncio.ensure_future(_take(process.stdout)),
        asyncio.ensure_future(_tell(process.stderr)),
        asyncio.ensure_future(process.wait()),
    )
    try:
        _, result, last_line, code = await asyncio.gather(*parts)
    except BaseException:
        _kill(process)
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await process.wait()
        raise
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise _RefusedError(_FAILED, last_line or how)
    return result


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    # The command may exit without reading its input.
    with contextlib.suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
    with contextlib.suppress(ConnectionError):
        await stdin.wait_closed()


async def _take(stdout: asyncio.StreamReader) -> bytes:
    """Return the whole output. Raises _RefusedError if it is too long."""
    parts: list[bytes] = []
    size = 0
    while part := await stdout.read(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _LONGEST:
            raise _RefusedError(_TOO_LARGE, f"the result is longer than {_LONGEST} bytes")
    return b"".join(parts)


async def _tell(stderr: asyncio.StreamReader) -> str:
    """Copy to our standard error; return the last line that is not empty."""
    last = b""
    while part := await stderr.read(_WORDS):
        sys.stderr.buffer.write(part)
        sys.stderr.buffer.flush()
        last = (last + part)[-_WORDS:]
    lines = last.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

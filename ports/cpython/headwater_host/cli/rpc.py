"""``headwater rpc``: call who serves a topic of FMQ, and serve one with a command."""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headwater_host.cli import connection, fmq
from headwater_host.cli.argument_types import seconds, topic, topic_filter, whole
from headwater_host.errors import ClientError
from headwater_host.exits import OK, SIGNALLED, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.client.fmq import Client
    from headwater_host.client.fmq.messages import Call

#: Reason codes (MQTT 5.0, 2.4) with which a call is refused.
_FAILED, _TOO_SLOW, _TOO_LARGE = 0x80, 0x83, 0x95
#: The longest result, and how much of what a command says on standard error is looked at.
_LONGEST = 15 << 20
_WORDS = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands and their options."""
    parser.description = "Remote calls over a hub of FMQ. See docs/cli.md."
    commands = parser.add_subparsers(dest="rpc_command", metavar="COMMAND", required=True)
    call = commands.add_parser(
        "call",
        help="call who serves a topic, and print the result",
        description="Call who serves TOPIC, and print the result, and a newline unless it ends with one.",
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    call.add_argument("topic", type=topic, metavar="TOPIC")
    given = call.add_mutually_exclusive_group()
    given.add_argument("arguments", nargs="?", metavar="ARGUMENTS", help="a text; nothing by default")
    given.add_argument("-f", "--file", metavar="FILE", help="a file's content; - is standard input")
    call.add_argument(
        "--value",
        action="store_true",
        help="the arguments are JSON, and go as a value of FMQ; the result, if it is a value, is shown as JSON",
    )
    call.add_argument(
        "-N", "--no-newline", action="store_true", help="no line end behind a result that has none"
    )
    call.add_argument(
        "-W",
        "--wait",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="for the result; default: %(default)g. The hub itself waits for 30 s, unless it is set otherwise",
    )
    connection.add_connection(call, "default: not at all")
    serve = commands.add_parser(
        "serve",
        help="serve a topic with a command",
        description="Run COMMAND for each call: the call's arguments are its standard input, its standard output is "
        "the result. When it fails, the call is refused, with the last line that it says on standard error.",
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    serve.add_argument("topic", type=topic_filter, metavar="TOPIC", help="wildcards allowed")
    serve.add_argument(
        "words",
        nargs="+",
        metavar="COMMAND",
        help="behind --, with its arguments; $HEADWATER_TOPIC is what is called",
    )
    serve.add_argument(
        "--value",
        action="store_true",
        help="arguments that are a value of FMQ are given as JSON; what the command says is JSON, and goes as a value",
    )
    serve.add_argument(
        "-j",
        "--jobs",
        type=whole(1, 1000),
        default=4,
        metavar="N",
        help="calls at a time; default: %(default)s",
    )
    serve.add_argument("-C", "--count", type=whole(1, 1 << 62), help="end after this many calls")
    serve.add_argument(
        "-W",
        "--wait",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="a command that takes longer is killed; default: %(default)g",
    )
    connection.add_connection(serve, "default: for ever")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for: 0, or 128 + n for signal n; that is the way to end ``serve`` without a count."""
    fmq.no_topic(args)
    if args.rpc_command == "call":
        return connection.run_until_signal(_call(fmq.make_client(args, False), args, _arguments(args)))
    if shutil.which(args.words[0]) is None:
        raise CommandError(f"there is no command {args.words[0]!r} to run", USAGE)
    code = connection.run_until_signal(_serve(fmq.make_client(args, True), args))
    return OK if code > SIGNALLED and args.count is None else code


# -- call --------------------------------------------------------------------------------------------------------------


def _arguments(args: argparse.Namespace) -> bytes:
    if args.file is None:
        data = (args.arguments or "").encode("utf-8", "surrogateescape")
    elif args.file == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(args.file).read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {args.file}: {error.strerror}", USAGE) from error
    if not args.value or (args.file is None and not data):
        return data
    try:
        return fmq.value(data.decode())
    except UnicodeDecodeError as error:
        raise CommandError("that is no value in JSON: it is not UTF-8", USAGE) from error


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
            # The caller has been told, or will be when its time is up.
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
    """A command has no result."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


async def _answer(call: "Call", args: argparse.Namespace) -> None:
    """Run the command for a call, and answer."""
    connection.log.debug("called: %r", call)
    try:
        try:
            given = fmq.shown(call.arguments) if args.value else call.arguments
            result = await asyncio.wait_for(_result(call, given, args.words), args.wait)
            if args.value:
                result = fmq.value(result.decode())
        except asyncio.TimeoutError:
            raise _RefusedError(_TOO_SLOW, "it took too long") from None
        except (CommandError, UnicodeDecodeError):
            raise _RefusedError(_FAILED, "what the command says is no JSON") from None
    except _RefusedError as error:
        connection.log.debug("refused: %s", error)
        await call.refuse(error.code, str(error))
    else:
        connection.log.debug("answered with %d bytes", len(result))
        await call.reply(result)


async def _result(call: "Call", given: bytes, words: list[str]) -> bytes:
    """What the command says when it is ``given`` this. Raises _RefusedError. It ends with this."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"HEADWATER_TOPIC": str(call.topic)},
            start_new_session=True,
        )
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
        _, result, said, code = await asyncio.gather(*parts)
    except BaseException:
        # With all that it has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await process.wait()
        raise
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise _RefusedError(_FAILED, said or how)
    return result


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    # A command need not read what it is given.
    with contextlib.suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
    with contextlib.suppress(ConnectionError):
        await stdin.wait_closed()


async def _take(stdout: asyncio.StreamReader) -> bytes:
    """All of it. Raises _RefusedError when that is too much."""
    parts: list[bytes] = []
    size = 0
    while part := await stdout.read(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _LONGEST:
            raise _RefusedError(_TOO_LARGE, f"the result is longer than {_LONGEST} bytes")
    return b"".join(parts)


async def _tell(stderr: asyncio.StreamReader) -> str:
    """Pass it on to our standard error: its last line that is not empty."""
    last = b""
    while part := await stderr.read(_WORDS):
        sys.stderr.buffer.write(part)
        sys.stderr.buffer.flush()
        last = (last + part)[-_WORDS:]
    lines = last.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

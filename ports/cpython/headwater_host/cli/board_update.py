"""``headwater board publish-update``: install an update on a board over MQTT or FMQ."""

import argparse
import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater_host.board import image, update
from headwater_host.cli import connection, fmq
from headwater_host.cli.argument_types import topic
from headwater_host.cli.options import FILE, FLAG, SECONDS, integer, option
from headwater_host.exits import OK, USAGE, CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = "install an update on a board over MQTT or FMQ"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Sign the files of a directory, send them to a board, and wait until the board runs them. "
        "Exit code 1 means that the board refused the update or returned to its previous version."
    )
    option(parser, "directory", "Directory with the files of the new version", nargs="?", type=Path)
    option(parser, "-t --topic", "Update topic of the board", type=topic)
    option(parser, "--target", "Name of the board in its settings", metavar="NAME")
    option(parser, "--signing-key", "File with the board's key", FILE)
    option(parser, "--release", "Version of the files, such as 1.10.2", metavar="VERSION")
    option(
        parser, "--serial", "Number above that of every earlier image; default: the time", integer(1, 1 << 40)
    )
    option(parser, "--downgrade", "Allow a version older than the one that runs", FLAG)
    option(parser, "--firmware", "Firmware image (.app-bin) for ESP32 with OTA partitions", FILE)
    option(parser, "--save", "Also write the signed image to this file", FILE)
    option(parser, "--image", "Send this saved image instead of a directory", FILE)
    option(parser, "--again", "Try an image again that the board has rolled back", FLAG)
    option(
        parser,
        "--wait",
        "Give up after this time without a report; default: %(default)s",
        SECONDS,
        default=120.0,
    )
    connection.add_connection(parser, True, ("connect", "disconnect"))


def run(args: argparse.Namespace) -> int:
    """Install the update. Return 0 when the board runs it."""
    protocol = connection.choose(args)
    topics = connection.topics(args, [] if args.topic is None else [args.topic])
    if len(topics) != 1:
        raise CommandError("give the update topic of the board: -t", USAGE)
    data = _image(args)
    if protocol == "fmq":
        client: Any = fmq.make_client(args, True)
    else:
        from headwater_host.cli import mqtt

        client = mqtt.make_client(args, True)
    return connection.run_until_signal(_run(client, str(topics[0]), data, args))


def _image(args: argparse.Namespace) -> bytes:
    """Return the image to send. Raises CommandError."""
    if args.image is not None:
        if args.directory is not None:
            raise CommandError("give a directory or --image, not both", USAGE)
        try:
            data: bytes = args.image.read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {args.image}: {error.strerror}", USAGE) from None
        if data[:4] != image.MAGIC or len(data) < image.HEAD:
            raise CommandError(f"{args.image} is not an update image (see --save)", USAGE)
        return data
    for value, name in (
        (args.directory, "a directory with the files, or --image"),
        (args.target, "--target"),
        (args.signing_key, "--signing-key"),
        (args.release, "--release"),
    ):
        if value is None:
            raise CommandError(f"missing: {name}", USAGE)
    try:
        firmware = None if args.firmware is None else args.firmware.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {args.firmware}: {error.strerror}", USAGE) from None
    data = image.make_image(
        image.read_files(args.directory),
        image.read_key(args.signing_key),
        args.target,
        args.release,
        int(time.time()) if args.serial is None else args.serial,
        downgrade=args.downgrade,
        firmware=firmware,
    )
    if args.save is not None:
        try:
            args.save.write_bytes(data)
        except OSError as error:
            raise CommandError(f"cannot write {args.save}: {error.strerror}", USAGE) from None
    return data


async def _run(client: Any, name: str, data: bytes, args: argparse.Namespace) -> int:
    show: Callable[[str, int, int], None] = partial(_show, sys.stderr.isatty(), {})
    try:
        async with client:
            connection.show_connection(client)
            await update.send(client, name, data, progress=show, timeout=args.wait, again=args.again)
    except asyncio.CancelledError:
        print(
            "headwater: interrupted; the board keeps its version until it has the whole image: repeat the command",
            file=sys.stderr,
        )
        raise
    return OK


_TEXTS = {
    update.CHECKING: "the board checks the files",
    update.READY: "the board restarts",
    update.TRIAL: "the new version is on trial",
    update.RUNNING: "the board runs the new version",
}


def _show(terminal: bool, last: dict[str, str], state: str, at: int, size: int) -> None:
    """Print the progress to standard error: on a terminal in one line, else one line for each tenth."""
    percent = at * 100 // size
    text = f"sent {percent if terminal else percent // 10 * 10} % of {size:,} bytes"
    text = _TEXTS.get(state, text if state == update.RECEIVING else "waiting for the board")
    if text != last.get("text"):
        last["text"] = text
        if terminal and state == update.RECEIVING:
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{chr(13) if terminal else ''}{text}", file=sys.stderr, flush=True)

"""headwater mq uplink: forward a local queue to a queue manager."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from headwater_host.daemon import serving
from headwater_host.exits import FAILED, OK, USAGE, CommandError

_TEXT = (
    "Send the messages of a local queue to a queue manager until SIGTERM or SIGINT. A gateway with the same file does "
    "so itself. See docs/ibm-mq-uplink.md."
)


def add_arguments(commands: Any) -> None:
    """Add the subcommand and its options."""
    parser = commands.add_parser(
        "uplink", help="send a local queue to a queue manager", description=_TEXT, allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        required=True,
        type=Path,
        metavar="FILE",
        help="File (TOML) with [mq] and [mq.uplink], such as a gateway's",
    )
    parser.add_argument(
        "--begin-again",
        action="store_true",
        help="Replace a lost record; resend messages in doubt",
    )


def serve(args: argparse.Namespace) -> int:
    """Send until a signal arrives."""
    # Only this command needs the gateway's modules.
    from headwater_host.gateway import mq_config
    from headwater_host.settings import ConfigError

    try:
        config = mq_config.load(args.config)
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error
    if config.uplink is None:
        raise CommandError(f"there is no table [{mq_config.UPLINK}] in {args.config}", USAGE)
    from headwater_host.gateway.mq_service import UplinkThread

    return asyncio.run(_serve(UplinkThread(config), args.begin_again))


async def _serve(uplink: Any, begin_again: bool) -> int:
    if begin_again:
        uplink.begin_again()
    with serving(uplink.uplink.stop):
        uplink.thread.start()
        while uplink.thread.is_alive():
            await asyncio.to_thread(uplink.thread.join, 0.2)
    return OK if uplink.failure is None else FAILED

"""``headwater mq uplink``: what is in a local queue goes to a queue manager, by a process of its own."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from headwater_host.daemon import serving
from headwater_host.exits import FAILED, OK, USAGE, CommandError

_TEXT = (
    "Send what is in a local queue to a queue manager, until SIGTERM or SIGINT; what has not gone when it ends goes at "
    "the next start. A gateway with the same file does so by itself. See docs/ibm-mq-uplink.md."
)


def add_arguments(commands: Any) -> None:
    """Its options."""
    parser = commands.add_parser(
        "uplink", help="send a local queue to a queue manager", description=_TEXT, allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        required=True,
        type=Path,
        metavar="FILE",
        help="a TOML file with the tables [mq] and [mq.uplink]: a gateway's will do",
    )
    parser.add_argument(
        "--begin-again",
        action="store_true",
        help="forget the record queue's last record, and write a new one: when it is lost, or the local queue was put "
        "back. What was in doubt is sent again",
    )


def serve(args: argparse.Namespace) -> int:
    """Until a signal: 0."""
    # The other commands of ``headwater mq`` need nothing of the gateway.
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

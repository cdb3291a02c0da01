"""headwater mq uplink: forward a local queue to a queue manager."""

import argparse
import asyncio
from typing import Any

from headwater_host.cli.options import FILE, FLAG, option, subcommand
from headwater_host.daemon import serving
from headwater_host.exits import FAILED, OK, USAGE, CommandError

_TEXT = "Ends at SIGTERM or SIGINT. A gateway with the same file does this itself. See docs/ibm-mq-uplink.md."


def add_arguments(commands: Any) -> None:
    """Add the subcommand and its options."""
    parser = subcommand(commands, "uplink", "send a local queue to a queue manager", _TEXT)
    option(
        parser, "--config", "File (TOML) with [mq] and [mq.uplink], such as a gateway's", FILE, required=True
    )
    option(parser, "--begin-again", "Replace a lost record; retransmit messages in doubt", FLAG)


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

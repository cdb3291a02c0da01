"""``headwater gateway``: serial boards and broker topics into a capture log."""

import argparse
import asyncio
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from headwater_host import settings
from headwater_host.capture.sync_budget import CREDIT
from headwater_host.cli import argument_types
from headwater_host.exits import USAGE, CommandError
from headwater_host.gateway import config as gateway_config
from headwater_host.gateway.config import BrokerConfig, GatewayConfig
from headwater_host.hub import config as hub_config
from headwater_host.hub.config import DEFAULT_PORTS, HubConfig
from headwater_host.settings import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = (
        "Land what serial boards publish, what a broker's topics carry, and what clients of a hub publish that runs in "
        "the gateway, in a capture log, until SIGTERM or SIGINT. A message at QoS 1 or 2 is acknowledged when it is on "
        "disk. See docs/gateway.md."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file; what is named here comes on top"
    )
    parser.add_argument(
        "--capture",
        type=argument_types.directory,
        metavar="DIR",
        help="the capture log; made when it is not there",
    )
    parser.add_argument(
        "--serial", action="append", default=[], metavar="PORT[:BAUD]", help="a port with a board; repeatable"
    )
    parser.add_argument(
        "--fmq-serial",
        action="append",
        default=[],
        metavar="PORT[:BAUD]",
        help="a port with a board that speaks FMQ, to the hub; repeatable",
    )
    parser.add_argument(
        "--hub", type=Path, metavar="FILE", help="run a hub of FMQ as well, which keeps everything in FILE"
    )
    parser.add_argument(
        "--hub-port",
        type=argument_types.whole(0, 65535),
        metavar="PORT",
        help=f"of the hub, on 127.0.0.1; default: {DEFAULT_PORTS[False]}; 0: any",
    )
    parser.add_argument("--broker", metavar="HOST[:PORT]", help="a broker; needs --topic")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="FILTER[:QOS]",
        help="what to land from the broker, at QoS 1 unless told; repeatable",
    )
    parser.add_argument(
        "--client-id", help="for the broker; by default made of host name and log, so it stays the same"
    )
    parser.add_argument(
        "--username", help=f"for the broker; the password is in {argument_types.PASSWORD_VARIABLE}, or:"
    )
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the password")
    parser.add_argument(
        "--stats", type=Path, metavar="FILE", help="write statistics there as JSON, every second"
    )
    parser.add_argument(
        "--stats-seconds",
        type=argument_types.seconds,
        metavar="SECONDS",
        help="between lines of statistics; default: 60",
    )
    parser.add_argument(
        "--syncs-per-second",
        type=argument_types.whole(*gateway_config.SYNC_RATES),
        metavar="N",
        help="limit of disk syncs; 0: none; default: 20 on SD cards and eMMC, none elsewhere",
    )
    parser.add_argument(
        "--sync-credit",
        type=argument_types.whole(*gateway_config.SYNC_CREDITS),
        metavar="N",
        help=f"syncs saved up for bursts; default: {CREDIT}",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 when everything that was taken is on disk."""
    try:
        config = gateway_config.check(_config(args))
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error
    if config.serials:
        try:
            import serial  # noqa: F401 - whether it is there is the question
        except ImportError as error:
            raise CommandError(
                "serial ports need pyserial: pip install 'headwater[gateway]'", USAGE
            ) from error
    if config.mq is not None and importlib.util.find_spec("headwater_mq") is None:
        raise CommandError("[mq] needs the local queue manager: pip install headwater-mq", USAGE)
    if config.mq is not None and config.mq.uplink is not None:
        from headwater_host.mq.uplink import mqi

        mqi.load()
    from headwater_host.gateway.service import serve

    return asyncio.run(serve(config))


def _config(args: argparse.Namespace) -> GatewayConfig:
    named = {"storage": args.hub, "port": args.hub_port}
    hub = {key: value for key, value in named.items() if value is not None}
    if args.config is not None:
        config = gateway_config.load(args.config, args.capture, hub)
    elif args.capture is not None:
        config = GatewayConfig(args.capture, hub=_hub(**hub))
    else:
        raise ConfigError("name the capture log: --capture DIR, or in --config FILE")
    if args.hub_port is not None and config.hub is None:
        raise ConfigError("--hub-port needs --hub")
    serials = [gateway_config.parse_serial(text) for text in args.serial]
    serials += [gateway_config.parse_serial(text, gateway_config.FMQ) for text in args.fmq_serial]
    config = replace(
        config,
        serials=(*config.serials, *serials),
        stats=args.stats or config.stats,
        stats_seconds=args.stats_seconds or config.stats_seconds,
        syncs_per_second=config.syncs_per_second if args.syncs_per_second is None else args.syncs_per_second,
        sync_credit=args.sync_credit or config.sync_credit,
    )
    if args.broker is None:
        given = [name for name in ("topic", "client_id", "username", "password_file") if getattr(args, name)]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} needs --broker")
        return config
    host, port = gateway_config.parse_broker(args.broker)
    password = None
    if args.password_file is not None:
        password = settings.read_password(args.password_file)
    elif args.username is not None and argument_types.PASSWORD_VARIABLE in os.environ:
        password = os.environb[argument_types.PASSWORD_VARIABLE.encode()]
    if password is not None and args.username is None:
        raise ConfigError("a password needs --username")
    broker = BrokerConfig(
        host,
        port,
        tuple(gateway_config.parse_topic(text) for text in args.topic),
        args.client_id or "",
        args.username,
        password,
    )
    return replace(config, brokers=(*config.brokers, broker))


def _hub(storage: Path | None = None, port: int | None = None) -> HubConfig | None:
    """The hub that the command line names."""
    if storage is None:
        return None
    hub = HubConfig(storage)
    return hub if port is None else hub_config.on_port(hub, port)

"""``headwater gateway``: record messages from boards, brokers and hubs in a capture log."""

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
    """Add the options."""
    parser.description = (
        "Record messages from serial boards, MQTT topics and the built-in hub in a capture log, until SIGTERM or "
        "SIGINT. Messages at QoS 1 and 2 are acknowledged when they are on disk."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="Configuration file (TOML); options add to it"
    )
    parser.add_argument(
        "--capture",
        type=argument_types.directory,
        metavar="DIR",
        help="Directory of the capture log",
    )
    parser.add_argument(
        "--serial",
        action="append",
        default=[],
        metavar="PORT[:BAUD]",
        help="Serial port with an MQTT board; repeatable",
    )
    parser.add_argument(
        "--fmq-serial",
        action="append",
        default=[],
        metavar="PORT[:BAUD]",
        help="Serial port with an FMQ board; repeatable; needs --hub",
    )
    parser.add_argument("--hub", type=Path, metavar="FILE", help="Run an FMQ hub with its storage in FILE")
    parser.add_argument(
        "--hub-port",
        type=argument_types.whole(0, 65535),
        metavar="PORT",
        help=f"Hub's port on 127.0.0.1, 0 for any; default: {DEFAULT_PORTS[False]}",
    )
    parser.add_argument("--broker", metavar="HOST[:PORT]", help="MQTT broker; needs --topic")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="FILTER[:QOS]",
        help="Broker's topics to record; repeatable; default QoS: 1",
    )
    parser.add_argument("--client-id", help="Client identifier at the broker; default: fixed for DIR")
    parser.add_argument(
        "--username", help=f"User name at the broker; password: {argument_types.PASSWORD_VARIABLE}"
    )
    parser.add_argument(
        "--password-file", type=Path, metavar="FILE", help="File whose first line is the password"
    )
    parser.add_argument("--stats", type=Path, metavar="FILE", help="Write statistics as JSON every second")
    parser.add_argument(
        "--stats-seconds",
        type=argument_types.seconds,
        metavar="SECONDS",
        help="Interval of statistics in the log; default: 60",
    )
    parser.add_argument(
        "--syncs-per-second",
        type=argument_types.whole(*gateway_config.SYNC_RATES),
        metavar="N",
        help="Maximum disk sync rate, 0: unlimited; default: 20 on SD/eMMC, else 0",
    )
    parser.add_argument(
        "--sync-credit",
        type=argument_types.whole(*gateway_config.SYNC_CREDITS),
        metavar="N",
        help=f"Maximum burst of disk syncs; default: {CREDIT}",
    )


def run(args: argparse.Namespace) -> int:
    """Run the gateway until a signal. Return 0 if every accepted message is on disk."""
    try:
        config = gateway_config.check(_config(args))
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error
    if config.serials:
        try:
            import serial  # noqa: F401 - checks that the extra is installed
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
        raise ConfigError("the capture log is missing: use --capture DIR or --config FILE")
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
    """Return the configuration of the hub that the command line names."""
    if storage is None:
        return None
    hub = HubConfig(storage)
    return hub if port is None else hub_config.on_port(hub, port)

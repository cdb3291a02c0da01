"""``headwater gateway``: record messages from boards, brokers and hubs in a capture log."""

import argparse
import asyncio
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from headwater_host import settings
from headwater_host.capture.sync_budget import CREDIT
from headwater_host.cli.argument_types import PASSWORD_VARIABLE
from headwater_host.cli.options import FILE, REPEATABLE, SECONDS, directory, integer, option, whole
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
    option(parser, "--config", "Configuration file (TOML); options add to it", FILE)
    option(parser, "--capture", "Directory of the capture log", type=directory, metavar="DIR")
    option(
        parser, "--serial", "Serial port with an MQTT board; repeatable", REPEATABLE, metavar="PORT[:BAUD]"
    )
    option(
        parser,
        "--fmq-serial",
        "Serial port with an FMQ board; repeatable; needs --hub",
        REPEATABLE,
        metavar="PORT[:BAUD]",
    )
    option(parser, "--hub", "Run an FMQ hub with its storage in FILE", FILE)
    option(
        parser,
        "--hub-port",
        f"Hub's port on 127.0.0.1, 0 for any; default: {DEFAULT_PORTS[False]}",
        type=whole(0, 65535),
        metavar="PORT",
    )
    option(parser, "--broker", "MQTT broker; needs --topic", metavar="HOST[:PORT]")
    option(
        parser,
        "--topic",
        "Broker's topics to record; repeatable; default QoS: 1",
        REPEATABLE,
        metavar="FILTER[:QOS]",
    )
    option(parser, "--client-id", "Client identifier at the broker; default: fixed for DIR")
    option(parser, "--username", f"User name at the broker; password: {PASSWORD_VARIABLE}")
    option(parser, "--password-file", "File whose first line is the password", FILE)
    option(parser, "--stats", "Write statistics as JSON every second", FILE)
    option(parser, "--stats-seconds", "Interval of statistics in the log; default: 60", SECONDS)
    option(
        parser,
        "--syncs-per-second",
        "Maximum disk sync rate, 0: unlimited; default: 20 on SD/eMMC, else 0",
        integer(*gateway_config.SYNC_RATES),
    )
    option(
        parser,
        "--sync-credit",
        f"Maximum burst of disk syncs; default: {CREDIT}",
        integer(*gateway_config.SYNC_CREDITS),
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
    elif args.username is not None and PASSWORD_VARIABLE in os.environ:
        password = os.environb[PASSWORD_VARIABLE.encode()]
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

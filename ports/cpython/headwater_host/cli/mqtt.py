"""Create an MQTT client from the command line."""

import argparse

from headwater_host.cli import connection
from headwater_host.cli.argument_types import FOR_EVER
from headwater_host.cli.properties import of
from headwater_host.client.mqtt import Client, ConnectionOptions, Limits, SessionOptions
from headwater_host.exits import USAGE, CommandError

__all__ = ["Limits", "make_client"]


def make_client(
    args: argparse.Namespace, reconnects: bool, *, auto_ack: bool = True, limits: Limits = Limits()
) -> Client:
    """Create the client that ``args`` describe.

    ``reconnects``: whether to reconnect without ``--reconnect``. Raises CommandError.
    """
    args.protocol_version = args.protocol_version or "3.1.1"
    expiry = _expiry(args)
    where = connection.where(args)
    client = Client(
        **connection.client_options(args, where, reconnects),
        protocol=args.protocol_version,
        connection=ConnectionOptions(
            keepalive=args.keepalive, more_servers=where.servers[1:], websocket=where.websocket
        ),
        session=SessionOptions(
            clean_start=not args.keep_session,
            expiry=expiry,
            auto_ack=auto_ack,
            properties=of(args, "connect"),
        ),
        limits=limits,
    )
    connection.watch(args, client)
    client.disconnect_properties = of(args, "disconnect")
    connection.log.debug("%r: MQTT %s, as %r", where, client.protocol, client.identifier)
    return client


def _expiry(args: argparse.Namespace) -> int | None:
    """Return for how many seconds the session is kept. Removes the interval from the properties of CONNECT."""
    if args.protocol_version != "5.0" and (args.properties or args.session_expiry_interval is not None):
        raise CommandError("-D and -x need MQTT 5.0: -V mqttv5", USAGE)
    identifier = connection.identifier(args)
    expiry = (args.properties or {}).get("connect", {}).pop("session_expiry_interval", None)
    if expiry is None:
        expiry = args.session_expiry_interval
    elif args.session_expiry_interval is not None:
        raise CommandError("use -x or -D connect session-expiry-interval, not both", USAGE)
    if expiry == FOR_EVER and not identifier:
        raise CommandError("a session that never expires needs a client identifier: -i", USAGE)
    if "session_expiry_interval" in (of(args, "disconnect") or ()) and not (
        args.keep_session if expiry is None else expiry
    ):
        raise CommandError("-D disconnect session-expiry-interval needs -c or -x", USAGE)
    return None if expiry is None else int(expiry)

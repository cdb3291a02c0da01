"""Create an MQTT client from the command line."""

import argparse
from typing import Any

from headwater_host.cli import connection
from headwater_host.cli.argument_types import FOR_EVER
from headwater_host.cli.properties import of
from headwater_host.client.mqtt import Client
from headwater_host.exits import USAGE, CommandError


def make_client(args: argparse.Namespace, reconnects: bool, **options: Any) -> Client:
    """Create the client that ``args`` describe; ``options`` are further keywords of ``Client``.

    ``reconnects``: whether to reconnect without ``--reconnect``. Raises CommandError.
    """
    will = connection.will(args)
    args.protocol_version = args.protocol_version or "3.1.1"
    options |= _session(args)
    where = connection.where(args)
    client = Client(
        *where.servers[0],
        more_servers=where.servers[1:],
        tls=where.tls,
        websocket=where.websocket,
        protocol=args.protocol_version,
        properties=of(args, "connect"),
        username=where.username,
        password=where.password,
        keepalive=args.keepalive,
        timeout=args.timeout,
        will=will,
        reconnect=connection.reconnect(args, reconnects),
        **options,
    )
    connection.watch(args, client)
    client.disconnect_properties = of(args, "disconnect")
    connection.log.debug("%r: MQTT %s, as %r", where, client.protocol, client.identifier)
    return client


def _session(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords for the session. Removes the expiry interval from the CONNECT properties."""
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
    return {
        "identifier": identifier,
        "clean_session": not args.keep_session,
        "session_expiry": expiry,
    }

"""``headwater hub promote``, ``rejoin``, ``backup``, ``restore``, ``copy`` and ``export``."""

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater_host.cli.options import FILE, FLAG, option, subcommand
from headwater_host.errors import ClientError, FmqRequestError
from headwater_host.exits import FAILED, OK, USAGE, CommandError, explain
from headwater_host.hub import config as hub_config
from headwater_host.hub.config import HubConfig, ReplicationConfig
from headwater_host.hub.errors import StorageError
from headwater_host.hub.storage.contract import Engine

if TYPE_CHECKING:
    from headwater_host.hub.replication.promotion import Plan

#: Seconds that a hub has to answer.
_ANSWER = 5.0
#: Seconds to wait until a promoted slave leads, and between two checks.
_LEAD, _LOOK = 120.0, 0.2
#: Maximum number of times that fencing is repeated until every slave that answers is fenced.
_TRIES = 4
#: Seconds to wait until another promotion has ended, and between two checks.
_OTHER, _OTHER_LOOK = 5.0, 0.5


def add(commands: Any) -> None:
    """Add the subcommands."""
    promote = subcommand(
        commands,
        "promote",
        "make a slave the leader",
        "Fences the slaves that answer, and promotes the most advanced. Exit code 1: too few slaves answer.",
    )
    option(promote, "--config", "Configuration file of one of the hubs", FILE, required=True)
    option(promote, "--force", "Promote although messages may be lost", FLAG)
    rejoin = subcommand(
        commands,
        "rejoin",
        "make a stopped, replaced leader a slave",
        "Writes what only this hub has into a file beside its storage, and prints what that is.",
    )
    option(rejoin, "--config", "Configuration file of this hub", FILE, required=True)
    option(rejoin, "leader", "Name of the hub that leads", metavar="LEADER")
    for name, text, first, second in (
        ("backup", "copy a storage, also of a running hub", "Storage file", "New file"),
        ("restore", "replace a stopped hub's storage by a backup", "Storage file", "Backup; it is moved"),
    ):
        parser = subcommand(commands, name, text)
        option(parser, "storage", first, type=hub_config.place, metavar="FILE")
        option(parser, "file", second, FILE)
    copy = subcommand(
        commands,
        "copy",
        "copy a stopped hub's storage into another file or database",
        "Exit code 1: the target is not empty, or the copy failed; then empty the target and start again.",
    )
    for name, text in (
        ("source", "Storage: a file, or a URL of PostgreSQL"),
        ("target", "Empty storage: the same"),
    ):
        option(copy, name, text, type=hub_config.place, metavar="STORAGE")
    export = subcommand(commands, "export", "print a stopped hub's whole state as text")
    option(
        export,
        "storage",
        "Storage: a file, or a URL of PostgreSQL",
        type=hub_config.place,
        metavar="STORAGE",
    )


def run(args: argparse.Namespace) -> int:
    """Run a subcommand; return the exit code."""
    try:
        return _COMMANDS[args.hub_command](args)
    except StorageError as error:
        raise CommandError(str(error), FAILED) from error
    except OSError as error:
        raise CommandError(explain(error), FAILED) from error


def _replication(path: Path) -> tuple[HubConfig, ReplicationConfig]:
    config = hub_config.load(path)
    if config.replication is None:
        raise CommandError(f"{path} has no table [replication]", USAGE)
    return config, config.replication


def _backup(args: argparse.Namespace) -> int:
    from headwater_host.hub.storage.backup import backup

    if isinstance(args.storage, str):
        raise CommandError(
            f"back PostgreSQL up with pg_basebackup, or copy it: headwater hub copy URL {args.file}", USAGE
        )
    try:
        backup(str(args.storage), str(args.file))
    except FileExistsError as error:
        raise CommandError(f"{args.file} exists already", USAGE) from error
    return OK


def _restore(args: argparse.Namespace) -> int:
    from headwater_host.hub.storage.backup import install

    if isinstance(args.storage, str):
        raise CommandError(f"PostgreSQL needs an empty database: headwater hub copy {args.file} URL", USAGE)
    if not args.file.exists():
        raise CommandError(f"there is no backup {args.file}", USAGE)
    install(str(args.file), str(args.storage))
    return OK


def _opened(storage: Path | str) -> Engine:
    """Open a storage that exists. Raises CommandError, StorageError."""
    from headwater_host.hub.storage.store import open_engine

    if isinstance(storage, Path) and not storage.exists():
        raise CommandError(f"there is no hub's storage {storage}", USAGE)
    return open_engine(storage)


def _copy(args: argparse.Namespace) -> int:
    from headwater_host.hub.storage.copy import copy
    from headwater_host.hub.storage.store import open_engine

    with closing(_opened(args.source)) as source, closing(open_engine(args.target)) as target:
        done = copy(source, target)
        print(f"copied {done.messages} messages to {target.name}, up to change {done.last}")
    return OK


def _export(args: argparse.Namespace) -> int:
    from headwater_host.hub.storage.export import export

    with closing(_opened(args.storage)) as engine:
        for line in export(engine):
            print(line)
    return OK


# -- calls of hubs -----------------------------------------------------------------------------------------------------


async def _ask(replication: ReplicationConfig, name: str, **asked: Any) -> dict[str, Any]:
    """Call the procedure for operators of a hub. Raises ClientError."""
    from headwater_host.client.fmq import Client
    from headwater_host.client.route import Tls
    from headwater_host.hub.replication.administration import REPLICATION
    from headwater_host.hub.replication.line import SLAVE

    host, _, port = replication.hubs[name].rpartition(":")
    client = Client(
        host.strip("[]"),
        int(port),
        identifier=f"{SLAVE}operator",
        username=replication.user or None,
        password=replication.password or None,
        tls=None
        if replication.ca is None
        else Tls(ca=replication.ca, cert=replication.cert, key=replication.key),
        timeout=_ANSWER,
    )
    async with client:
        found = json.loads(await client.call(REPLICATION, json.dumps(asked).encode(), timeout=_ANSWER))
    assert isinstance(found, dict)
    if found.get("name") != name:
        # A hub of a cluster that does not lead sends clients on.
        raise ClientError(f"it does not lead; {found.get('name')!r} does")
    return found


def status(replication: ReplicationConfig, *, as_json: bool) -> int:
    """Print what a running hub says of itself; return the exit code, 1 when there is a problem."""
    try:
        found = asyncio.run(_ask(replication, replication.name))
    except ClientError as error:
        raise CommandError(f"{replication.name} does not answer: {error}", FAILED) from error
    if as_json:
        print(json.dumps(found))
    else:
        # The history is long, and for programs.
        for name, value in found.items():
            if name != "lineage" and value != "":
                print(f"{name}: {value}")
    return FAILED if found["problem"] else OK


def _promote(args: argparse.Namespace) -> int:
    _, replication = _replication(args.config)
    return asyncio.run(_promoted(replication, force=args.force))


async def _promoted(replication: ReplicationConfig, *, force: bool) -> int:
    from headwater_host.hub.replication.lineage import Lineage
    from headwater_host.hub.replication.promotion import most_advanced, plan

    chosen, fenced = await _fenced(replication, force=force)
    for _ in range(_TRIES):
        if len(fenced) == len(chosen.slaves):
            break
        # Another promotion may be running. A slave that stays fenced for it would not follow this one's leader.
        await asyncio.sleep(random.uniform(0.2, 2.0))
        chosen, fenced = await _fenced(replication, force=force)
    # Some may have failed since they answered.
    plan(fenced, len(replication.hubs), replication.need, force=force)
    best = most_advanced(fenced)
    await _ask(replication, best, command="promote", epoch=chosen.epoch, ident=chosen.ident)
    deadline = time.monotonic() + _LEAD
    while time.monotonic() < deadline:
        await asyncio.sleep(_LOOK)
        try:
            found = await _ask(replication, best)
        except ClientError:
            continue
        if found["role"] == "leader" and Lineage.parse(found["lineage"]).ident == chosen.ident:
            print(f"{best} leads epoch {chosen.epoch}")
            return OK
        if found["fence"] > chosen.epoch:
            raise CommandError(
                f"{best} does not lead: a promotion to epoch {found['fence']} followed", FAILED
            )
    raise CommandError(f"{best} does not lead after {_LEAD:.0f} seconds: see its log", FAILED)


async def _look(replication: ReplicationConfig) -> dict[str, dict[str, Any]]:
    """Return the status of each hub that answers. Wait a few seconds for a promotion that has begun: another one would
    depose its leader."""
    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            print(text, file=sys.stderr)
        said.add(text)

    async def look(name: str) -> dict[str, Any] | None:
        try:
            return await _ask(replication, name)
        except ClientError as error:
            say_once(f"{name}: no answer: {error}")
            return None

    deadline = time.monotonic() + _OTHER
    while True:
        # Ask all hubs at once, since one that is cut off costs a timeout.
        answers = zip(replication.hubs, await asyncio.gather(*map(look, replication.hubs)), strict=True)
        found = {name: one for name, one in answers if one is not None}
        promised = max((one["fence"] for one in found.values()), default=0)
        led = max((one["epoch"] for one in found.values()), default=0)
        if promised <= led or time.monotonic() > deadline:
            return found
        say_once(
            f"slaves are fenced for epoch {promised}: waiting {_OTHER:.0f} s in case that promotion still runs"
        )
        await asyncio.sleep(_OTHER_LOOK)


async def _fenced(replication: ReplicationConfig, *, force: bool) -> "tuple[Plan, dict[str, dict[str, Any]]]":
    """Plan a promotion, and fence the slaves that answer; return the plan and the status of those that are fenced."""
    from headwater_host.hub.replication.promotion import plan

    found = await _look(replication)
    for name, one in found.items():
        print(f"{name}: {one['role']}, epoch {one['epoch']}, change {one['seq']}")
    chosen = plan(found, len(replication.hubs), replication.need, force=force)
    if chosen.risk:
        print(f"warning: {chosen.risk}", file=sys.stderr)
    fenced: dict[str, dict[str, Any]] = {}
    # Each promotion fences slaves in this order and stops at a refusal, so only one of two can fence them all.
    for name in chosen.slaves:
        try:
            fenced[name] = await _ask(
                replication, name, command="fence", epoch=chosen.epoch, ident=chosen.ident
            )
        except FmqRequestError as error:
            print(f"{name}: not fenced: {error}", file=sys.stderr)
            break
        except ClientError as error:
            print(f"{name}: not fenced: {error}", file=sys.stderr)
    return chosen, fenced


def _rejoin(args: argparse.Namespace) -> int:
    config, replication = _replication(args.config)
    if args.leader not in replication.slaves:
        raise CommandError(f"{args.leader!r} is not the name of another hub", USAGE)
    if isinstance(config.storage, str):
        raise CommandError(
            "a hub with storage in PostgreSQL is no slave: copy the leader's storage into an empty database",
            USAGE,
        )
    return asyncio.run(_rejoined(config.storage, replication, args.leader))


async def _rejoined(path: Path, replication: ReplicationConfig, leader: str) -> int:
    from headwater_host.hub.replication.lineage import Lineage
    from headwater_host.hub.replication.rejoining import rejoin

    try:
        found = await _ask(replication, leader)
    except ClientError as error:
        raise CommandError(f"{leader!r} does not answer: {error}", FAILED) from error
    if found["role"] != "leader":
        raise CommandError(f"{leader!r} does not lead: it is a {found['role']}", FAILED)
    lost = await rejoin(path, leader, Lineage.parse(found["lineage"]))
    if lost.tail is None:
        print(f"nothing is lost: {leader} has every change of this hub")
        return OK
    print(f"{lost.changes} changes that {leader} does not have are in {lost.tail}:")
    for topic, count in sorted(lost.messages.items()):
        print(f"  {count} messages of {topic}")
    print(f"  {lost.changes - lost.messages.total()} other changes")
    if lost.unknown:
        print(f"  {lost.unknown} older changes are only in the old storage")
    print(f"the old storage is {lost.before}")
    return OK


_COMMANDS = {
    "promote": _promote,
    "rejoin": _rejoin,
    "backup": _backup,
    "restore": _restore,
    "copy": _copy,
    "export": _export,
}

"""The command ``headwater``. Each subcommand is a module, imported when it is asked for and not before."""

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from headwater_host.errors import ClientError
from headwater_host.exits import FAILED, OK, SIGNALLED, USAGE, CommandError, code_of


class _Parser(argparse.ArgumentParser):
    """What is wrong is one line: the usage of a command with many options would hide it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What a command does not know is that command's affair, and its help has what it knows."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        said = _plainly(message, self._option_string_actions)
        self.exit(USAGE, f"{self.prog}: {said} (see {self.prog} --help)\n")


def _plainly(message: str, options: Iterable[str]) -> str:
    """What argparse says, with the command, value or option that is most like the one that there is not."""
    if found := re.search(r"invalid choice: '([^']+)' \(choose from (.+)\)$", message):
        given, known = found[1], re.findall(r"[\w.-]+", found[2])
    elif found := re.match(r"unrecognized arguments: (--[^ =]+)", message):
        given, known = found[1], list(options)
    else:
        return message
    like = difflib.get_close_matches(given, known, 1)
    if message.startswith("argument COMMAND:"):
        message = f"there is no command {given!r}"
        if not like:
            return f"{message}; there are {', '.join(known)}"
    return f"{message}; did you mean {like[0]!r}?" if like else message


class Command(Protocol):
    """What a module must offer to be a subcommand."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Describe the command and its options."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it; returns the exit code. Raises CommandError, ClientError or KeyboardInterrupt instead of printing."""


class Entry(NamedTuple):
    """A subcommand: its module, a line about it, and what to install for it when a module is missing."""

    module: str
    help: str
    install: str = ""


COMMANDS = {
    "pub": Entry("headwater_host.cli.pub", "publish messages"),
    "sub": Entry("headwater_host.cli.sub", "subscribe and print what comes"),
    "rpc": Entry("headwater_host.cli.rpc", "call who serves a topic of FMQ, or serve one"),
    "topic": Entry("headwater_host.cli.topic", "list a hub's topics, make and remove them"),
    "gateway": Entry(
        "headwater_host.cli.gateway",
        "serial boards, topics and a hub's clients into a capture log",
        "headwater[gateway]",
    ),
    "hub": Entry("headwater_host.cli.hub", "serve FMQ; check a hub's file, make users"),
    "mq": Entry(
        "headwater_mq.commands.main", "a local queue of IBM MQ's kind: put, get, browse", "headwater-mq"
    ),
    "capture": Entry("headwater_host.cli.capture", "look into capture logs, and check them"),
    "inspect": Entry("headwater_host.cli.inspect", "show what packets say"),
    "pipeline": Entry(
        "headwater_spark.commands", "turn capture logs into tables with Spark", "headwater[spark]"
    ),
}


def _load(name: str) -> Command:
    with _extra(name):
        module: Command = importlib.import_module(COMMANDS[name].module)
    return module


@contextlib.contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say what to install when a module that the command needs is missing."""
    install = COMMANDS[name].install
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not install or (missing.startswith("headwater") and missing != "headwater_mq"):
            raise
        raise CommandError(
            f"`headwater {name}` needs {missing.partition('.')[0]}: pip install {shlex.quote(install)}", USAGE
        ) from error


class _Version(argparse.Action):
    """What it needs takes longer to import than all the rest."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print("headwater", importlib.metadata.version("headwater"))
        parser.exit()


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="headwater", description="Messages from a microcontroller to a Spark table.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    # The first argument that is no option is the command: only its module is needed.
    chosen = next((argument for argument in argv if not argument.startswith("-")), "")
    for name, entry in COMMANDS.items():
        # Where -h is the host, as mosquitto's users expect, help is --help.
        sub = commands.add_parser(
            name,
            help=entry.help,
            description=entry.help[0].upper() + entry.help[1:] + ".",
            conflict_handler="resolve",
            allow_abbrev=False,
        )
        if name == chosen:
            module = _load(name)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``headwater`` with the arguments ``argv`` (those of the process by default): the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Topics and JSON are UTF-8, whatever the terminal is.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    args = argparse.Namespace()

    def complain(error: Exception) -> None:
        if not getattr(args, "quiet", False):
            print(f"headwater: {error}", file=sys.stderr)

    try:
        if not arguments:
            _parser(arguments).print_help()
            return OK
        _parser(arguments).parse_args(arguments, args)
        with _extra(args.command):
            code: int = args.run(args)
        sys.stdout.flush()
    except CommandError as error:
        complain(error)
        return error.code
    except ClientError as error:
        complain(error)
        return code_of(error)
    except OSError as error:
        # Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # who read our output has seen enough
            return 0
        complain(error)
        return FAILED
    except KeyboardInterrupt:
        return SIGNALLED + 2
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The command ``headwater``. Each subcommand is a module that is imported only when it runs."""

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

from headwater_host.cli.options import subcommand
from headwater_host.errors import ClientError
from headwater_host.exits import FAILED, OK, SIGNALLED, USAGE, CommandError, code_of, explain


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage, which would hide it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unrecognized arguments with the name of the subcommand."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        text = _with_suggestion(message, self._option_string_actions)
        self.exit(USAGE, f"{self.prog}: {text} (see {self.prog} --help)\n")


def _with_suggestion(message: str, options: Iterable[str]) -> str:
    """Add the most similar command, value or option to a message of argparse."""
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
    """The interface of a subcommand's module."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the command's options and its description to ``parser``."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Run the command and return the exit code. Raises CommandError, ClientError or KeyboardInterrupt."""


class Entry(NamedTuple):
    """A subcommand: its module, its help text, and the requirement to install if a module is missing."""

    module: str
    help: str
    install: str = ""


COMMANDS = {
    "pub": Entry("headwater_host.cli.pub", "publish messages"),
    "sub": Entry("headwater_host.cli.sub", "subscribe and print messages"),
    "rpc": Entry("headwater_host.cli.rpc", "call or provide a remote procedure over FMQ"),
    "topic": Entry("headwater_host.cli.topic", "list, create and delete the topics of a hub"),
    "gateway": Entry(
        "headwater_host.cli.gateway", "record messages from boards, brokers and hubs", "headwater[gateway]"
    ),
    "hub": Entry("headwater_host.cli.hub", "run an FMQ hub, check its file, create users"),
    "board": Entry(
        "headwater_host.cli.board",
        "install headwater on boards, run programs, find faults",
        "headwater[board]",
    ),
    "mq": Entry(
        "headwater_mq.commands.main", "put, get and browse messages of local IBM MQ queues", "headwater-mq"
    ),
    "capture": Entry("headwater_host.cli.capture", "list, verify and print capture logs"),
    "inspect": Entry("headwater_host.cli.inspect", "decode packets, frames and headers"),
    "pipeline": Entry(
        "headwater_spark.commands", "convert capture logs to tables with Spark", "headwater[spark]"
    ),
}


def _load(name: str) -> Command:
    with _extra(name):
        module: Command = importlib.import_module(COMMANDS[name].module)
    return module


@contextlib.contextmanager
def _extra(name: str) -> Iterator[None]:
    """Turn a missing module into an error that names the requirement to install."""
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
    """``--version``: imports importlib.metadata, which is slow, only when needed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print("headwater", importlib.metadata.version("headwater"))
        parser.exit()


def make_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser, with the options of the command that ``argv`` names."""
    parser = _Parser(prog="headwater", description="Messages from a microcontroller to a Spark table.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    # The first argument that is not an option is the command. Only its module is imported.
    chosen = next((argument for argument in argv if not argument.startswith("-")), "")
    for name, entry in COMMANDS.items():
        sub = subcommand(commands, name, entry.help)
        if name == chosen:
            module = _load(name)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``headwater`` with ``argv``, by default the process's arguments. Return the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Topics and JSON are UTF-8, whatever the terminal's encoding is.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    args = argparse.Namespace()

    def complain(error: Exception) -> None:
        if not getattr(args, "quiet", False):
            print(f"headwater: {explain(error)}", file=sys.stderr)

    try:
        if not arguments:
            make_parser(arguments).print_help()
            return OK
        make_parser(arguments).parse_args(arguments, args)
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
        # Python flushes standard output when it exits, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe, as head -1 does
            return OK
        complain(error)
        return FAILED
    except KeyboardInterrupt:
        return SIGNALLED + 2
    return code


if __name__ == "__main__":
    sys.exit(main())

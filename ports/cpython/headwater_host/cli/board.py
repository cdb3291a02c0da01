"""``headwater board``: find boards, install headwater on them, run programs, find faults."""

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater_host.cli import board_settings, board_update
from headwater_host.cli.options import FILE, FLAG, SECONDS, content, directory, option, subcommand
from headwater_host.exits import FAILED, OK, SIGNALLED, USAGE, CommandError

if TYPE_CHECKING:
    from headwater_host.board.repl import Board

#: Environment variables: the board's port, and the folder with the components.
PORT_VARIABLE = "HEADWATER_BOARD"
COMPONENTS_VARIABLE = "HEADWATER_COMPONENTS"
#: main.py of a board with updates.
_LOADER = b'from headwater_board import loader\n\nloader.run("app")\n'


class Subcommand(NamedTuple):
    """A subcommand: its help, its options and what it does."""

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    parser.description = (
        "Find MicroPython boards on serial ports, install headwater, run programs, find faults. Commands that stop the "
        "board's program reset the board at their end."
    )
    commands = parser.add_subparsers(dest="board_command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = subcommand(commands, name, command.help)
        command.add_options(sub)
        sub.set_defaults(run_board=command.run)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""
    with _interruptible("the board was not changed"):
        code: int = args.run_board(args)
    return code


@contextlib.contextmanager
def _interruptible(state: str) -> Iterator[None]:
    """Turn ctrl-C into an error that says in which state the board is."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise _interrupted(state) from stop


def _interrupted(state: str) -> CommandError:
    if sys.stderr.isatty():
        print(file=sys.stderr)  # after a prompt, or the progress of a file
    return CommandError(f"interrupted; {state}", SIGNALLED + signal.SIGINT)


# ---- options ---------------------------------------------------------------------------------------------------------


def _port_option(parser: argparse.ArgumentParser) -> None:
    option(
        parser,
        "--port",
        f"Serial port, or USB serial number; default: {PORT_VARIABLE}, else the only board",
        default=os.environ.get(PORT_VARIABLE) or None,
        metavar="PORT",
    )


def _stopping_options(parser: argparse.ArgumentParser) -> None:
    _port_option(parser)
    option(parser, "--no-reset", "Leave the board at its prompt", FLAG)


def _components_option(parser: argparse.ArgumentParser) -> None:
    option(
        parser,
        "--components",
        f"Directory with built components; default: {COMPONENTS_VARIABLE}, else those of this package",
        type=directory,
        default=os.environ.get(COMPONENTS_VARIABLE) or None,
        metavar="DIR",
    )


def _components(args: argparse.Namespace) -> Path:
    from headwater_host.board import components

    return Path(args.components or components.PACKAGED)


def _list_options(parser: argparse.ArgumentParser) -> None:
    option(parser, "--json", "Print a JSON object for each board", FLAG)


def _info_options(parser: argparse.ArgumentParser) -> None:
    _stopping_options(parser)
    option(parser, "--json", "Print one JSON object", FLAG)


def _install_options(parser: argparse.ArgumentParser) -> None:
    _stopping_options(parser)
    option(
        parser,
        "component",
        "Components, such as mqtt; default: those that fit",
        nargs="*",
        metavar="COMPONENT",
    )
    _components_option(parser)
    board_settings.add_options(parser)
    option(parser, "--main", "Program to copy to /main.py", FILE)
    option(parser, "--yes", "Do not ask before replacing another /main.py", FLAG)


def _run_options(parser: argparse.ArgumentParser) -> None:
    _stopping_options(parser)
    _components_option(parser)
    option(parser, "file", "Program; - reads standard input", metavar="FILE")


def _logs_options(parser: argparse.ArgumentParser) -> None:
    _port_option(parser)
    _components_option(parser)
    first = parser.add_mutually_exclusive_group()
    option(first, "--reset", "Reset the board first", FLAG)
    option(first, "--ring", "Stop the program, print its log ring, and end", FLAG)
    option(parser, "-W --wait", "Stop after this time", SECONDS)


def _files_options(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="files_command", metavar="COMMAND", required=True)
    ls = subcommand(commands, "ls", "list a directory of the board")
    option(ls, "name", "Directory; default: /", nargs="?", default="/", metavar="NAME")
    get = subcommand(commands, "get", "copy a file from the board")
    option(get, "name", "File on the board", metavar="NAME")
    option(
        get, "file", "File here; default: the same name; - writes standard output", nargs="?", metavar="FILE"
    )
    put = subcommand(commands, "put", "copy a file to the board")
    option(put, "file", "File here; - reads standard input", metavar="FILE")
    option(put, "name", "File on the board; default: the same name in /", nargs="?", metavar="NAME")
    rm = subcommand(commands, "rm", "remove a file of the board")
    option(rm, "name", "File on the board", metavar="NAME")
    for sub in (ls, get, put, rm):
        _stopping_options(sub)


def _wipe_options(parser: argparse.ArgumentParser) -> None:
    _stopping_options(parser)
    option(parser, "--changed", "Also remove files that changed since the installation", FLAG)
    option(parser, "--state", "Also remove settings, boot number and addresses", FLAG)
    option(parser, "--yes", "Do not ask", FLAG)


# ---- the board -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _board(args: argparse.Namespace) -> Iterator["Board"]:
    """Stop the board's program for the duration of the command, then reset the board unless told otherwise."""
    from headwater_host.board.errors import explained
    from headwater_host.board.ports import choose
    from headwater_host.board.repl import Board

    port = choose(args.port)
    with explained(port), Board(port) as board, _restarting(board, args.no_reset):
        board.feed_watchdog()
        yield board
        if not args.no_reset:
            board.reset()


@contextlib.contextmanager
def _restarting(board: "Board", no_reset: bool = False) -> Iterator[None]:
    """After an error or ctrl-C, reset the board, so that its program runs again."""
    from headwater_host.board.errors import is_of_line

    try:
        yield
    except BaseException as error:
        # Ctrl-C while the command connects closes the port, and the program may be stopped already.
        stopped = board.at_prompt or isinstance(error, KeyboardInterrupt)
        if stopped and not no_reset and not is_of_line(error):
            with contextlib.suppress(Exception):  # the first error counts
                board.interrupt()
                board.reset()
        if isinstance(error, KeyboardInterrupt):
            raise _interrupted(
                "files on the board have changed: repeat the command"
                if board.changed
                else "no file of the board was changed"
            ) from error
        raise


def _list(args: argparse.Namespace) -> int:
    from headwater_host.board.ports import boards, none

    found = boards()
    if not found:
        raise none()
    for one in found:
        print(json.dumps(one._asdict()) if args.json else "\t".join(one).rstrip())
    if len(found) > 1 and not args.json and not os.environ.get(PORT_VARIABLE):
        print(
            f"Select one with --port PORT, or with {PORT_VARIABLE}=PORT in the environment.", file=sys.stderr
        )
    return OK


def _info(args: argparse.Namespace) -> int:
    from headwater_host.board import information
    from headwater_host.board.install import read_record

    with _board(args) as board:
        found = information.facts(board)
        record = read_record(board)
    if args.json:
        installed = {
            "headwater": record.version,
            "components": record.components,
            "complete": record.complete,
        }
        print(json.dumps({"port": board.port, **found, **installed}))
    else:
        print(information.report(board.port, found, record), end="")
    return OK


def _install(args: argparse.Namespace) -> int:
    from headwater_host.board import components, information, settings
    from headwater_host.board.install import hash_of, hashes, install

    folder = _components(args)
    components.available(folder)
    own = settings.parse(content(str(args.settings)), str(args.settings)) if args.settings else None
    program = content(str(args.main)) if args.main else b""
    named = components.load(folder, args.component)
    args.port = _reachable(args.port)  # before questions
    patch, more = board_settings.patch(args)
    with _board(args) as board:
        found = information.facts(board)
        information.check_firmware(found)
        information.check_place(found)
        before = settings.read(board, repair=own is not None)
        after = settings.patched(before if own is None else own, patch)
        if after and (not named or any(settings.MODULE in one.files for one in named)):
            settings.check(folder, after)
        chosen = named or components.load(folder, components.fitting(after))
        files = {name: path.read_bytes() for one in chosen for name, path in one.files.items()}
        information.check_bytecode(found, files.values())
        # Updates replace the module app, which the loader starts.
        programs = {"/app.py": program, "/main.py": _LOADER} if "update" in after else {"/main.py": program}
        if after != before:
            more[settings.PATH] = settings.encode(after)
        if args.main:
            more |= programs
        present = hashes(board, list(more))
        changed = {name: data for name, data in more.items() if present.get(name, ("",))[0] != hash_of(data)}
        others = [name for name in programs if name in changed and name in present]
        if others and not args.yes and not _may_replace(others):
            changed = {name: data for name, data in changed.items() if name not in programs}
        written, removed = install(
            board,
            chosen[0].version,
            [one.name for one in chosen],
            files,
            _progress,
            map(len, changed.values()),
        )
        for name, data in changed.items():
            board.replace(name, data, functools.partial(_progress, name))
            written.append(name)
    for name in written:
        print(f"wrote   {name}")
    for name in removed:
        print(f"removed {name}")
    if not written and not removed:
        print("nothing has changed")
    return OK


def _reachable(wanted: str | None) -> str:
    """Return the port to use, if it can be opened. Raises BoardError."""
    from headwater_host.board.errors import unopened
    from headwater_host.board.ports import choose

    port = choose(wanted)
    if wrong := unopened(port):
        raise wrong
    return port


def _may_replace(names: Sequence[str]) -> bool:
    """Ask before other programs are replaced."""
    return board_settings.confirmed(f"{' and '.join(names)} on the board is another program. Replace it?")


def _progress(name: str, written: int, size: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if written == size else ""
        print(f"\r{name}: {written:,} of {size:,} bytes", end=end, file=sys.stderr, flush=True)


def _run(args: argparse.Namespace) -> int:
    try:
        program = content(args.file).decode()
    except UnicodeDecodeError as wrong:
        raise CommandError(f"{args.file} is not a program: {wrong}", USAGE) from wrong
    from headwater_host.board import components
    from headwater_host.board.install import read_record
    from headwater_host.board.tracebacks import translate

    with _board(args) as board:
        known = components.names(_components(args), read_record(board))
        with _translated(known) as consume:
            error = board.stream(program, consume)
    for line in translate(error, known):
        print(line, file=sys.stderr)
    return FAILED if error else OK


@contextlib.contextmanager
def _translated(known: dict[str, Any]) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that prints the output of a board, with translated tracebacks."""
    from headwater_host.board.tracebacks import Translator

    translator = Translator(known, _write)
    try:
        yield translator.feed
    finally:
        translator.flush()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _logs(args: argparse.Namespace) -> int:
    from headwater_host.board import components
    from headwater_host.board.errors import explained
    from headwater_host.board.logs import follow, ring
    from headwater_host.board.ports import choose
    from headwater_host.board.repl import Board

    if args.ring:
        with _board(argparse.Namespace(port=args.port, no_reset=False)) as board:
            print(ring(board), end="")
        return OK
    # What is on the board cannot be read without stopping its program.
    known = components.names(_components(args))
    port = choose(args.port)
    with explained(port):
        with Board(port) as board, _restarting(board):
            line = board.reset_and_release() if args.reset else None
        with contextlib.suppress(KeyboardInterrupt), _translated(known) as consume:
            follow(port, consume, args.wait, line)
    return OK


def _files(args: argparse.Namespace) -> int:
    with _board(args) as board:
        try:
            data = _FILES[args.files_command](board, args)
        except FileNotFoundError as error:
            raise CommandError(f"there is no {args.name} on the board", FAILED) from error
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            # mpremote passes the file's name as the error's text.
            raise CommandError(
                f"{error.strerror} on the board: {os.strerror(error.errno or 0)}", FAILED
            ) from error
    if args.files_command == "get" and args.file != "-":
        Path(args.file or Path(args.name).name).write_bytes(data)
    else:
        _write(data)
    return OK


def _files_ls(board: "Board", args: argparse.Namespace) -> bytes:
    return "".join(f"{name}\n" for name in sorted(board.listdir(args.name))).encode(errors="backslashreplace")


def _files_get(board: "Board", args: argparse.Namespace) -> bytes:
    return board.get(args.name)


def _files_put(board: "Board", args: argparse.Namespace) -> bytes:
    name = args.name or f"/{Path(args.file).name}"
    if name == "/-":
        raise CommandError("files put -: standard input needs a NAME on the board", USAGE)
    board.replace(name, content(args.file), functools.partial(_progress, name))
    return b""


def _files_rm(board: "Board", args: argparse.Namespace) -> bytes:
    board.remove(args.name)
    return b""


#: Subcommands of `files`; what they return is for standard output, or a file.
_FILES = {"ls": _files_ls, "get": _files_get, "put": _files_put, "rm": _files_rm}


def _reset(args: argparse.Namespace) -> int:
    with _board(argparse.Namespace(port=args.port, no_reset=False)):
        return OK


def _wipe(args: argparse.Namespace) -> int:
    from headwater_host.board import install

    with _board(args) as board:
        names, changed = install.ours(board)
        kept = [] if args.changed else changed
        if args.state:
            names += install.state(board)
        for name in names:
            print(f"{'keep  ' if name in kept else 'remove'} {name}{' (changed)' * (name in changed)}")
        going = [name for name in names if name not in kept]
        if not names:
            print("headwater is not installed")
        elif going and (args.yes or board_settings.confirmed(f"Remove {len(going)} files?")):
            install.uninstall(board, going)
    return OK


def _doctor(args: argparse.Namespace) -> int:
    from headwater_host.board import doctor

    failed = False
    with _board(args) as board:
        for found in doctor.examine(board):
            failed = found.result == doctor.FAILED
            print(f"{found.result:5} {found.step:16} {found.text}", flush=True)
            if found.remedy:
                print(f"{'':6}{found.remedy}")
    return FAILED if failed else OK


#: Subcommands by name.
COMMANDS = {
    "list": Subcommand("list the boards on serial ports", _list_options, _list),
    "info": Subcommand("print firmware, memory, flash and components of a board", _info_options, _info),
    "install": Subcommand("install components of headwater on a board", _install_options, _install),
    "run": Subcommand("run a program on a board and print its output", _run_options, _run),
    "logs": Subcommand("print what a board prints, without stopping its program", _logs_options, _logs),
    "files": Subcommand("list, copy and remove files of a board", _files_options, _files),
    "reset": Subcommand("reset a board, which starts its program", _port_option, _reset),
    "publish-update": Subcommand(board_update.HELP, board_update.add_arguments, board_update.run),
    "wipe-ours": Subcommand("remove what headwater installed on a board", _wipe_options, _wipe),
    "doctor": Subcommand(
        "check a board from its serial port to an acknowledged message", _stopping_options, _doctor
    ),
}

"""Write the documentation's tables of commands and options from the argument parsers."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from headwater_host.cli import main
from headwater_host.gateway.config import KEYS
from headwater_host.gateway.source import GATEWAY_STATISTICS, SOURCE_STATISTICS
from headwater_host.settings import Key

#: Groups of options that several commands share: documented once, for the first command.
SHARED = {"connection": "pub", "TLS": "pub", "diagnostics": "pub"}
#: Commands whose options another command has as well.
SAME = {"mq browse": "mq get"}


def table(header: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    """Write a Markdown table of two columns."""
    lines = [header, ("---", "---"), *rows]
    return "".join(f"| {left} | {right} |\n" for left, right in lines)


def parsers(name: str) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of a command and those of its subcommands, by their names on the command line."""
    root = main.make_parser([name])
    found = {}

    def visit(words: str, parser: argparse.ArgumentParser) -> None:
        found[words] = parser
        for choice, child in _children(parser).items():
            visit(f"{words} {choice}", child)

    visit(name, _children(root)[name])
    return found


def _children(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def options(parser: argparse.ArgumentParser, group: str | None = None) -> Iterator[argparse.Action]:
    """Yield the options of one group, or of all groups that are not shared. ``--help`` is left out."""
    for one in parser._action_groups:
        if one.title == group if group else one.title not in SHARED:
            for action in one._group_actions:
                if action.dest != "help" and not isinstance(action, argparse._SubParsersAction):
                    yield action


def _names(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option with its value, or a positional argument, as Markdown."""
    formatter = argparse.HelpFormatter(parser.prog)
    if not action.option_strings:
        return f"`{formatter._format_args(action, str(action.metavar or action.dest))}`"
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    *short, last = action.option_strings
    return ", ".join(f"`{name}`" for name in short) + ", " * bool(short) + f"`{f'{last} {value}'.strip()}`"


def _text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    if action.required and action.option_strings:
        text += "; required"
    return text.replace("|", "\\|")


def option_table(words: str, group: str | None = None) -> str:
    """Write the table of a command's options; ``group``: only those of this group."""
    parser = parsers(words.partition(" ")[0])[words]
    rows = [
        (_names(parser, action).replace("|", "\\|"), _text(parser, action))
        for action in options(parser, group)
    ]
    return table(("Option", "Meaning"), rows)


def command_table() -> str:
    """Write the table of all commands and subcommands."""
    rows = []
    for name, entry in main.COMMANDS.items():
        children = _children(parsers(name)[name])
        text = entry.help[0].upper() + entry.help[1:]
        names = ", ".join(f"`{child}`" for child in children)
        rows.append((f"`headwater {name}`" + (f": {names}" if names else ""), text))
    return table(("Command", "Purpose"), rows)


def key_table(keys: Mapping[str, Key]) -> str:
    """Write the table of a configuration table's keys."""
    rows = [
        (f"`{name}`", f"{key.meaning}{'; required' * key.required} ({key.what})")
        for name, key in keys.items()
    ]
    return table(("Key", "Meaning (value)"), rows)


def statistics_table(fields: Mapping[str, str]) -> str:
    """Write the table of the gateway's statistics."""
    return table(("Field", "Meaning"), [(f"`{name}`", meaning) for name, meaning in fields.items()])


def drawings() -> dict[str, Callable[[], str]]:
    """Return the tables by the names that the pages give them."""
    found: dict[str, Callable[[], str]] = {"commands": command_table}
    found |= {
        f"options-{group.lower()}": partial(option_table, name, group) for group, name in SHARED.items()
    }
    found |= {f"keys-{name or 'gateway'}": partial(key_table, keys) for name, keys in KEYS.items()}
    found["statistics-gateway"] = partial(statistics_table, GATEWAY_STATISTICS)
    found["statistics-source"] = partial(statistics_table, SOURCE_STATISTICS)
    for name in main.COMMANDS:
        for words, parser in parsers(name).items():
            if words not in SAME and any(options(parser)):
                found["options-" + words.replace(" ", "-")] = partial(option_table, words)
    return found

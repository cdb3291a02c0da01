"""Write the documentation's lists of commands, options and configuration keys from the code."""

import argparse
import re
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
    """Return an option with its value, or a positional argument."""
    formatter = argparse.HelpFormatter(parser.prog)
    if not action.option_strings:
        return formatter._format_args(action, str(action.metavar or action.dest))
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    return f"{', '.join(action.option_strings)} {value}".strip()


def _text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    return text + "; required" * bool(action.required and action.option_strings)


def option_list(name: str, group: str | None = None) -> str:
    """List the options of a command and its subcommands; ``group``: only those of this group."""
    lists = []
    for words, parser in parsers(name).items():
        rows = [(_names(parser, action), _text(parser, action)) for action in options(parser, group)]
        if rows and words not in SAME:
            also = [one for one, other in SAME.items() if other == words]
            lists.append((", ".join([words, *also]), rows))
    width = max(len(names) for _, rows in lists for names, _ in rows)
    lines = []
    for heading, rows in lists:
        if len(lists) > 1:
            lines.append(heading)
        indent = "  " * (len(lists) > 1)
        lines += [f"{indent}{names:{width}}  {text}".rstrip() for names, text in rows]
    return "\n".join(["```text", *lines, "```", ""])


def command_table() -> str:
    """Write the table of all commands and subcommands."""
    rows = []
    for name, entry in main.COMMANDS.items():
        children = _children(parsers(name)[name])
        text = entry.help[0].upper() + entry.help[1:]
        names = ", ".join(f"`{child}`" for child in children)
        rows.append((f"`headwater {name}`" + (f": {names}" if names else ""), text))
    return table(("Command", "Purpose"), rows)


def key_list(keys: Mapping[str, Key]) -> str:
    """List the keys of a configuration table, with the values that have limits."""
    lines = []
    for name, key in keys.items():
        values = f" ({key.what})" if re.search(r"[\d\"]", key.what) else ""
        lines.append(f"- `{name}`: {key.meaning}{'; required' * key.required}{values}\n")
    return "".join(lines)


def statistics_list(fields: Mapping[str, str]) -> str:
    """List the gateway's statistics."""
    return "".join(f"- `{name}`: {meaning}\n" for name, meaning in fields.items())


def drawings() -> dict[str, Callable[[], str]]:
    """Return the tables by the names that the pages give them."""
    found: dict[str, Callable[[], str]] = {"commands": command_table}
    found |= {f"options-{group.lower()}": partial(option_list, name, group) for group, name in SHARED.items()}
    found |= {f"options-{name}": partial(option_list, name) for name in main.COMMANDS}
    found |= {f"keys-{name or 'gateway'}": partial(key_list, keys) for name, keys in KEYS.items()}
    found["statistics-gateway"] = partial(statistics_list, GATEWAY_STATISTICS)
    found["statistics-source"] = partial(statistics_list, SOURCE_STATISTICS)
    return found

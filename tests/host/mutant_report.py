"""Report which defects a checker finds."""

import time
from collections.abc import Callable, Iterable
from functools import partial


def report(looks: Iterable[tuple[str, Callable[[], str], bool]]) -> int:
    """Print what each look finds, with its seconds, and the number of mistakes; return the exit status.

    A look is its name, a function that returns what is found ("": nothing), and whether something has to be found.
    """
    mistakes = 0
    for name, look, wanted in looks:
        began = time.monotonic()
        found = look()
        mistakes += bool(found) != wanted
        print(f"{name}: {found or 'nothing found'} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{mistakes or 'no'} mistakes of the checker")
    return 1 if mistakes else 0


def report_mutants(names: Iterable[str], find: Callable[[str], str]) -> int:
    """Report (see ``report``) what ``find`` finds of each mutant; the one without a name has no defect."""
    return report([(name or "no defect", partial(find, name), bool(name)) for name in names])

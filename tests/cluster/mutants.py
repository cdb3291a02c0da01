"""Hubs with one defect of the election, the fence or the answers, to see that the checker finds it."""

from collections.abc import Callable

#: Name, and the function that installs the defect in this process.
MUTANTS: dict[str, Callable[[], None]] = {}

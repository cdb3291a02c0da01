"""Runs the portable tests where pytest cannot: on MicroPython, on a computer, in WebAssembly or on a board.

    micropython tests/portable/run.py [test_one.py test_two ...]

Each ``test_*`` function of each module is called; without arguments the modules are all ``test_*.py`` beside this file.
It prints ``ok MODULE.FUNCTION``, or ``FAIL MODULE.FUNCTION`` and the traceback, and at the end ``N passed, M failed``.
The exit status is 1 when something failed or nothing ran. On a board: ``import run; run.main(["test_one"])``.

Portable tests use plain asserts, the core, and modules that MicroPython has (json, struct, binascii); no clock.
CPython's pytest collects the same files.
"""

import gc
import os
import sys


def _directory() -> str:
    return __file__.rsplit("/", 1)[0] if "/" in __file__ else "."


def _print_exception(error: Exception) -> None:
    if hasattr(sys, "print_exception"):
        sys.print_exception(error)
    else:
        import traceback

        traceback.print_exception(error)


def _fail(name: str, error: Exception) -> int:
    print("FAIL", name)
    _print_exception(error)
    return 1


def _run_module(name: str) -> tuple[int, int]:
    """Call the module's tests: (passed, failed). The module is dropped behind it: boards are small."""
    passed = failed = 0
    try:
        module = __import__(name)
    except Exception as error:
        return 0, _fail(name, error)
    tests = sorted([test for test in dir(module) if test.startswith("test_")])
    if not tests:
        return 0, _fail(name, Exception("no test in this module"))
    for test in tests:
        gc.collect()
        try:
            getattr(module, test)()
            print("ok", name + "." + test)
            passed += 1
        except Exception as error:
            failed += _fail(name + "." + test, error)
    del sys.modules[name]
    return passed, failed


def main(names: list[str] | tuple[str, ...] = ()) -> int:
    """Run the test modules ``names`` (all of them when empty) and report: the number of failures."""
    try:
        assert False, "asserts count"  # noqa: B011, PT015 - whether they are compiled in is the question
    except AssertionError:
        pass
    else:
        raise RuntimeError("asserts are switched off here (-O): no test could fail")
    here = _directory()
    if here not in sys.path:
        sys.path.insert(0, here)
    passed = failed = 0
    for name in names or sorted(
        [file for file in os.listdir(here) if file.startswith("test_") and file.endswith(".py")]
    ):
        name = name.rsplit("/", 1)[-1]
        good, bad = _run_module(name[:-3] if name.endswith(".py") else name)
        passed += good
        failed += bad
    if passed + failed == 0:
        failed = _fail("(nothing)", Exception("there are no tests here"))
    print("%d passed, %d failed" % (passed, failed))
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)

"""How a check is run and what it says: its name, a tab, ok, FAIL or skip, and why."""

import sys
import traceback


class Skip(Exception):
    """The driver has no such thing."""


def report(name, error=None):
    if error is None:
        line = f"{name}\tok"
    elif isinstance(error, Skip):
        line = f"{name}\tskip\t{error}"
    else:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        line = f"{name}\tFAIL\t{why}"
        traceback.print_exception(error, file=sys.stderr)
    print(line, flush=True)


def equal(actual, expected):
    if actual != expected:
        raise AssertionError(f"{str(actual)[:200]!r} instead of {str(expected)[:200]!r}")

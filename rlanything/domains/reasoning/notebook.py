"""Runs cells as a notebook does. The source of this module is the beginning of a program in the sandbox.

The cells share the namespace of `__main__`. The last cell alone is heard: of the others, which have been heard before,
the output goes nowhere. An error ends its cell, and what the cell did before stays. Standard library alone.
"""

import ast
import contextlib
import linecache
import os
import sys
import traceback
import types
from collections.abc import Sequence

OUTPUT, ERRORS = 1, 2  # file descriptors
DONE, RAISED = 85, 86  # exit status if the last cell ended, and if it raised an exception


def run_cells(cells: Sequence[str]) -> None:
    """Run the cells in order, and exit with DONE or RAISED. Any other status tells that a cell ended the program."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    heard, nowhere = os.dup(OUTPUT), os.open(os.devnull, os.O_WRONLY)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)  # the sandbox seeds `random` alone
    for number, source in enumerate(cells, 1):
        _say_to(heard if number == len(cells) else nowhere)
        ended_well = _run_cell(source, f"<cell {number}>", main)
    sys.exit(DONE if ended_well else RAISED)


def _say_to(file: int) -> None:
    """Send what is written from now on, errors too, to an open file, whatever a cell did to the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a cell may have closed or replaced it
            stream.flush()
    os.dup2(file, OUTPUT)
    os.dup2(file, ERRORS)
    # Line by line, which keeps the order of what both are told.
    sys.stdout, sys.stderr = (
        open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for fd in (OUTPUT, ERRORS)
    )


def _run_cell(source: str, name: str, main: types.ModuleType) -> bool:
    """Run a cell. Returns whether it ended without an exception."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), vars(main))
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), vars(main))
            if value is not None:
                print(repr(value))
    except BaseException as error:  # SystemExit too: it ends a cell, and not the notebook
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<cell ")]
        told = [
            "Traceback (most recent call last):\n",
            *traceback.format_list(frames),
            *traceback.format_exception_only(error),
        ]
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os.write(ERRORS, "".join(told).rstrip().encode("utf-8", "backslashreplace") + b"\n")
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""Makes collectives.pyi from collectives.py, for type checkers: make_stub.py DIRECTORY writes it there.

A call with `async_op=True` returns a Work of the result, which takes three declarations to say. collectives.py has the
types of a blocking call, and this script makes the three of them. setup.py runs it for a wheel.
"""

import ast
import os
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ivycomm", "collectives.py")
HEADER = """# Made by make_stub.py from collectives.py.
from typing import Literal, overload

from . import Group, ReduceOp, Work
"""


def declaration(function, async_op, result):
    """Declares the function for one kind of async_op, such as "Literal[True]"."""
    words = []
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    for each, default in [*zip(arguments.args, defaults), (None, None), *zip(arguments.kwonlyargs, arguments.kw_defaults)]:
        if each is None or each.arg == "async_op" and async_op != "Literal[False]":
            words += ["*"] if "*" not in words else []  # An argument without a default goes by name.
        if each is not None and each.arg == "async_op":
            words.append(f"async_op: {async_op}" + (" = False" if async_op == "Literal[False]" else ""))
        elif each is not None:
            words.append(ast.unparse(each) + (f" = {ast.unparse(default)}" if default is not None else ""))
    return f"@overload\ndef {function.name}({', '.join(words)}) -> {result}: ..."


def stub():
    with open(SOURCE, encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    # Our own classes are those that the package's stub declares.
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module in ("collections.abc", "typing")]
    assigned = {ast.unparse(node.targets[0]): node for node in body if isinstance(node, ast.Assign)}
    types = [assigned[name] for name in ("ArrayT", "Op", "__all__")]
    lines = [HEADER, *map(ast.unparse, [*imports, *types])]
    for function in body:
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
            result = ast.unparse(function.returns)
            lines += [declaration(function, "Literal[False]", result),
                      declaration(function, "Literal[True]", f"Work[{result}]"),
                      declaration(function, "bool", f"{result} | Work[{result}]")]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(os.path.join(sys.argv[1], "collectives.pyi"), "w", encoding="utf-8") as made:
        made.write(stub())

"""Regular expressions whose time grows exponentially with their input: one request with such an
input would occupy a server's event loop for hours."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sources import name_of, nodes_of, python_files

PARSER: Any = importlib.import_module("re._parser")
METHODS = {"compile", "fullmatch", "match", "search", "sub", "split", "findall", "finditer"}


def patterns_of(path: Path) -> Iterator[tuple[str | bytes, int]]:
    """The literal patterns of a file, and their flags as far as they change how they are read."""
    for node in nodes_of(path):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "re"
            and node.func.attr in METHODS
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str | bytes)
        ):
            yield node.args[0].value, re.VERBOSE if "re.VERBOSE" in ast.unparse(node) else 0


def is_unbounded(op: object, argument: Any) -> bool:
    """Whether this repeats without a limit and may give back what it took."""
    repeats = (PARSER.MAX_REPEAT, PARSER.MIN_REPEAT)
    return op in repeats and argument[1] is PARSER.MAXREPEAT


def branches_of(body: Any) -> Iterator[Any]:
    if len(body) == 1 and body[0][0] is PARSER.SUBPATTERN:
        yield from branches_of(body[0][1][-1])
    elif len(body) == 1 and body[0][0] is PARSER.BRANCH:
        for branch in body[0][1][1]:
            yield from branches_of(branch)
    else:
        yield body


def nested_in(argument: Any) -> Iterator[Any]:
    """The patterns inside what an operation of the parser has: groups, branches, repetitions."""
    if isinstance(argument, PARSER.SubPattern):
        yield argument
    elif type(argument) in (list, tuple):
        for part in argument:
            yield from nested_in(part)


def backtracks(parsed: Any) -> bool:
    """Whether a repetition repeats another one as such, as in (a+|b)+: then there are 2^n ways to
    read n letters, and all of them are tried before the pattern fails."""
    for op, argument in parsed:
        if is_unbounded(op, argument):
            branches = list(branches_of(argument[2]))
            if any(len(branch) == 1 and is_unbounded(*branch[0]) for branch in branches):
                return True
        if any(map(backtracks, nested_in(argument))):
            return True
    return False


@pytest.mark.parametrize("path", python_files("src"), ids=name_of)
def test_regular_expressions_have_no_nested_repetitions(path: Path) -> None:
    for pattern, flags in patterns_of(path):
        assert not backtracks(PARSER.parse(pattern, flags)), f"use possessive ++ in {pattern!r}"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("(?:0x[0-9]*|[0-9]+|[.])+", True),
        ("(a+)+", True),
        ("x(?:(?:a+)|b)*y", True),
        ("z|(a+)*", True),
        ("(?:0x[0-9]*+|[0-9]++|[.])++", False),
        ("(?:[.]a+)*", False),
        ("(?:a+){2}", False),
        ("a+", False),
    ],
)
def test_pattern_check_detects_nested_repetitions(pattern: str, found: bool) -> None:
    assert backtracks(PARSER.parse(pattern)) is found

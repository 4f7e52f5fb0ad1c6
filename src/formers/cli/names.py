"""Names for shell completion, parsed from the sources without importing them: loading torch would take a second or two.

A test compares them with the registries: tests/cli/test_command_line.py.
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).parents[1]


class Known(NamedTuple):
    """A member: what it is in a line, its presets and its options."""

    about: str
    presets: list[str]
    options: list[str]


def members() -> dict[str, Known]:
    """The members, from the table in family/members.py, the signatures of its recipes, their sizes, and family/common.py."""
    recipes = {n.name: n for file in _files("family") for n in _nodes(file) if isinstance(n, ast.FunctionDef)}
    sizes = _inherited([n for n in _nodes(SOURCES / "family" / "sizes.py") if isinstance(n, ast.ClassDef)])
    common = recipes["adjusted"].args.kwonlyargs
    found = {}
    for key, value in _items(_table("members.py", "MEMBERS")):
        recipe = recipes[_name(value.args[0])]
        given = (*recipe.args.kwonlyargs, *common)
        inner = [(each.arg, sizes.get(_name(each.annotation), [])) for each in given]
        options = [name for argument, fields in inner for name in ([_name(field.target) for field in fields] or [argument])]
        options[-len(common) : -len(common)] = [name for each in value.keywords if each.arg == "groups" for name, _ in _items(each.value)]
        about = (ast.get_docstring(recipe) or "").partition("\n")[0]
        found[key] = Known(about, [name for name, _ in _items(value.args[1])], list(dict.fromkeys(options)))
    return found


def ablations() -> list[str]:
    """The names of the ablations, from the table in family/ablations.py."""
    return [key for key, _ in _items(_table("ablations.py", "ABLATIONS"))]


def patterns() -> dict[str, list[str]]:
    """The patterns that options alone describe, and these options; those made of other patterns are not among them."""
    classes = [n for file in _files("patterns") for n in _nodes(file) if isinstance(n, ast.ClassDef)]
    known = {"Pattern"}
    while more := {c.name for c in classes if c.name not in known and known & {_name(base) for base in c.bases}}:
        known |= more
    fields = _inherited(classes)
    alone = [name for name in fields if name in known - {"Pattern"} and name[0] != "_" and not _mentions(fields[name], known)]
    return {_hyphened(name): [_name(field.target) for field in fields[name]] for name in alone}


def figures() -> dict[str, str]:
    """The figures that have a name, and the members that they are drawn from; their catalogue needs nothing but Python."""
    found = runpy.run_path(str(SOURCES / "inspect" / "draw" / "figures" / "catalogue.py"))["FIGURES"]
    return {name: entry.member for name, entry in found.items()}


def data_sets() -> list[str]:
    """The data sets that have a name, and the tasks; their catalogue needs nothing but Python."""
    return list(runpy.run_path(str(SOURCES / "data" / "catalogue.py"))["OFFERED"])


def settings() -> list[str]:
    """The settings of training and of reading."""
    places = {"Settings": SOURCES / "training" / "config.py", "Reading": SOURCES / "data" / "reading.py"}
    classes = [n for name, file in places.items() for n in _nodes(file) if isinstance(n, ast.ClassDef) and n.name == name]
    return [_name(field.target) for node in classes for field in _fields(node)]


def _table(file: str, name: str) -> Any:
    """The dict of a name in a file of the family."""
    return next(n.value for n in _nodes(SOURCES / "family" / file) if isinstance(n, ast.AnnAssign) and _name(n.target) == name)


def _files(folder: str) -> list[Path]:
    return sorted((SOURCES / folder).glob("*.py"))


def _nodes(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_bytes()).body


def _items(table: Any) -> Iterator[tuple[str, Any]]:
    """The keys and values of a dict as it is written."""
    for key, value in zip(table.keys, table.values, strict=True):
        yield key.value, value


def _name(node: Any) -> str:
    """The last name of `a`, `b.a` or `a[...]`."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [n for n in node.body if isinstance(n, ast.AnnAssign)]


def _inherited(classes: list[ast.ClassDef]) -> dict[str, list[ast.AnnAssign]]:
    """The fields of each class, those of its bases first; a base stands before its subclasses."""
    found = {c.name: _fields(c) for c in classes}
    for c in classes:
        found[c.name] = [field for base in c.bases for field in found.get(_name(base), [])] + found[c.name]
    return found


def _mentions(fields: list[ast.AnnAssign], names: set[str]) -> bool:
    """Whether a field is typed with one of the names."""
    return any(_name(inner) in names for field in fields for inner in ast.walk(field.annotation))


def _hyphened(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))

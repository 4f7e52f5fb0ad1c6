"""The page of the public names, from their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from docsite.copies import url_of
from docsite.markup import first_sentence, inline, prose, python, table
from docsite.repository import FILES, REFERENCE, ROOT


class Field(NamedTuple):
    """A field of a class, as it is written."""

    name: str
    kind: str
    default: str
    doc: str


def page() -> str:
    """Functions, classes, members, parts by slot and settings, as Markdown with HTML in it."""
    import formers

    found = {name: getattr(formers, name) for name in formers._HOMES}
    modules = {name: value for name, value in found.items() if inspect.ismodule(value)}
    functions = {name: value for name, value in found.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in found.items() if inspect.isclass(value)}
    pieces = [
        "# Python reference\n",
        "<p>All of this is made from the code. Each name leads to its line; the "
        f'<a href="{url_of(FILES, REFERENCE)}">list of files</a> leads to the rest.</p>\n',
        "## Functions\n",
        *(_function(f"formers.{name}", value) for name, value in functions.items()),
        "## Members\n",
        *_members(),
        "## Parts, by slot\n",
        *(_slot(name, value) for name, value in modules.items()),
        "## Classes\n",
        *(_class(f"formers.{name}", value) for name, value in classes.items()),
        "## Settings of training\n",
        _settings(),
    ]
    return "\n".join(pieces)


def _function(name: str, function: Any, level: int = 3) -> str:
    return f"{'#' * level} {name} {{ #{name} }}\n\n{python(signature(name, function))}\n\n{prose(function.__doc__)}\n{_where(function)}\n"


def signature(name: str, function: Any) -> str:
    """`name(a: int, b: str = 'x') -> T`, one parameter a line where it is long."""
    found = inspect.signature(function)
    parameters, keywords = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            parameters.append("*")
        keywords = keywords or parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        parameters.append(_parameter(parameter))
    result = "" if found.return_annotation is inspect.Signature.empty else f" -> {_result(function)}"
    whole = f"{name}({', '.join(parameters)}){result}"
    return whole if len(whole) <= 90 else "\n".join([f"{name}(", *(f"    {p}," for p in parameters), f"){result}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    kind = "" if parameter.annotation is inspect.Parameter.empty else f": {_kind(parameter.annotation)}"
    default = "" if parameter.default is inspect.Parameter.empty else f"{' = ' if kind else '='}{parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"


def _result(function: Any) -> str:
    return _kind(inspect.signature(function).return_annotation)


def _kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _where(thing: Any) -> str:
    """A link to the line on which a function or a class begins."""
    file, line = _line(thing)
    return f'<p class="about"><a href="{url_of(file, REFERENCE)}#L{line}">{escape(file)}, line {line}</a></p>'


def _named(cls: type) -> str:
    """The name of a class, as a link to its line."""
    file, line = _line(cls)
    return f'<a href="{url_of(file, REFERENCE)}#L{line}"><code>{escape(cls.__name__)}</code></a>'


def _line(thing: Any) -> tuple[str, int]:
    path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").resolve()
    return path.relative_to(ROOT).as_posix(), inspect.getsourcelines(thing)[1]


def _members() -> Iterator[str]:
    """Each member: what its recipe says, its options with their defaults, and its presets."""
    from formers.family.members import MEMBERS

    for name, member in MEMBERS.items():
        parameters = member.parameters.values()
        rows = [
            (_code(p.name), _code(_kind(p.annotation)), _code("required" if p.default is p.empty else repr(p.default))) for p in parameters
        ]
        presets = "".join(
            f"<p>Preset <code>{escape(preset)}</code>: {_code(', '.join(f'{k}={v!r}' for k, v in options.items()))}</p>"
            for preset, options in member.presets.items()
        )
        options = table(("option", "type", "default"), rows)
        yield f"### {name} {{ #member-{name} }}\n\n{prose(member.recipe.__doc__)}\n{options}\n{presets}\n{_where(member.recipe)}\n"


def _slot(name: str, module: ModuleType) -> str:
    """The parts that may stand in a slot, with their fields, and what else the module offers."""
    import formers
    from formers.core import Slot

    if name == "layers":
        made = "\n".join(_layer(f"formers.layers.{layer}", getattr(module, layer)) for layer in module.__all__)
        return f"### formers.layers {{ #slot-layers }}\n\n{prose(module.__doc__)}\n\n{made}\n"
    public = [getattr(module, n) for n in module.__all__]
    bases = [value for value in public if inspect.isclass(value) and Slot in value.__bases__]
    parts = [value for value in public if inspect.isclass(value) and value not in bases]
    rows = [(_named(value), _fields_line(value), inline(first_sentence(value.__doc__))) for value in parts]
    listed = table(("part", "fields", "what it is"), rows)
    base = "".join(f"<p>A new one is a subclass of {_named(value)}: {inline(first_sentence(value.__doc__))}</p>" for value in bases)
    own = [value for value in public if inspect.isfunction(value) and value.__name__ not in formers._HOMES]
    others = "\n".join(_function(f"formers.{name}.{value.__name__}", value, level=4) for value in own)
    return f"### formers.{name} {{ #slot-{name} }}\n\n{prose(module.__doc__)}\n{listed}\n{base}\n\n{others}\n"


def _layer(name: str, cls: type) -> str:
    """A module: how it is made, and what it computes."""
    return f"#### {name} {{ #{name} }}\n\n{python(signature(name, cls).removesuffix(' -> None'))}\n\n{prose(cls.__doc__)}\n{_where(cls)}\n"


def _fields_line(cls: type) -> str:
    return "<br>".join(_code(f"{f.name}: {f.kind}" + (f" = {f.default}" if f.default else "")) for f in fields(cls))


def _class(name: str, cls: type) -> str:
    """A class with its fields, its properties and its methods."""
    own = {key: value for key, value in vars(cls).items() if not key.startswith("_")}
    properties = {key: value.fget for key, value in own.items() if isinstance(value, property)}
    methods = {key: inspect.unwrap(getattr(value, "__func__", value)) for key, value in own.items() if key not in properties}
    pieces = [f"### {name} {{ #{name} }}\n", prose(cls.__doc__), _fields_table(cls)]
    pieces += [python(f"{key}: {_result(f)}") + prose(f.__doc__) for key, f in properties.items() if f.__doc__]
    pieces += [python(signature(key, f)) + prose(f.__doc__) for key, f in methods.items() if inspect.isfunction(f) and f.__doc__]
    return "\n".join([*pieces, _where(cls)]) + "\n"


def _fields_table(cls: type) -> str:
    rows = [(_code(f.name), _code(f.kind), _code(f.default or "required"), inline(f.doc)) for f in fields(cls)]
    return table(("field", "type", "default", "what it is"), rows) if rows else ""


def _settings() -> str:
    from formers.training.config import Settings

    return f"{prose(Settings.__doc__)}\n{_fields_table(Settings)}\n{_where(Settings)}\n"


def _code(text: str) -> str:
    return text if text in ("required", "") else f"<code>{escape(text)}</code>"


def fields(cls: type) -> list[Field]:
    """The fields of a class and of its bases in this library, with the strings that stand below them."""
    found: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("formers."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        found |= {field.name: field for field in _written(body)}
    return list(found.values())


def _written(body: ast.stmt) -> Iterator[Field]:
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for at, line in enumerate(statements):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.target.id.startswith("_"):
            continue
        below = statements[at + 1] if at + 1 < len(statements) else None
        doc = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        default = re.sub(r"^field\(default_factory=(\w+)\)$", r"\1()", ast.unparse(line.value)) if line.value is not None else ""
        yield Field(line.target.id, ast.unparse(line.annotation), default, first_sentence(str(doc)))

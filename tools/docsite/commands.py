"""The page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from docsite.markup import inline, prose, table


def page() -> str:
    """Every verb with its arguments and options, as Markdown with HTML in it."""
    from typer.main import get_command

    from formers.cli.app import app

    root = get_command(app)
    rows = [(f'<a href="#{anchor(path)}"><code>{escape(path)}</code></a>', inline(_help(verb))) for path, verb in verbs(root, "formers")]
    pieces = [
        "# Command-line reference\n",
        f"{prose(_help(root))}\n",
        "<p><code>formers --help</code> and <code>formers VERB --help</code> say the same in the terminal.</p>\n",
        table(("verb", "what it does"), rows),
        f"\n{_options(root)}\n",
    ]
    for path, verb in verbs(root, "formers"):
        pieces.append(f"## {path} {{ #{anchor(path)} }}\n\n{prose(_help(verb))}\n\n{_usage(path, verb)}\n\n{_options(verb)}\n")
    return "\n".join(pieces)


def verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, with what is typed for them; groups are opened."""
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from verbs(child, f"{path} {name}")
        elif not getattr(child, "hidden", False):
            yield f"{path} {name}", child


def anchor(path: str) -> str:
    return path.removeprefix("formers ").replace(" ", "-")


def _help(command: Any) -> str:
    return str(command.help or "")


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _usage(path: str, command: Any) -> str:
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in command.params if _is_argument(p)]
    return f'<div class="highlight"><pre><code>{escape(" ".join(["$", path, *words, "[OPTIONS]"]))}</code></pre></div>'


def _options(command: Any) -> str:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    rows = [(_name(p), inline(str(p.help or "")), _default(p)) for p in shown]
    width = 3 if any(default for _, _, default in rows) else 2
    return table(("option", "what it is", "default")[:width], [row[:width] for row in rows]) if rows else ""


def _name(parameter: Any) -> str:
    if _is_argument(parameter):
        return f"<code>{escape(parameter.name.upper())}</code>"
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.rstrip('_').upper()}"
    return ", ".join(f"<code>{escape(option + value)}</code>" for option in parameter.opts)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    nothing = parameter.default is None or parameter.default is False or parameter.default == ""
    return "" if nothing else f"<code>{escape(str(parameter.default))}</code>"

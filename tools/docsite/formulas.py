"""Formulas as MathML, made when the site is built: browsers draw it without a script."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
DEEPER = {"{": 1, "\\left": 1, "\\begin": 1, "}": -1, "\\right": -1, "\\end": -1}
THIN = "0.17em"
ROWS = ("math", "mrow", "mtd")
SCRIPTS = ("msub", "msup", "msubsup", "munder", "munderover")
OPERANDS = ("mi", "mn", "mfrac", "msqrt", *SCRIPTS)

# What TeX sets in another way than the browsers: as which element, and with which attributes.
REPAIRS: dict[str, tuple[str, dict[str, str]]] = {
    "…": ("mi", {}),
    "{": ("mo", {"stretchy": "false"}),
    "}": ("mo", {"stretchy": "false"}),
    "/": ("mo", {"stretchy": "false", "lspace": "0", "rspace": "0"}),
    "|": ("mo", {"stretchy": "false", "lspace": "0", "rspace": "0"}),
    ":": ("mo", {"lspace": "0.28em", "rspace": "0.28em"}),
    ";": ("mo", {"separator": "true"}),
}


def render(page: str) -> str:
    """A page's HTML with each marked formula as MathML."""
    return FORMULA.sub(lambda m: _formula(html.unescape(m[3]).strip(), display=m[1] == "div"), page)


def _formula(latex: str, display: bool) -> str:
    if not display:
        return mathml(latex, "inline")
    return f'<div class="formula">{"".join(mathml(part, "block") for part in columns(latex))}</div>'


def columns(latex: str) -> list[str]:
    """What stands side by side with \\qquad between: parts of their own, so that a narrow page can put them below one another."""
    parts, depth = [""], 0
    for piece in re.split(r"(\\qquad|\\left|\\right|\\begin|\\end|[{}])", latex):
        depth += DEEPER.get(piece, 0)
        if piece == "\\qquad" and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def mathml(latex: str, display: str) -> str:
    """One formula, "inline" or "block". What the converter does not know is an error, not odd letters on the page."""
    drawn = convert(latex.replace("{aligned}", "{align*}"), display=display)
    try:
        root = ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", drawn))
    except ElementTree.ParseError:
        root = None
    if root is None or "\\" in "".join(root.itertext()):
        raise ValueError(f"the formula {latex} holds something that latex2mathml does not know: write it in other words.")
    _repair(root)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _repair(element: Element) -> None:
    """Sets an element and all within it as TeX would."""
    for child in element:
        _repair(child)
    text = element.text or ""
    if element.tag in ("mi", "mo") and text in REPAIRS and element.get("stretchy") != "true":
        element.tag, attributes = REPAIRS[text]
        element.attrib.update(attributes)
    elif element.tag == "mo" and text.isalpha() and text.isascii():
        element.tag = "mi"  # a name such as max
    elif element.tag == "mtext":
        span = ElementTree.SubElement(element, "span")  # links in the text would else stand below one another
        span.text, element.text = text, None
    if element.tag in ROWS:
        element[:] = _spaced(_joined(list(element)))


def _joined(row: list[Element]) -> list[Element]:
    """A row whose upright letters are joined to words: `head` is a name, and no product of four."""
    found: list[Element] = []
    for child in row:
        last = found[-1] if found else None
        if _upright(child) and last is not None and _upright(last):
            last.text = f"{last.text}{child.text}"
        else:
            found.append(child)
    for child in found:
        if len(child.text or "") > 1:
            child.attrib.pop("mathvariant", None)
    return found


def _upright(element: Element) -> bool:
    return element.tag == "mi" and element.get("mathvariant") == "normal"


def _spaced(row: list[Element]) -> list[Element]:
    """A row with thin spaces around its words, where another letter stands beside them."""
    found: list[Element] = []
    for child in row:
        if found and (_word(child) or _word(found[-1])) and _operand(child) and _operand(found[-1]):
            found.append(Element("mspace", width=THIN))
        found.append(child)
    return found


def _word(element: Element) -> bool:
    """Whether this is a name of several letters, with or without indices."""
    if element.tag in SCRIPTS or (element.tag == "mrow" and len(element) == 1):
        return _word(element[0])
    return element.tag == "mi" and len(element.text or "") > 1


def _operand(element: Element) -> bool:
    return element.tag in OPERANDS or (element.tag == "mrow" and len(element) > 0 and _operand(element[0]))

"""Counts the members of each base class that a subclass may override, and lists class names that are defined more than once.

    python tools/base_classes.py            the count of every base class, with the names
    python tools/base_classes.py names      the class names that are defined in several files

A member is a property or a method that the class itself defines. Private members (named _...), those marked `@final`, operators, and
what pydantic defines are not counted.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections import defaultdict
from pathlib import Path
from types import FunctionType

import formers
from formers.core import Slot
from formers.core.part import Part

LIMIT = 12
"""The most members of a base class that a subclass may override."""
MODULES = (
    "formers.data.batches:Batches",
    "formers.depth.base:DepthModule",
    "formers.heads.base:AuxiliaryModule",
    "formers.heads.base:HeadModule",
    "formers.inputs.base:InputModule",
    "formers.position.base:PositionModule",
    "formers.residual.base:ResidualModule",
    "formers.rl.environments.base:Environments",
    "formers.score.base:ScoreModule",
)
"""Base classes of modules and of data; those of parts are found as the subclasses of Slot."""


def base_classes() -> list[type]:
    """Part, Slot, every slot of the library, and the base classes of modules and of data."""
    for module in pkgutil.walk_packages(formers.__path__, "formers."):
        if module.name.split(".")[1] in ("data", "rl", "inputs", "layers", "recurrent", "model"):
            importlib.import_module(module.name)
    slots = sorted((c for c in Slot.__subclasses__() if c.__module__.startswith("formers.")), key=lambda c: c.__name__)
    named = (spelt.split(":") for spelt in MODULES)
    return [Part, Slot, *slots, *(getattr(importlib.import_module(module), name) for module, name in named)]


def overridable(cls: type) -> list[str]:
    """The members of a class that a subclass may override."""
    return [name for name, member in vars(cls).items() if not name.startswith("_") and _counts(member)]


def _counts(member: object) -> bool:
    function: object = member
    for inside in ("fget", "__func__", "func"):  # of a property, a class method, a cached property
        function = getattr(function, inside, None) or function
    return isinstance(function, FunctionType) and not getattr(function, "__final__", False)


def defined_twice(source: Path) -> dict[str, list[str]]:
    """The public class names that stand in several files of a folder, and these files."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(source).as_posix())
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def main() -> None:
    if sys.argv[1:] == ["names"]:
        for name, files in defined_twice(Path(formers.__file__).parent).items():
            print(f"{name:20} {', '.join(files)}")
        return
    for cls in base_classes():
        names = overridable(cls)
        print(f"{len(names):3}  {cls.__name__:16} {', '.join(names)}")


if __name__ == "__main__":
    main()

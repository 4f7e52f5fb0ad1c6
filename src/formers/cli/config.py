"""Options from a YAML file: `--config run.yaml`; every run saves one."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_yaml(path: Path) -> dict[str, Any]:
    """The names and values of a YAML file, loaded safely."""
    import yaml

    from formers.core import FormersError

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormersError(f"{path} does not exist: give a YAML file of names and values, e.g. a run's run.yaml.") from None
    except OSError as error:
        raise FormersError(f"{path} cannot be read ({error.strerror}): give a YAML file of names and values.") from None
    except UnicodeDecodeError as error:
        raise FormersError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        why = str(getattr(error, "problem", None) or "not YAML").replace("\n", " ")
        raise FormersError(f"{path} cannot be read{where} ({why}): write plain names and values, e.g. layers: 8.") from None
    except RecursionError:
        raise FormersError(f"{path} is nested too deeply: write plain names and values, e.g. layers: 8.") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise FormersError(f"{path} holds no names and values: write lines such as layers: 8.")
    return content

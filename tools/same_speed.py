"""Checks that a change costs no speed: every time that `formers bench` measures, with the code of another checkout and with this one.

    python tools/same_speed.py CHECKOUT [BENCH ...]

Both run alternately as processes, TIMES times with few rounds; the ratio is that of the shortest times. Exit code 1 if one is above LIMIT.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
LIMIT = 1.05
TIMES = 2
ROUNDS = 3
"""Rounds of a bench in each process."""
BENCHES = ("train", "decode", "attention", "linformer", "span", "recurrence", "recurrent", "pondering", "lsh", "evaluation", "images")


def figures(checkout: Path, bench: str) -> dict[str, float]:
    """The times in seconds that a bench measures with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "formers", "bench", bench, "--rounds", str(ROUNDS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=checkout)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {checkout} failed: {done.stderr.strip()[-400:]}")
    return dict(_seconds(json.loads(done.stdout.strip().splitlines()[-1]), ""))


def _seconds(found: Any, name: str) -> Iterator[tuple[str, float]]:
    """The numbers whose name says that they are seconds, with their names."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _seconds(value, f"{name} {key}".strip())
    elif isinstance(found, list):
        for i, value in enumerate(found):
            yield from _seconds(value, f"{name} {i}")
    elif isinstance(found, (int, float)) and "seconds" in name and found > 0:
        yield name, float(found)


def main() -> None:
    """Prints a table of ratios."""
    other, *chosen = sys.argv[1:]
    slower = 0
    for bench in chosen or BENCHES:
        runs: dict[str, list[tuple[float, float]]] = {}
        for _ in range(TIMES):
            before, after = figures(Path(other).resolve(), bench), figures(HERE, bench)
            for name in before.keys() & after.keys():
                runs.setdefault(name, []).append((before[name], after[name]))
        for name, pairs in sorted(runs.items()):
            before_best, after_best = (min(side) for side in zip(*pairs, strict=True))
            ratio = after_best / before_best
            slower += ratio > LIMIT
            print(
                f"{bench:12} {name:60} {before_best:.3e} -> {after_best:.3e}   {ratio:.3f}{'  slower' if ratio > LIMIT else ''}", flush=True
            )
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    main()

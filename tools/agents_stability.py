"""Gates x depth x learning rate on tmaze:10, three seeds each: a table of the runs that solved it and that diverged, and their curves.

    python tools/agents_stability.py --out runs/stability --picture docs/pictures/tmaze-stability.png

Each of its four settings is what this command trains, and runs that are there are not trained again:

    formers compare gtrxl gtrxl:gate=sum gtrxl:norm=post --env tmaze:10 --steps 80000 --seeds 3 --set layers=2 --set learning_rate=0.001
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from formers.bench.agents import cells, compare_agents, panel
from formers.cli.options import parse_set
from formers.family.variants import variant
from formers.inspect import save_panels

NAMES = {"gtrxl": "GRU gate", "gtrxl:gate=sum": "no gate (TrXL-I)", "gtrxl:norm=post": "post-norm (TrXL)"}
DEPTHS, RATES, SEEDS = (2, 12), (0.001, 0.004), (0, 1, 2)
SETTINGS = {"epsilon": 1e-5, "advantage_floor": 0.1}
"""What the table of docs/gtrxl.md was measured with; they were the defaults."""
TITLES = ("layers", "learning rate", "", "solved", "held", "diverged", "steps to solve", "return", "lowest")


def main() -> None:
    """Trains what is not there, prints the table and draws the curves."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("runs/stability"), help="the folder of the runs")
    asked.add_argument("--picture", type=Path, default=Path("tmaze-stability.png"))
    asked.add_argument("--steps", type=int, default=80_000, help="of the environment, for each run")
    given = asked.parse_args()
    panels, lines = [], []
    for layers in DEPTHS:
        for rate in RATES:
            common: dict[str, Any] = {"layers": layers, "learning_rate": rate, **SETTINGS}
            folder = given.out / f"layers{layers}-rate{rate:g}"
            variants = [variant(text, parse_set) for text in NAMES]
            found = compare_agents(variants, "tmaze:10", folder, common, given.steps, SEEDS, 0.97, "return")
            for row in found["rows"]:
                row["variant"] = NAMES[row["variant"]]
                name, solved, held, diverged, steps, _, mean, lowest = cells(row)
                lines.append((str(layers), f"{rate:g}", name, solved, held, diverged, steps, mean, lowest))
            panels.append(panel(found, f"{layers} layers, learning rate {rate:g}"))
    caption = f"tmaze:10, mean of {len(SEEDS)} seeds; shaded: 95 % bootstrap interval of the mean."
    save_panels(panels, given.picture, caption, columns=len(RATES))
    head = "| " + " | ".join(TITLES) + " |\n|---:|---:|---|" + "---:|" * (len(TITLES) - 3)
    sys.stdout.write("\n".join([head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n")


if __name__ == "__main__":
    main()

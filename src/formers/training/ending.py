"""What keeps a run from ending as if all were well: weights, last steps or figures that are not finite numbers.

Each is a `Diverged`, exit code 3. What is saved stays: weights that are not finite are never saved over good ones.
"""

from __future__ import annotations

import math
from pathlib import Path

from formers.model.files import checkpoints
from formers.training.loop import Diverged, Loop


def refuse_ruined(loop: Loop, folder: Path | None) -> None:
    """Refuses weights that are not finite."""
    if not all(bool(value.isfinite().all()) for value in loop.model.state_dict().values()):
        raise Diverged(f"the weights are not finite after step {loop.step:,}: {advice(loop, folder)}.")


def refuse_figure(loop: Loop, folder: Path | None, loss: float) -> None:
    """Refuses a loss on held-out data that is not a number at the end of a run."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss on held-out data is {loss:g} at the end, after step {loop.step:,}: {advice(loop, folder)}.")


def refuse_last_steps(loop: Loop, folder: Path | None) -> None:
    """Refuses the end of a run whose last steps were skipped, because their loss or gradient was not finite."""
    if loop.bad:
        which = f"step {loop.step:,}" if loop.bad == 1 else f"steps {loop.step - loop.bad + 1:,} to {loop.step:,}"
        what = "the last step has" if loop.bad == 1 else f"the last {loop.bad} steps have"
        raise Diverged(f"{what} no finite loss or gradient ({which}): {advice(loop, folder)}.")


def advice(loop: Loop, folder: Path | None) -> str:
    """What to do after a run has diverged, and where its last good checkpoint is."""
    less = f"train with less than learning_rate={loop.settings.learning_rate:g}"
    kept = [] if folder is None else checkpoints(folder)
    return f"{less}, from its last good checkpoint ({kept[0]}) with --from {folder} and --data" if kept else less

"""Checks that a change moves no numbers: losses, weights, resumed runs and generated text of every member, compared to the bit.

    python tools/same_numbers.py record FOLDER     with the code before the change: trains every member for 20 steps and then 20 more
    python tools/same_numbers.py check FOLDER      with the code after it: trains again, resumes the recorded runs, generates again

Floating-point sums differ between processors, so both are run on one machine, with one thread.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import formers
import formers.rl

STEPS = 20
SMALL: dict[str, Any] = dict(dim=32, heads=2, layers=2, length=32, batch=4)
IMAGES: dict[str, Any] = dict(dim=32, heads=2, layers=2, batch=4)
RECURRENT: dict[str, Any] = dict(dim=32, layers=2, length=32, batch=4)
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "transformer": ("transformer", "pairs", SMALL),
    "encoder": ("encoder", "text", SMALL),
    "encoder-classes": ("encoder", "labels", {**SMALL, "classes": 2}),
    "decoder": ("decoder", "text", SMALL),
    "decoder-bpe": ("decoder", "text", {**SMALL, "tokens": "bpe", "dropout": 0.1}),
    "character-transformer": ("character-transformer", "text", SMALL),
    "transformer-xl": ("transformer-xl", "text", {**SMALL, "memory": 32, "dropout": 0.1}),
    "gtrxl": ("gtrxl", "text", {**SMALL, "memory": 16}),
    "adaptive-span": ("adaptive-span", "text", {**SMALL, "span": 64}),
    "sparse-transformer": ("sparse-transformer", "text", {**SMALL, "length": 64, "stride": 8, "summary": 2}),
    "sparse-strided": ("sparse-transformer", "text", {**SMALL, "length": 64, "pattern": "strided", "stride": 8}),
    "image-1d": (
        "image-transformer",
        "images",
        {"dim": 32, "heads": 2, "layers": 2, "batch": 4, "layout": "1d", "query_block": 8, "memory_block": 6},
    ),
    "image-2d": (
        "image-transformer",
        "images",
        {"dim": 32, "heads": 2, "layers": 2, "batch": 4, "layout": "2d", "query_block": (2, 2), "memory_block": (1, 1)},
    ),
    "image-mixture": ("image-transformer", "images", {**IMAGES, "head": "mixture"}),
    "linformer": ("linformer", "text", {**SMALL, "rank": 8}),
    "bigbird": ("bigbird", "text", {**SMALL, "length": 128, "block": 8}),
    "reformer": ("reformer", "text", {**SMALL, "length": 64, "chunk": 16, "dropout": 0.1}),
    "rnn": ("rnn", "text", RECURRENT),
    "seq2seq": ("seq2seq", "pairs", RECURRENT),
    "word-window": ("word-window", "text", RECURRENT),
    "act-rnn": ("act-rnn", "task:parity", {"dim": 32, "batch": 4}),
    "universal-transformer": ("universal-transformer", "text", {"dim": 32, "heads": 2, "length": 32, "batch": 4, "act": "graves"}),
    "universal-pairs": (
        "universal-transformer",
        "pairs",
        {"dim": 32, "heads": 2, "length": 32, "batch": 4, "decoder_steps": 2, "act": "t2t"},
    ),
    "agent": ("gtrxl", "tmaze:4", {"dim": 16, "heads": 2, "layers": 2, "length": 8, "environments": 4, "eval_episodes": 8}),
    "agent-rnn": ("rnn", "tmaze:4", {"dim": 16, "layers": 1, "length": 8, "environments": 4, "eval_episodes": 8}),
}
"""By name: the member, its data and its options."""
AGENT_STEPS = 4 * 8 * 10


def write_data(folder: Path) -> None:
    """Writes the data of all runs: text, pairs, labels and images, the same at each call."""
    words = "the quick brown fox jumps over the lazy dog and then sleeps in the warm sun until evening comes".split()  # noqa: SIM905
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(words, size=int(random.integers(4, 12)))) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    short = [line[:24].rsplit(" ", 1)[0] for line in lines]
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in short))
    (folder / "labels.jsonl").write_text(
        "".join(json.dumps({"text": line, "label": "fox" if "fox" in line else "none"}) + "\n" for line in short)
    )
    np.save(folder / "images.npy", random.integers(0, 256, size=(40, 6, 5, 3), dtype=np.uint8))


def train(name: str, data: Path, out: Path, steps: int | None = None) -> Any:
    """Trains a run from its beginning in the folder `out`."""
    member, source, options = RUNS[name]
    if source == "tmaze:4":
        return formers.rl.train(member, source, out=out, steps=steps or AGENT_STEPS, quiet=True, track="none", **options)
    given = source if ":" in source else str(next(data.glob(f"{source}.*")))
    return formers.train(
        member, given, out, steps=steps or STEPS, quiet=True, track="none", device="cpu", save_every=STEPS, eval_every=STEPS, **options
    )


def resume(name: str, out: Path) -> Any:
    """Continues a run for as many steps again."""
    if RUNS[name][1] == "tmaze:4":
        return formers.rl.resume(out, steps=2 * AGENT_STEPS, quiet=True)
    return formers.resume(out, steps=2 * STEPS, quiet=True)


def losses(out: Path) -> list[str]:
    """The loss of every step as a hexadecimal number, and what the evaluations found."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    names = ("loss", "valid_loss", "final_loss", "policy_loss", "value_loss", "mean_return")
    return [f"{n} {row['step']} {float(row[n]).hex()}" for row in rows for n in names if n in row and row[n] is not None]


def weights(model: Any) -> str:
    """The sha256 of a model's weights, in the order in which they are registered."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def text(name: str, out: Path) -> str | None:
    """What the saved run generates, where it generates text."""
    model = formers.load(out)
    if model.tokenizer is None or not model.spec.head.generates or RUNS[name][1].startswith("task:"):
        return None
    return formers.generate(model, "the fox", max_new_tokens=24, temperature=0.8, seed=1)


def record(folder: Path) -> None:
    """Trains, resumes and generates with every run; run folders after 20 steps and what came out stay in the folder."""
    folder.mkdir(parents=True)
    write_data(folder)
    for name in RUNS:
        run, further = folder / name, folder / f"{name}-further"
        first = weights(train(name, folder, run).model)
        shutil.copytree(run, further)
        found: dict[str, Any] = {"first": losses(run), "first_weights": first, "first_text": text(name, run)}
        last = weights(resume(name, further).model)
        found |= {"further": losses(further), "further_weights": last, "further_text": text(name, further)}
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1))
        shutil.rmtree(further)
        print(name, found["first"][-1], first[:12], last[:12])


def check(folder: Path, names: list[str]) -> int:
    """Compares what this code computes with the record; the number of differences."""
    wrong = 0
    print(f"{'run':24}{'last loss':>12}  trained  resumed  generated")
    for name in names or RUNS:
        want = json.loads((folder / f"{name}.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            new, old = Path(scratch) / "new", Path(scratch) / "old"
            first = weights(train(name, folder, new).model)
            trained = first == want["first_weights"] and losses(new) == want["first"]
            shutil.copytree(folder / name, old)
            generated = text(name, old) == want["first_text"]
            last = weights(resume(name, old).model)
            resumed = last == want["further_weights"] and losses(old) == want["further"]
            generated &= text(name, old) == want["further_text"]
        wrong += 3 - trained - resumed - generated
        last_loss = [float.fromhex(row.split()[2]) for row in want["first"] if row.startswith("loss")][-1:]
        shown = f"{last_loss[0]:12.6f}" if last_loss else " " * 12
        print(f"{name:24}{shown}" + "".join(f"{'equal' if ok else 'DIFFERS':>9}" for ok in (trained, resumed, generated)), flush=True)
    return wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) < 3 or sys.argv[1] not in ("record", "check"):
        sys.exit(__doc__)
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        sys.exit(1 if check(Path(sys.argv[2]), sys.argv[3:]) else 0)

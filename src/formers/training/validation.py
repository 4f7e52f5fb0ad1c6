"""Evaluation during training on a sample of the held-out data, and at its end."""

from __future__ import annotations

import math
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

from formers.core import FormersError
from formers.data.images import ImageBatches
from formers.data.tasks import Answers, DrawnPairs
from formers.evaluation import Stopped, apply_protocol, evaluate, evaluate_all
from formers.generation import generate
from formers.model import Seq2Seq
from formers.training.device import peak_device_memory
from formers.training.interrupts import Interrupts
from formers.training.log import Log

if TYPE_CHECKING:
    from formers.training.trainer import Trainer

SHOWN = ("bits_per_byte", "bits_per_dimension", "perplexity", "accuracy", "exact", "masked_accuracy", "ponder_steps")
"""Metrics that are reported beside the loss during training."""
EXACT_MATCHES = 500
"""Number of held-out pairs for which targets are generated at the end."""


def validate(trainer: Trainer, log: Log) -> bool:
    """Evaluates on a sample of the held-out data, the same every time, and shows generated text; whether the loss is the best so far."""
    with log.part("evaluating") as tick:  # a signal does not stop it: a resumed run would lack this evaluation
        model, batches, stride = apply_protocol(trainer.task.protocol.during_training(), trainer.model, trainer.task.batches)
        held = evaluate(
            model, batches, trainer.task.tokenizer, trainer.settings.batch, None, None, stride, sample=trainer.settings.eval_batches,
            share=(trainer.world.rank, trainer.world.size), total=trainer.world.total, progress=tick,
        )  # fmt: skip
    loss = float(held["loss"])
    shown: dict[str, Any] = {name: held[name] for name in SHOWN if name in held}
    named = {f"valid_{name}": value for name, value in shown.items()}
    log.record(step=trainer.step, valid_loss=loss, valid_targets=held["targets"], protocol=held["protocol"], **named)
    also = "".join(f", {name.replace('_', ' ')} {value:,.4g}" for name, value in shown.items())
    if trainer.sample is None:
        log.say(f"evaluated on held-out data: {held['protocol']}")
    most = peak_device_memory(trainer.device)
    memory = "" if most is None else f"; peak memory of {trainer.device}: {most / 1e6:,.0f} MB"
    log.say(f"step {trainer.step:,}: loss {loss:.4f}{also}, on {held['evaluated']} of held-out data{memory}")
    if trainer.settings.sample_tokens and trainer.world.first and math.isfinite(loss):
        _show_sample(trainer, log)
    trainer.sample = {"evaluated": str(held["evaluated"]), "loss": loss, **dict(islice(shown.items(), 1))}
    if not math.isfinite(loss) or (trainer.best_loss is not None and loss >= trainer.best_loss):
        return False
    trainer.best_loss, trainer.best_step, trainer.best_sample = loss, trainer.step, trainer.sample
    return True


def final_evaluation(trainer: Trainer, log: Log, interrupts: Interrupts) -> dict[str, Any]:
    """Metrics of the last and the best evaluation during training, of the held-out data now, and speed, time and memory.

    Only the first process evaluates; the others return an empty dict.
    """
    results: dict[str, Any] = {}
    if trainer.world.first:
        try:
            with log.part("evaluating") as tick:
                model, batches, stride = apply_protocol(trainer.task.protocol.during_training(), trainer.model, trainer.task.batches)
                held = evaluate_all(
                    model, batches, trainer.task.tokenizer, trainer.settings.batch, EXACT_MATCHES, trainer.settings.final_batches,
                    stride=stride, stop=lambda: interrupts.caught, progress=tick,
                )  # fmt: skip
        except Stopped:
            log.say("stopped while evaluating: the weights are saved, and `formers resume` evaluates them")
            interrupts.leave()
        del held["tokens_per_second"]  # of the evaluation; the training speed is reported instead
        shown: dict[str, Any] = {name: value for name, value in held.items() if isinstance(value, float)}
        log.record(step=trainer.step, final_targets=held["targets"], **{f"final_{name}": value for name, value in shown.items()})
        results = {**sample_results(trainer), **held, "tokens_per_second": trainer.tokens / max(trainer.busy, 1e-9)}
        if isinstance(trainer.task.batches, ImageBatches):
            results["images_per_second"] = trainer.tokens / trainer.task.batches.length / max(trainer.busy, 1e-9)
        results |= {"steps": trainer.step, "seconds": round(trainer.seconds, 2)}
        peak = peak_memory()
        if peak is not None:
            results["peak_memory_bytes"] = peak
        most = peak_device_memory(trainer.device)
        if most is not None:
            results["peak_device_memory_bytes"] = most
    return results


def sample_results(trainer: Trainer) -> dict[str, Any]:
    """Metrics of the last and of the best evaluation during training, and how much of the held-out data both used."""
    last, best = trainer.sample or {}, trainer.best_sample or {}
    results = {f"{which}{name}": value for which, held in (("sample_", last), ("best_sample_", best)) for name, value in held.items()}
    results.pop("best_sample_evaluated", None)  # both used the same data
    return {**results, "best_step": trainer.best_step}


def peak_memory() -> int | None:
    """The peak memory of this process in bytes; None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _show_sample(trainer: Trainer, log: Log) -> None:
    """Shows and records a short generated text."""
    model, prompt, wanted = trainer.model, "", ""
    tokenizer = trainer.task.tokenizer
    if not model.spec.head.generates or tokenizer is None:
        return
    if isinstance(trainer.task.batches, Answers | DrawnPairs):
        prompt, wanted = trainer.task.batches.shown()
    elif isinstance(model, Seq2Seq):
        prompt, wanted = (tokenizer.decode(side) for side in trainer.task.batches.parts["valid"][0])
    room = max(1, model.spec.length - 1) if model.spec.position.absolute else trainer.settings.sample_tokens  # without a sliding window
    count = min(trainer.settings.sample_tokens, room)
    try:
        text = generate(model, prompt, max_new_tokens=count, temperature=0.0 if prompt else 0.8, seed=trainer.step)
    except FormersError as error:  # a failed sample does not end the training
        log.say(f"  no sample: {error}")
        return
    log.record(step=trainer.step, prompt=prompt, sample=text)
    log.say(f"  {prompt} -> {text} (wanted: {wanted})" if prompt else "  | " + "\n  | ".join(text.strip("\n").split("\n")))

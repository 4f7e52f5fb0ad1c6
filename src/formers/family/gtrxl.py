"""GTrXL (Parisotto et al., 2020): Transformer-XL with reordered norms and gates, for agents. Equations E110-E118; docs/gtrxl.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from formers.attention import DotProduct
from formers.core import FormersError
from formers.depth import Stacked
from formers.family.parts import words
from formers.family.sizes import AttentionSizes
from formers.feedforward import Dense
from formers.memory import Recurrence
from formers.model import Spec
from formers.patterns import Causal, Local
from formers.position import NoPosition
from formers.residual import Gated, PostNorm, Residual
from formers.residual.gated import Kind
from formers.score import Relative

# The paper's, 12 layers with a memory of 512 steps. The width of the feed-forward network is from memory of the text.
BASE: dict[str, Any] = {
    "dim": 256, "heads": 8, "head_dim": 64, "layers": 12, "hidden": 1024, "length": 95, "memory": 512, "gate": "gru", "gate_bias": 2.0,
}  # fmt: skip
TRAINING: dict[str, dict[str, Any]] = {"": {"learning_rate": 2e-3}}


def gtrxl(
    *,
    vocab: PositiveInt,
    sizes: AttentionSizes = AttentionSizes(dim=64, length=64, activation="relu"),
    layers: PositiveInt = 2,
    memory: int = 64,
    memory_start: Literal["empty", "zeros"] = "empty",
    gate: Kind | None = None,
    gate_bias: float | None = None,
    norm: Literal["reordered", "post"] = "reordered",
    same_length: bool = True,
    clamp: PositiveInt | None = None,
    untied: bool = True,
    tied: bool = True,
    cutoffs: tuple[PositiveInt, ...] | None = None,
    division: PositiveInt = 1,
) -> Spec:
    """Every step attends to exactly the last `memory` steps, including itself; gate="sum" is TrXL-I, and norm="post" is TrXL.

    With same_length=False a step sees its segment up to itself and the `memory` steps before it, as in Transformer-XL. memory=1 shows a
    step nothing but itself: a policy without memory.
    """
    if memory < 1:
        raise FormersError(
            f"memory={memory} leaves no step to attend to, not even itself: give memory=1 for a policy without memory, or more."
        )
    return Spec(
        name="gtrxl", vocab=vocab, **sizes.fields, position=NoPosition(),
        pattern=Local(window=memory) if same_length else Causal(), attention=DotProduct(bias=False),
        score=Relative(clamp=clamp, untied=untied), memory=Recurrence(length=memory, start=memory_start),
        residual=_residual(norm, gate, gate_bias), depth=Stacked(layers=layers),
        feedforward=Dense(hidden=sizes.hidden or 2 * sizes.dim, activation=sizes.activation), head=words(vocab, cutoffs, division, tied),
    )  # fmt: skip


def _residual(norm: str, gate: Kind | None, bias: float | None) -> Residual:
    if norm == "reordered":
        return Gated(gate=gate or "gru", bias=bias)
    if gate is not None or bias is not None:
        given = f"gate={gate}" if gate is not None else f"gate_bias={bias}"
        raise FormersError(f"{given} needs norm=reordered, and norm=post has no gate: leave one of them out.")
    return PostNorm()

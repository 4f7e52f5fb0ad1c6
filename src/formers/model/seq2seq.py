"""The encoder-decoder: two stacks, and cross-attention from the second to the first."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from formers.core import FormersError, Source, State, Watch
from formers.core.stream import ENCODER
from formers.model.inspection import Inspection, inspect_pass, size_of
from formers.model.model import Model, Output, usable
from formers.model.room import Room
from formers.model.spec import Spec
from formers.model.stack import Stack


class Seq2Seq(Model):
    """Reads a source, writes a target."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        assert spec.encoder is not None
        shared = spec.encoder.vocab is None and spec.encoder.features is None
        self.source_embedding = None if shared else spec.encoder.input.build(spec.encoder.input_sizes)
        self.source_room = Room(spec.encoder)
        self.encoder = Stack(spec.encoder)
        self.stack = Stack(spec)
        self.auxiliary = spec.head.build_auxiliary(spec.head_sizes, spec.vocab)

    def encode(
        self,
        source: Tensor,
        source_mask: Tensor | None = None,
        watch: Watch | None = None,
        update: int | None = None,
        starts: dict[int, Tensor] | None = None,
    ) -> tuple[Source, dict[str, Tensor]]:
        """The encoder's output over source (batch, n), real tokens first, and its extra losses, "encoder " before their names.

        Extra vectors of the encoder are not in it: what they have gathered the tokens have read, and a source's places stay its tokens.
        Final states are, where the decoder begins with them: 0 of a source without a token, as after a reset. `starts` are as in `Stream`.
        """
        read = self.embedding if self.source_embedding is None else self.source_embedding
        inner = None if watch is None else watch.inside("encoder")
        x, stream, _ = self.enter(source, source_mask, None, inner, read, self.source_room)
        final: list[tuple[Tensor, ...]] | None = [] if self.spec.attention.reads_source else None
        hidden, _ = self.encoder(x, replace(stream, keep=False, update=update, starts={} if starts is None else starts, final=final))
        losses = {f"{ENCODER}{name}": loss for name, loss in stream.losses.items()}
        if final and stream.valid is not None and self.encoder.extra is not None:
            some = stream.valid.any(dim=1, keepdim=True)
            final = [tuple(s.masked_fill(~some, 0) for s in states) for states in final]
        return Source(hidden, stream.valid, tuple(final or ())), losses

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        targets: Tensor | None = None,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        state: State | None = None,
        *,
        label: Tensor | None = None,
        watch: Watch | None = None,
        progress: float = 0.0,
        update: int | None = None,
    ) -> Output:
        """Logits (batch, length, vocab) of decoder inputs `target`, given `source`, which a state that has read one does not read again.

        label: the class (batch,) of each row, where the decoder's spec has `labels`.
        progress: the share of the training that is done, by which losses of training alone may fade.
        update: the number of the training step, by which parts key what they draw anew at each.
        """
        state = usable(state)
        encoded: Source | None = None
        losses: dict[str, Tensor] = {}
        starts: dict[int, Tensor] = {}
        if state is None or state.empty:
            if source is None:
                raise FormersError("there is no source, and no state that has read one: give source.")
            if source.shape[0] != target.shape[0]:
                raise FormersError(f"source has {source.shape[0]} rows and target {target.shape[0]}: give as many of each.")
            encoded, losses = self.encode(source, source_mask, watch, update, starts)
        x, stream, packed = self.enter(target, mask, state, watch)
        stream = self.tapped(replace(stream, source=encoded, losses=losses, starts=starts, update=update), targets, progress)
        hidden, steps = self.stack(self.labelled(x, label), stream, () if state is None else state.steps)
        return self.finish(hidden, targets, mask, stream, packed, self.leave(stream, mask, state, steps, len(target)), progress)

    def inspect(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        label: Tensor | None = None,
    ) -> Inspection:
        """What the model computes over a source and decoder inputs: both stacks' attention maps, cross-attention, and norms.

        label: the class (batch,) of each row, where the decoder's spec has `labels`.
        """
        (batch, n), (_, m) = size_of(target), size_of(source)
        reader = self.spec.encoder
        assert reader is not None
        seen = reader.extra + m
        keys = reader.attention.condensed(reader.sizes, seen) or seen
        own = self.spec.heads * n * (self.spec.comparing * n + self.spec.depth.steps * m)
        weights = batch * (reader.comparing * reader.heads * seen * keys + own)
        return inspect_pass(self, lambda watch: self(source, target, source_mask=source_mask, mask=mask, label=label, watch=watch), weights)

"""The encoder-decoder: two stacks, with cross-attention from the decoder to the encoder."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from formers.core import FormersError, Source, State, Watch
from formers.core.context import ENCODER
from formers.inputs import InputModule
from formers.model.inspection import Inspection, inspect_pass, size_of
from formers.model.max_length import MaxLength
from formers.model.model import Embeds, Model, Output, usable
from formers.model.spec import Spec
from formers.model.stack import Stack
from formers.position.offset import RandomStarts
from formers.recurrent.final_states import FinalStates


class Seq2Seq(Model):
    """An encoder for the source, and a decoder that predicts the target."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        assert spec.encoder is not None
        shared = spec.encoder.vocab is None and spec.encoder.features is None
        self.source_embedding = None if shared else spec.encoder.input.build(spec.encoder.input_sizes)
        self.source_max_length = MaxLength(spec.encoder)
        self.source_embeds = Embeds(spec.encoder.dim)
        self.encoder = Stack(spec.encoder)
        self.stack = Stack(spec)
        self.auxiliary = spec.head.build_auxiliary(spec.head_sizes, spec.vocab)

    def encode(
        self,
        source: Tensor | None,
        source_mask: Tensor | None = None,
        watch: Watch | None = None,
        update: int | None = None,
        starts: RandomStarts | None = None,
        source_embeds: Tensor | None = None,
    ) -> tuple[Source, dict[str, Tensor]]:
        """The encoder's output for source (batch, n), real tokens first, and its extra losses, with "encoder " before their names.

        Extra vectors of the encoder are removed, so that keys are the source's tokens. Final states are included if the decoder starts from
        them; they are 0 for a source without tokens, as after a reset.
        starts: the random starts of the pass.
        source_embeds: instead of source, what its embedding would return, (batch, n, dim).
        """
        given, embeds = self.given(source, source_embeds, "source and source_embeds")
        read = self.source_embeds if embeds is not None else self.embedding if self.source_embedding is None else self.source_embedding
        inner = None if watch is None else watch.inside("encoder")
        x, context, _ = self.prepare(given, source_mask, None, inner, read, self.source_max_length)
        context = replace(context, keep=False, update=update).with_channels(RandomStarts() if starts is None else starts)
        if self.spec.attention.reads_source:
            context = context.with_channels(FinalStates())
        hidden, _ = self.encoder(x, context)
        losses = {f"{ENCODER}{name}": loss for name, loss in context.losses.items()}
        final = context.channels.get(FinalStates) or FinalStates()
        if final and context.valid is not None and self.encoder.extra is not None:
            some = context.valid.any(dim=1, keepdim=True)
            final = FinalStates(tuple(s.masked_fill(~some, 0) for s in states) for states in final)
        return Source(hidden, context.valid, tuple(final)), losses

    def _embeddings(self) -> dict[str, InputModule]:
        return {"source": self.embedding if self.source_embedding is None else self.source_embedding, "target": self.embedding}

    def embed_source(self, source: Tensor) -> Tensor:
        """The output (batch, n, dim) of the source's embedding for source (batch, n); can be passed as `source_embeds`."""
        return self._embedded(self.embedding if self.source_embedding is None else self.source_embedding, source, None)

    def forward(
        self,
        source: Tensor | None = None,
        target: Tensor | None = None,
        targets: Tensor | None = None,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        state: State | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        source_embeds: Tensor | None = None,
        label: Tensor | None = None,
        watch: Watch | None = None,
        progress: float = 0.0,
        update: int | None = None,
    ) -> Output:
        """Logits (batch, length, vocab) for the decoder inputs `target`, given `source`; not needed with a state that has one.

        inputs_embeds, source_embeds: instead of target and source, what their embeddings would return, (batch, length, dim); positions are
        still added.
        label: the class (batch,) of each row, if the decoder's spec has `labels`.
        progress: the completed fraction of the training, for auxiliary losses with a schedule.
        update: the number of the training step, a key of random numbers that are drawn anew at each step.
        """
        state = usable(state)
        given, embedding = self.given(target, inputs_embeds, "target and inputs_embeds")
        encoded: Source | None = None
        losses: dict[str, Tensor] = {}
        starts = RandomStarts()
        if source is not None and source_embeds is not None:
            raise FormersError("the model got both source and source_embeds: give exactly one of them.")
        if state is None or state.empty:
            read = source if source_embeds is None else self.source_embeds.check(source_embeds)
            if read is None:
                raise FormersError("there is neither a source nor a state with one: give source or source_embeds.")
            if read.shape[0] != given.shape[0]:
                raise FormersError(f"source has {read.shape[0]} rows and target {given.shape[0]}: give the same number of each.")
            encoded, losses = self.encode(source, source_mask, watch, update, starts, source_embeds)
        x, context, packed = self.prepare(given, mask, state, watch, embedding)
        context = self.with_taps(replace(context, source=encoded, losses=losses, update=update).with_channels(starts), targets, progress)
        hidden, steps = self.stack(self.labelled(x, label), context, () if state is None else state.steps)
        return self.finish(hidden, targets, mask, context, packed, self.next_state(context, mask, state, steps, len(given)), progress)

    def inspect(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        label: Tensor | None = None,
    ) -> Inspection:
        """Attention maps of both stacks, cross-attention maps and norms, for a source and decoder inputs, in evaluation mode.

        label: the class (batch,) of each row, if the decoder's spec has `labels`.
        """
        (batch, n), (_, m) = size_of(target), size_of(source)
        reader = self.spec.encoder
        assert reader is not None
        seen = reader.extra + m
        keys = reader.attention.key_count(reader.sizes, seen) or seen
        own = self.spec.heads * n * (self.spec.attention_steps * n + self.spec.depth.steps * m)
        weights = batch * (reader.attention_steps * reader.heads * seen * keys + own)
        return inspect_pass(self, lambda watch: self(source, target, source_mask=source_mask, mask=mask, label=label, watch=watch), weights)

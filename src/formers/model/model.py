"""The contract that every member keeps, and the model of one stack.

out = model(tokens, targets, state, mask) computes logits and loss in one forward pass. `out.state`, given back with the next tokens,
yields what one pass over all of them would; it is made when a state is given or gradients are off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from formers.core import FormersError, Index, Range, State, Stream, Watch, compact
from formers.core.positions import EMPTY
from formers.core.stream import Compaction
from formers.data.tokenize import Tokenizer
from formers.heads.base import AuxiliaryModule
from formers.inputs import InputModule
from formers.inputs.labels import LabelEmbedding
from formers.model.episodes import entering, leaving
from formers.model.inspection import ORDER, Inspection, inspect_pass, size_of
from formers.model.room import Room
from formers.model.spec import Spec
from formers.model.stack import Past, Stack


@dataclass
class Output:
    """What a forward pass gives."""

    logits: Tensor | None
    """(batch, length, vocab), or (batch, classes); None without a head, and, where targets are given, from an adaptive softmax and
    from a head with a chunk, which compute only what their loss needs. The former's are log-probabilities, which are logits, too."""
    loss: Tensor | None
    """The sum of `losses`; None without targets."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """The named terms of the loss."""
    state: State | None = None
    """The detached, exact continuation."""
    hidden: Tensor | None = None
    """(batch, length, dim), before the head; twice as wide where two streams end side by side."""
    value: Tensor | None = None
    """(batch, length), the value of the state at each position, of a head for agents; None of others."""
    of_tokens: tuple[str, ...] = ()
    """The terms that are means over the real tokens of a stack, or are of the weights alone; the others are means over targets."""


# Wrappers such as DistributedDataParallel look for the tensors of an output.
register_dataclass(Output)


class Model(nn.Module):
    """What every member is: an embedding, a head, and between them what its forward says; perhaps a tokenizer."""

    auxiliary: AuxiliaryModule | None
    """What gives further losses in training alone, made last: without it all other weights start the same."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.is_causal = spec.is_causal  # asked in every pass, where torch.compile cannot make the pattern of a layer
        self.room = Room(spec)
        self.tokenizer: Tokenizer | None = None
        self.labels: tuple[str, ...] | None = None
        self.auxiliary = None
        self.embedding = spec.input.build(spec.input_sizes)
        self.label_embedding = None if spec.labels is None else LabelEmbedding(spec.labels, spec.dim, spec.spread)
        self.state_shape = spec.state_shape
        self.head = spec.head.build(spec.head_sizes, spec.vocab, spec.dim**-0.5 if spec.embedding_scale == "output" else 1.0)

    def initial_state(self, batch: int) -> State:
        """The state of `batch` streams that have read nothing."""
        if not isinstance(batch, int) or batch < 1:
            raise FormersError(f"batch={batch!r} is no number of streams: give an integer of at least 1.")
        if not self.is_causal:
            raise FormersError(
                f"{self.spec.name or 'this model'} sees all tokens at once and has no state: give whole sequences, or use a causal member."
            )
        return self._fresh(batch)

    def _fresh(self, batch: int) -> State:
        """The state of `batch` rows that have read nothing."""
        origin = self.spec.memory.origin
        return State(batch, next=origin, bound=origin, origin=origin, shape=self.state_shape)

    def parameter_count(self, training: bool = True) -> int:
        """The number of parameters, shared ones counted once; with training=False, of those that inference needs."""
        spare = sum(p.numel() for p in self.auxiliary.parameters()) if self.auxiliary is not None and not training else 0
        return sum(p.numel() for p in self.parameters()) - spare

    def deploy(self) -> None:
        """Lets go of what only training needs; what the model computes in evaluation stays the same to the bit."""
        self.spec, self.auxiliary = self.spec.deployed(), None

    def checkpointing(self, on: bool = True) -> None:
        """Keeps only each block's input for the backward pass, which computes the rest again: less memory, more time, the same gradient.

        A reversible stack keeps less than that anyhow, and is not changed by it.
        """
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = on

    def save_pretrained(self, path: str | Path) -> None:
        """Writes config.json, model.safetensors and their manifest into the folder `path`, without what only training needs.

        `formers.load` reads them.
        """
        from formers.model.save import save

        save(self, path)

    def enter(
        self,
        given: Tensor,
        mask: Tensor | None,
        state: State | None,
        watch: Watch | None = None,
        embedding: InputModule | None = None,
        room: Room | None = None,
    ) -> tuple[Tensor, Stream, Compaction | None]:
        """The embedded tokens or vectors, and their stream: their positions and which are real; padded rows are compacted first.

        embedding, room: those of the stack that reads them; the model's own unless given.
        """
        embedding = self.embedding if embedding is None else embedding
        given = embedding.check(given)
        batch, length = given.shape[:2]
        if length == 0:
            raise FormersError("the model was given no tokens: give at least one.")
        if mask is not None and (mask.shape != (batch, length) or mask.dtype != torch.bool):
            raise FormersError(
                f"mask is {mask.dtype} of shape {tuple(mask.shape)}: give bool of shape ({batch}, {length}), True = a real token."
            )
        if state is not None:
            self._check_state(state, batch)
        keep = self.is_causal and (state is not None or not torch.is_grad_enabled())
        places, stop = (self.room if room is None else room).fit(given, mask, state)
        past = None if state is None or state.empty else state
        where = Range(self.spec.memory.origin, places) if past is None else past.places(places, given.device)
        if mask is None:
            where = Index(where.index, stop) if isinstance(where, Index) else where
            return embedding(given, where), Stream(where, keep=keep, watch=watch), None
        packed = compact(mask) if places == length else compact(mask).first(places)
        if watch is not None:
            watch.note(ORDER, 0, lambda: packed)
        if past is not None:
            where = Index(where.tensor(given.device).expand(batch, places).masked_fill(~packed.valid, EMPTY), stop)
        # Padding may hold anything: vectors of it become 0, so that no gradient meets what is no number.
        given = packed.apply(given)
        x = embedding(packed.blank(given) if given.is_floating_point() else given, where)
        return packed.blank(x), Stream(where, packed.valid, keep, watch=watch), packed

    def labelled(self, x: Tensor, label: Tensor | None) -> Tensor:
        """Embedded rows x (batch, length, dim) with the vector of their class at every position, where the model is conditioned on one."""
        if self.label_embedding is not None:
            return self.label_embedding(x, label)
        if label is not None:
            raise FormersError("the model is not conditioned on classes: leave label out, or give its spec labels.")
        return x

    def leave(self, stream: Stream, mask: Tensor | None, state: State | None, steps: Past, batch: int) -> State | None:
        """The state behind a stream."""
        if not stream.keep:
            return None
        before = self._fresh(batch) if state is None else state
        read = stream.positions.length if mask is None else mask.sum(dim=1)
        return State(before.batch, steps, before.next + read, stream.positions.stop, before.origin, self.state_shape)

    def tapped(self, stream: Stream, targets: Tensor | None, progress: float) -> Stream:
        """The stream, asked for the outputs of the depth steps that losses of training need."""
        if self.auxiliary is None or targets is None or not self.training:
            return stream
        return replace(stream, tapped=self.auxiliary.taps(progress))

    def finish(
        self,
        hidden: Tensor,
        targets: Tensor | None,
        mask: Tensor | None,
        stream: Stream,
        packed: Compaction | None,
        state: State | None,
        progress: float,
    ) -> Output:
        """The output, from the last hidden states and what the stream has gathered; both are moved back to where tokens stood."""
        taps = stream.taps
        if packed is not None:
            hidden, taps = packed.undo(hidden), {step: packed.undo(x) for step, x in taps.items()}
        logits, losses = self.head(hidden, self.embedding, targets, mask)
        if targets is None:
            return Output(logits, None, {}, state, hidden, self.head.value(hidden))
        if self.auxiliary is not None and self.training:
            losses = {**losses, **self.auxiliary(hidden, taps, self.embedding, targets, mask, progress)}
        losses = {**losses, **stream.losses}
        total = torch.stack(list(losses.values())).sum() if losses else None
        return Output(logits, total, losses, state, hidden, self.head.value(hidden), tuple(stream.losses))

    def _check_state(self, state: State, batch: int) -> None:
        if not isinstance(state, State):
            raise FormersError(f"state is a {type(state).__name__}: give out.state of the model, or initial_state({batch}).")
        if not self.is_causal:
            raise FormersError(f"{self.spec.name or 'this model'} sees all tokens at once and cannot continue a state: leave state out.")
        if state.batch != batch:
            raise FormersError(f"the state is of {state.batch} streams and the tokens of {batch}: start from initial_state({batch}).")
        if state.shape is not None and state.shape != self.state_shape:
            theirs = self.spec.differs(state.shape)
            if theirs is not None:
                raise FormersError(
                    f"the state was made by a model with {theirs}, which this one does not have: it is of another; "
                    f"use initial_state({batch})."
                )
        if state.steps and len(state.steps) != self.spec.depth.steps:
            raise FormersError(
                f"the state has {len(state.steps)} depth steps, the model {self.spec.depth.steps}: it is of another; use initial_state."
            )


def usable(state: State | None) -> State | None:
    """The state for a pass: with gradients on, tensors made in inference mode are copied, because a backward pass cannot save them."""
    if not isinstance(state, State) or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return state
    found: list[bool] = []
    state.map(lambda t: found.append(t.is_inference()) or t)  # type: ignore[func-returns-value]
    return state.map(lambda t: t.clone() if t.is_inference() else t) if any(found) else state


class StackModel(Model):
    """Embedding, one stack, head: encoder-only and decoder-only members."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.stack = Stack(spec)
        self.auxiliary = spec.head.build_auxiliary(spec.head_sizes, spec.vocab)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        state: State | None = None,
        mask: Tensor | None = None,
        *,
        label: Tensor | None = None,
        watch: Watch | None = None,
        progress: float = 0.0,
        update: int | None = None,
        episodes: Tensor | None = None,
    ) -> Output:
        """Logits (batch, length, vocab), and with targets the loss; mask is True at real tokens; a watch looks on.

        label: the class (batch,) of each row, where the spec has `labels`.
        progress: the share of the training that is done, by which losses of training alone may fade.
        update: the number of the training step, by which parts key what they draw anew at each.
        episodes: the id (batch, length) of each token's episode; no token sees another episode, in the row or in the state.
        """
        state = usable(state)
        x, stream, packed = self.enter(tokens, mask, state, watch)
        stream = entering(self.spec, stream, episodes, state, mask, *x.shape[:2])
        stream = self.tapped(stream if update is None else replace(stream, update=update), targets, progress)
        hidden, steps = self.stack(self.labelled(x, label), stream, () if state is None else state.steps)
        left = leaving(stream, self.leave(stream, mask, state, steps, len(tokens)))
        return self.finish(hidden, targets, mask, stream, packed, left, progress)

    def inspect(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        state: State | None = None,
        *,
        label: Tensor | None = None,
        episodes: Tensor | None = None,
    ) -> Inspection:
        """What the model computes over tokens, in evaluation mode: attention maps by the explicit path, norms of the stream, and more.

        label: the class (batch,) of each row, where the spec has `labels`. episodes: the id of each token's episode, as in forward.
        """
        batch, length = size_of(tokens)
        queries = self.spec.extra + length
        made = self.spec.attention.condensed(self.spec.sizes, queries)
        limit = self.spec.memory.limit
        past = 0 if state is None else state.bound if limit is None else min(state.bound, limit)
        keys = made or queries + past
        weights = self.spec.comparing * self.spec.heads * batch * queries * keys
        seen = {"state": state, "mask": mask, "label": label, "episodes": episodes}
        return inspect_pass(self, lambda watch: self(tokens, watch=watch, **seen), weights)

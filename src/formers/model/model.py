"""The contract that every member keeps, and the model of one stack.

out = model(tokens, targets, state, mask) computes logits and loss in one forward pass. `out.state`, given back with the next tokens,
yields what one pass over all of them would; it is made when a state is given or gradients are off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from formers.core import Context, FormersError, Positions, Range, State, Watch
from formers.core.context import Compaction
from formers.data.tokenize import Tokenizer
from formers.depth.base import DepthModule, States
from formers.depth.taps import Taps
from formers.heads.base import AuxiliaryModule
from formers.inputs import InputModule
from formers.inputs.labels import LabelEmbedding
from formers.model.episodes import entering, leaving
from formers.model.inspection import ORDER, Inspection, inspect_pass, size_of
from formers.model.max_length import MaxLength, check_rows
from formers.model.spec import Spec
from formers.model.stack import Stack
from formers.model.weights import current_name


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


class Embeds:
    """Takes the place of an embedding where embedded tokens (batch, length, dim) are given."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def check(self, x: Tensor) -> Tensor:
        """x itself; an error for another shape or type."""
        wanted = f"floats of shape (batch, length, {self.dim})"
        if not isinstance(x, Tensor):
            raise FormersError(f"the embedded tokens are a {type(x).__name__}: give {wanted}.")
        if x.dim() != 3 or x.shape[2] != self.dim or not x.is_floating_point():
            raise FormersError(f"the embedded tokens are {x.dtype} of shape {tuple(x.shape)}: give {wanted}.")
        return x

    def __call__(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        return x


class Model(nn.Module):
    """What every member is: an embedding, a head, and between them what its forward says; perhaps a tokenizer."""

    auxiliary: AuxiliaryModule | None
    """What gives further losses in training alone, made last: without it all other weights start the same."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_read_old_names)  # type: ignore[no-untyped-call]
        self.spec = spec
        self.is_causal = spec.is_causal  # asked in every pass, where torch.compile cannot make the pattern of a layer
        self.max_length = MaxLength(spec)
        self.tokenizer: Tokenizer | None = None
        self.labels: tuple[str, ...] | None = None
        self.auxiliary = None
        self.embedding = spec.input.build(spec.input_sizes)
        self.embeds = Embeds(spec.dim)
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
            if isinstance(module, DepthModule):
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
        embedding: InputModule | Embeds | None = None,
        room: MaxLength | None = None,
    ) -> tuple[Tensor, Context, Compaction | None]:
        """The embedded tokens or vectors, and their stream: their positions and which are real; padded rows are compacted first.

        embedding, room: those of the stack that reads them; the model's own unless given.
        """
        embedding = self.embedding if embedding is None else embedding
        given = embedding.check(given)
        check_rows(given, mask, "model")
        if state is not None:
            self._check_state(state, given.shape[0])
        keep = self.is_causal and (state is not None or not torch.is_grad_enabled())
        given, where, packed = (self.max_length if room is None else room).place(given, mask, state)
        if packed is None:
            return embedding(given, where), Context(where, keep=keep, watch=watch), None
        if watch is not None:
            watch.note(ORDER, 0, lambda: packed)
        # Padding may hold anything: vectors of it become 0, so that no gradient meets what is no number.
        x = embedding(packed.blank(given) if given.is_floating_point() else given, where)
        return packed.blank(x), Context(where, packed.valid, keep, watch=watch), packed

    def given(self, tokens: Tensor | None, embeds: Tensor | None, names: str = "tokens and inputs_embeds") -> tuple[Tensor, Embeds | None]:
        """The one of tokens and embedded tokens that is given, and what takes the place of the embedding for the latter."""
        if (tokens is None) == (embeds is None):
            found = "neither" if tokens is None else "both"
            raise FormersError(f"the model was given {found} of {names}: give exactly one of them.")
        return (tokens, None) if embeds is None else (self.embeds.check(embeds), self.embeds)  # type: ignore[return-value]

    def embed(self, tokens: Tensor, state: State | None = None) -> Tensor:
        """What the embedding returns for tokens (batch, length, ...): (batch, length, dim), to be given as `inputs_embeds`.

        Positions are not in it: the stack adds them. state: the one that the tokens continue, for images, whose tables depend on the
        position.
        """
        return self._embedded(self.embedding, tokens, state)

    def _embedded(self, embedding: InputModule, tokens: Tensor, state: State | None) -> Tensor:
        tokens = embedding.check(tokens)
        length = tokens.shape[1]
        start = self.spec.memory.origin
        return embedding(tokens, Range(start, length) if state is None or state.empty else state.next_positions(length, tokens.device))

    def labelled(self, x: Tensor, label: Tensor | None) -> Tensor:
        """Embedded rows x (batch, length, dim) with the vector of their class at every position, where the model is conditioned on one."""
        if self.label_embedding is not None:
            return self.label_embedding(x, label)
        if label is not None:
            raise FormersError("the model is not conditioned on classes: leave label out, or give its spec labels.")
        return x

    def leave(self, context: Context, mask: Tensor | None, state: State | None, steps: States, batch: int) -> State | None:
        """The state behind a stream."""
        if not context.keep:
            return None
        before = self._fresh(batch) if state is None else state
        read = context.positions.length if mask is None else mask.sum(dim=1)
        return State(before.batch, steps, before.next + read, context.positions.stop, before.origin, self.state_shape)

    def tapped(self, context: Context, targets: Tensor | None, progress: float) -> Context:
        """The stream, asked for the outputs of the depth steps that losses of training need."""
        if self.auxiliary is None or targets is None or not self.training:
            return context
        return context.with_channels(Taps(self.auxiliary.taps(progress)))

    def finish(
        self,
        hidden: Tensor,
        targets: Tensor | None,
        mask: Tensor | None,
        context: Context,
        packed: Compaction | None,
        state: State | None,
        progress: float,
    ) -> Output:
        """The output, from the last hidden states and what the stream has gathered; both are moved back to where tokens stood."""
        tapped: Taps | None = context.channels.get(Taps)
        taps = {} if tapped is None else tapped.outputs
        if packed is not None:
            hidden, taps = packed.undo(hidden), {step: packed.undo(x) for step, x in taps.items()}
        logits, losses = self.head(hidden, self.embedding, targets, mask)
        if targets is None:
            return Output(logits, None, {}, state, hidden, self.head.value(hidden))
        if self.auxiliary is not None and self.training:
            losses = {**losses, **self.auxiliary(hidden, taps, self.embedding, targets, mask, progress)}
        losses = {**losses, **context.losses}
        total = torch.stack(list(losses.values())).sum() if losses else None
        return Output(logits, total, losses, state, hidden, self.head.value(hidden), tuple(context.losses))

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


def _read_old_names(module: nn.Module, weights: dict[str, Any], prefix: str, *others: Any) -> None:
    """Lets `load_state_dict` read weights under the names of earlier versions."""
    for name in list(weights):
        new = current_name(name)
        if new != name:
            weights[new] = weights.pop(name)


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
        tokens: Tensor | None = None,
        targets: Tensor | None = None,
        state: State | None = None,
        mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        label: Tensor | None = None,
        watch: Watch | None = None,
        progress: float = 0.0,
        update: int | None = None,
        episodes: Tensor | None = None,
    ) -> Output:
        """Logits (batch, length, vocab), and with targets the loss; mask is True at real tokens; a watch looks on.

        inputs_embeds: instead of tokens, what the embedding would return for them, (batch, length, dim); positions are still added.
        label: the class (batch,) of each row, where the spec has `labels`.
        progress: the share of the training that is done, by which losses of training alone may fade.
        update: the number of the training step, by which parts key what they draw anew at each.
        episodes: the id (batch, length) of each token's episode; no token sees another episode, in the row or in the state.
        """
        state = usable(state)
        given, embedding = self.given(tokens, inputs_embeds)
        x, context, packed = self.enter(given, mask, state, watch, embedding)
        if episodes is not None or (state is not None and state.episode is not None):
            context = entering(self.spec, context, episodes, state, mask, *x.shape[:2])
        context = self.tapped(context if update is None else replace(context, update=update), targets, progress)
        hidden, steps = self.stack(self.labelled(x, label), context, () if state is None else state.steps)
        left = self.leave(context, mask, state, steps, len(given))
        if context.episodes is not None:
            left = leaving(context, left)
        return self.finish(hidden, targets, mask, context, packed, left, progress)

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
        made = self.spec.attention.key_count(self.spec.sizes, queries)
        limit = self.spec.memory.limit
        past = 0 if state is None else state.bound if limit is None else min(state.bound, limit)
        keys = made or queries + past
        weights = self.spec.comparing * self.spec.heads * batch * queries * keys
        seen = {"state": state, "mask": mask, "label": label, "episodes": episodes}
        return inspect_pass(self, lambda watch: self(tokens, watch=watch, **seen), weights)

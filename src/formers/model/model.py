"""The interface of all models, and the model with one stack.

out = model(tokens, targets, state, mask) computes logits and loss in one forward pass. Passing `out.state` with the next tokens gives
the same result as one pass over all of them; it is computed if a state is given or gradients are off.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from formers.model.episodes import state_with_episode, with_episodes
from formers.model.inspection import ORDER, Inspection, inspect_pass, size_of
from formers.model.max_length import MaxLength, check_rows
from formers.model.spec import Spec
from formers.model.stack import Stack
from formers.model.weights import current_name


@dataclass
class Output:
    """The result of a forward pass."""

    logits: Tensor | None
    """(batch, length, vocab), or (batch, classes); None without a head. With targets it is None for an adaptive softmax and for a head
    with a chunk, which compute only what their loss needs. Logits of an adaptive softmax are log-probabilities."""
    loss: Tensor | None
    """The sum of `losses`; None without targets."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """The named terms of the loss."""
    state: State | None = None
    """The state after the last token, detached, for an exact continuation."""
    hidden: Tensor | None = None
    """(batch, length, dim), before the head; twice as wide if the halves of a reversible stack are concatenated."""
    value: Tensor | None = None
    """(batch, length), the value of the state at each position, from a head for agents; None for other heads."""
    of_tokens: tuple[str, ...] = ()
    """The terms that are means over the real tokens of a stack, or depend only on weights; the others are means over targets."""


# DistributedDataParallel and other wrappers search the output for tensors.
register_dataclass(Output)


class Embeds:
    """Replaces the embedding if embedded tokens (batch, length, dim) are given."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def check(self, x: Tensor) -> Tensor:
        """x itself; raises FormersError for another shape or dtype."""
        wanted = f"floats of shape (batch, length, {self.dim})"
        if not isinstance(x, Tensor):
            raise FormersError(f"the embedded tokens are a {type(x).__name__}: give {wanted}.")
        if x.dim() != 3 or x.shape[2] != self.dim or not x.is_floating_point():
            raise FormersError(f"the embedded tokens are {x.dtype} of shape {tuple(x.shape)}: give {wanted}.")
        return x

    def __call__(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        return x


class Model(nn.Module):
    """The base class of all models: an embedding, a head, and a subclass's forward between them; optionally a tokenizer."""

    auxiliary: AuxiliaryModule | None
    """The auxiliary losses for training; built last, so that the initial values of all other weights do not depend on it."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_read_old_names)  # type: ignore[no-untyped-call]
        self.spec = spec
        self.is_causal = spec.is_causal  # stored, because torch.compile cannot build the pattern of a layer
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
        """The state of `batch` rows before their first token."""
        if not isinstance(batch, int) or batch < 1:
            raise FormersError(f"batch={batch!r} is not a number of rows: give an integer of at least 1.")
        if not self.is_causal:
            raise FormersError(
                f"{self.spec.name or 'this model'} sees all tokens at once and has no state: give whole sequences, or use a causal member."
            )
        return self._fresh(batch)

    def _fresh(self, batch: int) -> State:
        """The state of `batch` rows before their first token."""
        origin = self.spec.memory.origin
        return State(batch, next=origin, bound=origin, origin=origin, shape=self.state_shape)

    def parameter_count(self, training: bool = True) -> int:
        """The number of parameters, shared ones counted once; with training=False, without those that only training needs."""
        spare = sum(p.numel() for p in self.auxiliary.parameters()) if self.auxiliary is not None and not training else 0
        return sum(p.numel() for p in self.parameters()) - spare

    def deploy(self) -> None:
        """Removes what only training needs; results in evaluation are unchanged to the bit."""
        self.spec, self.auxiliary = self.spec.deployed(), None

    def checkpointing(self, on: bool = True) -> None:
        """Activation checkpointing: saves only each block's input and recomputes the rest: less memory, more time, the same gradient.

        It has no effect on a reversible stack, which saves less than that.
        """
        for module in self.modules():
            if isinstance(module, DepthModule):
                module.checkpointing = on

    def check_ids(self, batch: Mapping[str, Tensor]) -> None:
        """Raises FormersError for token ids, labels and targets of a batch that are out of range; batch: arguments of `forward`.

        It reads values, so it is called on the host, before the batch is copied to a device: there a forward pass checks them only with
        FORMERS_DEBUG=1.
        """
        for name, module in self._embeddings().items():
            if name in batch:
                module.check_ids(batch[name])
        if self.label_embedding is not None and batch.get("label") is not None:
            self.label_embedding.check_ids(batch["label"])
        if "targets" in batch:
            self.head.check_ids(batch["targets"], batch.get("mask"))

    def _embeddings(self) -> dict[str, InputModule]:
        """The embedding of each argument with token ids."""
        return {"tokens": self.embedding}

    def save_pretrained(self, path: str | Path) -> None:
        """Writes config.json, model.safetensors and their manifest into the folder `path`, without what only training needs.

        `formers.load` reads them.
        """
        from formers.model.save import save

        save(self, path)

    def prepare(
        self,
        given: Tensor,
        mask: Tensor | None,
        state: State | None,
        watch: Watch | None = None,
        embedding: InputModule | Embeds | None = None,
        max_length: MaxLength | None = None,
    ) -> tuple[Tensor, Context, Compaction | None]:
        """The embedded tokens or vectors, and their context: positions and the mask of real tokens; padded rows are compacted first.

        embedding, max_length: those of the encoder, if it is not the model's own stack.
        """
        embedding = self.embedding if embedding is None else embedding
        given = embedding.check(given)
        check_rows(given, mask, "model")
        if state is not None:
            self._check_state(state, given.shape[0])
        keep = self.is_causal and (state is not None or not torch.is_grad_enabled())
        given, where, packed = (self.max_length if max_length is None else max_length).place(given, mask, state)
        if packed is None:
            return self._full(embedding(given, where)), Context(where, keep=keep, watch=watch), None
        if watch is not None:
            watch.note(ORDER, 0, lambda: packed)
        # Padding may contain anything: its vectors are set to 0, so that no gradient is NaN.
        x = self._full(embedding(packed.blank(given) if given.is_floating_point() else given, where))
        return packed.blank(x), Context(where, packed.valid, keep, watch=watch), packed

    def _full(self, x: Tensor) -> Tensor:
        """Embedded rows in the dtype of the weights, also under autocast: else the residual stream would be in half precision."""
        return x if x.dtype not in (torch.bfloat16, torch.float16) else x.to(next(self.parameters()).dtype)

    def given(self, tokens: Tensor | None, embeds: Tensor | None, names: str = "tokens and inputs_embeds") -> tuple[Tensor, Embeds | None]:
        """The given one of tokens and embedded tokens, and for the latter the replacement of the embedding."""
        if (tokens is None) == (embeds is None):
            found = "neither" if tokens is None else "both"
            raise FormersError(f"the model got {found} of {names}: give exactly one of them.")
        return (tokens, None) if embeds is None else (self.embeds.check(embeds), self.embeds)  # type: ignore[return-value]

    def embed(self, tokens: Tensor, state: State | None = None) -> Tensor:
        """The output (batch, length, dim) of the embedding for tokens (batch, length, ...); can be passed as `inputs_embeds`.

        It does not include positions: the stack adds them. state: the state that the tokens continue; needed for images, whose embedding
        tables depend on the position.
        """
        return self._embedded(self.embedding, tokens, state)

    def _embedded(self, embedding: InputModule, tokens: Tensor, state: State | None) -> Tensor:
        tokens = embedding.check(tokens)
        length = tokens.shape[1]
        start = self.spec.memory.origin
        return embedding(tokens, Range(start, length) if state is None or state.empty else state.next_positions(length, tokens.device))

    def labelled(self, x: Tensor, label: Tensor | None) -> Tensor:
        """Embedded rows x (batch, length, dim) with the vector of their class added at every position, if the model has labels."""
        if self.label_embedding is not None:
            return self.label_embedding(x, label)
        if label is not None:
            raise FormersError("the model is not conditioned on classes: omit label, or set labels in its spec.")
        return x

    def next_state(self, context: Context, mask: Tensor | None, state: State | None, steps: States, batch: int) -> State | None:
        """The state after a pass."""
        if not context.keep:
            return None
        before = self._fresh(batch) if state is None else state
        read = context.positions.length if mask is None else mask.sum(dim=1)
        return State(before.batch, steps, before.next + read, context.positions.stop, before.origin, self.state_shape)

    def with_taps(self, context: Context, targets: Tensor | None, progress: float) -> Context:
        """The context with taps at the depth steps whose outputs the auxiliary losses need."""
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
        """The output, from the last hidden states and the results in the context; both are moved back to the original token order."""
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
            raise FormersError(f"{self.spec.name or 'this model'} sees all tokens at once and cannot continue a state: omit state.")
        if state.batch != batch:
            raise FormersError(f"the state has {state.batch} rows and the tokens have {batch}: start from initial_state({batch}).")
        if state.shape is not None and state.shape != self.state_shape:
            theirs = self.spec.differs(state.shape)
            if theirs is not None:
                raise FormersError(
                    f"another model made the state, with {theirs}, which this one does not have: start from initial_state({batch})."
                )
        if state.steps and len(state.steps) != self.spec.depth.steps:
            raise FormersError(
                f"the state has {len(state.steps)} depth steps, the model {self.spec.depth.steps}: start from initial_state({batch})."
            )


def _read_old_names(module: nn.Module, weights: dict[str, Any], prefix: str, *others: Any) -> None:
    """Renames weights of earlier versions, so that `load_state_dict` accepts them."""
    for name in list(weights):
        new = current_name(name)
        if new != name:
            weights[new] = weights.pop(name)


def usable(state: State | None) -> State | None:
    """The state for a pass; with gradients on, tensors from inference mode are copied, because a backward pass cannot save them."""
    if not isinstance(state, State) or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return state
    found: list[bool] = []
    state.map(lambda t: found.append(t.is_inference()) or t)  # type: ignore[func-returns-value]
    return state.map(lambda t: t.clone() if t.is_inference() else t) if any(found) else state


class StackModel(Model):
    """Embedding, one stack, head: encoder-only and decoder-only models."""

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
        """Logits (batch, length, vocab), and with targets the loss; mask is True at real tokens; watch records intermediate values.

        inputs_embeds: instead of tokens, what the embedding would return for them, (batch, length, dim); positions are still added.
        label: the class (batch,) of each row, if the spec has `labels`.
        progress: the completed fraction of the training, for auxiliary losses with a schedule.
        update: the number of the training step, a key of random numbers that are drawn anew at each step.
        episodes: the id (batch, length) of each token's episode; no token sees another episode, in the row or in the state.
        """
        state = usable(state)
        given, embedding = self.given(tokens, inputs_embeds)
        x, context, packed = self.prepare(given, mask, state, watch, embedding)
        if episodes is not None or (state is not None and state.episode is not None):
            context = with_episodes(self.spec, context, episodes, state, mask, *x.shape[:2])
        context = self.with_taps(context if update is None else replace(context, update=update), targets, progress)
        hidden, steps = self.stack(self.labelled(x, label), context, () if state is None else state.steps)
        state_after = self.next_state(context, mask, state, steps, len(given))
        if context.episodes is not None:
            state_after = state_with_episode(context, state_after)
        return self.finish(hidden, targets, mask, context, packed, state_after, progress)

    def inspect(
        self,
        tokens: Tensor,
        mask: Tensor | None = None,
        state: State | None = None,
        *,
        label: Tensor | None = None,
        episodes: Tensor | None = None,
    ) -> Inspection:
        """Attention maps, computed by the executor `dense`, norms of hidden states, and more, for tokens, in evaluation mode.

        label: the class (batch,) of each row, if the spec has `labels`. episodes: the id of each token's episode, as in forward.
        """
        batch, length = size_of(tokens)
        queries = self.spec.extra + length
        made = self.spec.attention.key_count(self.spec.sizes, queries)
        limit = self.spec.memory.limit
        past = 0 if state is None else state.bound if limit is None else min(state.bound, limit)
        keys = made or queries + past
        weights = self.spec.attention_steps * self.spec.heads * batch * queries * keys
        seen = {"state": state, "mask": mask, "label": label, "episodes": episodes}
        return inspect_pass(self, lambda watch: self(tokens, watch=watch, **seen), weights)

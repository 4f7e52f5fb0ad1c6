"""inputs_embeds and source_embeds instead of tokens, in every member: the same numbers to the bit, and gradients of the vectors."""

from __future__ import annotations

from typing import Any

import torch

from contracts.specimens import CAUSAL, SPECIMENS, Specimen, Subject, built
from formers.model.seq2seq import Seq2Seq
from helpers import close, refused, sweep


def embedded(read: Subject, x: torch.Tensor, state: Any = None) -> dict[str, Any]:
    """What is given instead of tokens x, and of the source where there is one."""
    model, given = read.model, {"inputs_embeds": read.model.embed(x, state)}
    if read.label is not None:
        given["label"] = read.label
    if isinstance(model, Seq2Seq) and (state is None or state.empty):
        given |= {"source_embeds": model.embed_source(read.source), "source_mask": read.source_mask}
    return given


@sweep("specimen", SPECIMENS)
def test_embedded_tokens_give_what_the_tokens_give(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x, targets = read.input(7), read.targets(7)
    with torch.no_grad():
        wanted, found = read(x, targets=targets), read.model(**embedded(read, x), targets=targets)
    assert (found.logits is None) == (wanted.logits is None)
    if wanted.logits is not None:
        assert found.logits.equal(wanted.logits)
    assert found.hidden.equal(wanted.hidden)
    assert found.loss.equal(wanted.loss)


@sweep("specimen", SPECIMENS)
def test_padding_is_masked_where_vectors_are_given(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x = read.input(6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 5 + [False]])
    with torch.no_grad():
        given = embedded(read, x)
        given["inputs_embeds"] = given["inputs_embeds"].masked_fill(~mask[..., None], float("nan"))
        found, wanted = read.model(**given, mask=mask), read(x, mask=mask)
    close(found.hidden[mask], wanted.hidden[mask])


@sweep("specimen", CAUSAL)
def test_embedded_tokens_continue_a_state(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x = read.input(7)
    with torch.no_grad():
        state = read(x[:, :4], state=read.model.initial_state(3)).state
        found = read.model(**embedded(read, x[:, 4:], state), state=state)
        assert found.hidden.equal(read(x[:, 4:], state=state).hidden)


@sweep("specimen", SPECIMENS)
def test_gradients_flow_into_the_vectors(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x = read.input(6)
    given = embedded(read, x)
    vectors = [name for name in given if name.endswith("_embeds")]
    for name in vectors:
        given[name] = given[name].detach().requires_grad_()
    hidden = read.model(**given).hidden
    slopes = torch.autograd.grad(hidden.square().sum(), [given[name] for name in vectors])
    assert all(slope.isfinite().all() and slope.abs().sum() > 0 for slope in slopes)


@sweep("specimen", SPECIMENS)
def test_both_neither_and_a_wrong_width_are_refused(specimen: Specimen) -> None:
    read = built(specimen.spec)
    model, x = read.model, read.input(5)
    given = embedded(read, x)
    vectors = given.pop("inputs_embeds")
    tokens = {"target" if isinstance(model, Seq2Seq) else "tokens": x}
    with refused("both", "inputs_embeds", "exactly one"):
        model(**tokens, inputs_embeds=vectors, **given)
    with refused("neither", "inputs_embeds", "exactly one"):
        model(**given)
    with refused(f"(batch, length, {model.spec.dim})", "(3, 5, 3)"):
        model(inputs_embeds=vectors[..., :3], **given)
    with refused("int64", "floats"):
        model(inputs_embeds=torch.zeros(3, 5, model.spec.dim, dtype=torch.long), **given)
    with refused("list"):
        model(inputs_embeds=[1.0], **given)
    if isinstance(model, Seq2Seq):
        with refused("both", "source_embeds", "exactly one"):
            model(read.source, x, source_embeds=given["source_embeds"])
        with refused("neither a source"):
            model(inputs_embeds=vectors)
        with refused("(3, 5, 3)"):
            model(target=x, source_embeds=given["source_embeds"][..., :3])

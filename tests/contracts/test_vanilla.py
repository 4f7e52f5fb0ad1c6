"""The exact properties of the vanilla Transformer (FAMILY_SPEC, section 1)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import formers
from contracts.specimens import MEMBERS, TINY, VOCAB, subject
from formers.attention import DotProduct
from formers.core import Context, Range
from formers.patterns import Full
from helpers import close, sweep


@torch.no_grad()
def test_without_positions_and_mask_the_encoder_is_permutation_equivariant() -> None:
    x, order = torch.randint(VOCAB, (2, 9)), torch.randperm(9)
    for norm in ("pre", "post"):
        model = subject(formers.spec("encoder", vocab=VOCAB, position="none", norm=norm, **TINY)).model
        close(model(x[:, order]).hidden, model(x).hidden[:, order])
    placed = subject(formers.spec("encoder", vocab=VOCAB, position="sinusoidal", **TINY)).model
    assert (placed(x[:, order]).hidden - placed(x).hidden[:, order]).abs().max() > 0.1


@torch.no_grad()
def test_one_head_with_identities_and_equal_keys_gives_the_mean_of_the_values() -> None:
    one_head = formers.spec("encoder", vocab=VOCAB, dim=6, heads=1).sizes
    layer = DotProduct().build(one_head, Full()).double()
    layer.qkv.weight.copy_(torch.cat([torch.eye(6), torch.zeros(6, 6), torch.eye(6)]))  # W^q = W^v = 1, and every key is 0
    layer.out.weight.copy_(torch.eye(6))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    close(layer(x, Context(Range(0, 5)), None, 0)[0], x.mean(dim=1, keepdim=True).expand_as(x))


def smoothed(logits: Tensor, targets: Tensor, counts: Tensor, smoothing: float) -> float:
    """The mean over targets that count of -sum_c t_c log p_c, t = (1-s) one-hot + s/V, number by number."""
    vocab, terms = logits.shape[-1], []
    for b, i in counts.nonzero().tolist():
        row = logits[b, i].tolist()
        total = math.log(sum(math.exp(z) for z in row))
        goal = [smoothing / vocab + (1 - smoothing) * (c == targets[b, i].item()) for c in range(vocab)]
        terms.append(-sum(t * (z - total) for t, z in zip(goal, row, strict=True)))
    return sum(terms) / len(terms)


@sweep("name", ["transformer", "decoder"])
def test_label_smoothing_is_the_formula_in_training_and_leaves_padding_out(name: str) -> None:
    read = subject(formers.spec(name, **{**MEMBERS[name][0], "label_smoothing": 0.3}))
    x, targets = read.input(5), read.targets(5)
    targets[0, 1] = -100
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False, True, True, True, True]])
    for training, smoothing in ((True, 0.3), (False, 0.0)):
        read.model.train(training)
        for given, counts in ((None, targets != -100), (mask, mask & (targets != -100))):
            out = read(x, targets=targets, mask=given)
            wanted = smoothed(out.logits.detach(), targets, counts, smoothing)
            assert out.loss.item() == pytest.approx(wanted, abs=1e-10)
            assert out.losses == {"cross_entropy": out.losses["cross_entropy"]}
    other = torch.where(mask, targets, (targets + 1) % VOCAB)
    assert read(x, targets=other, mask=mask).loss == read(x, targets=targets, mask=mask).loss


@torch.no_grad()
def test_the_embeddings_scale_stands_on_one_side_only() -> None:
    """sqrt(d) on what is read, or 1/sqrt(d) on what is written: with one table, the two differ by that factor and no more."""
    made = {
        side: formers.create("decoder", vocab=VOCAB, position="none", embedding_scale=side, **TINY).double().eval()
        for side in ("input", "output", "none")
    }
    for model in made.values():
        model.load_state_dict(made["none"].state_dict())
    x = torch.randint(VOCAB, (2, 4))
    root = TINY["dim"] ** 0.5
    close(made["input"].embedding(x), made["none"].embedding(x) * root)
    close(made["output"](x).logits * root, made["none"](x).logits)

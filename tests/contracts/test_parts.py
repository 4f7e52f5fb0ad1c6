"""Every part of every slot is unchanged by JSON, and keeps the contracts in a model."""

from __future__ import annotations

import json
import re

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, SPECIMENS, VOCAB, parts, slots, subject
from formers import Spec
from formers.attention import LSH, Attention, LowRank
from formers.core import Context, Part, Range
from formers.depth import Shared, Stacked
from formers.feedforward import Dense
from formers.heads import Head, LanguageModel, NoHead, PixelHead, PixelMixture, PolicyValue, Tag
from formers.inputs import Input, Tokens
from formers.memory import Carry, Recurrence
from formers.patterns import Full
from formers.position import NoPosition
from formers.recurrent import Recurrent
from formers.residual import Bare, Residual
from helpers import close, refused, sweep

DECODER = next(s for s in CAUSAL if s.member == "decoder").spec
ENCODER = next(s for s in SPECIMENS if s.member == "encoder").spec
PAIR = next(s for s in SPECIMENS if s.member == "seq2seq").spec
SWEPT = sweep(("slot", "part"), parts())


def with_part(slot: str, part: Part) -> Spec:
    """A decoder with the part in its slot, with an encoder where it reads a source.

    Or an encoder, where it heads one or cannot be causal, or moves what earlier tokens see.
    """
    if isinstance(part, Attention) and part.reads_source:
        return PAIR.model_copy(update={slot: part})
    if isinstance(part, Input):
        change = {"vocab": None, "features": 4} if part.vectors else {}
        head = Tag(classes=3) if part.shape(4) else LanguageModel(tied=isinstance(part, Tokens))
        return DECODER.model_copy(update={slot: part, "head": head, **change})
    if isinstance(part, PixelHead):
        return cells(part)
    moves = isinstance(part, LSH) and part.reach == "chunk"
    ahead = isinstance(part, Attention) and part.allowed_patterns == (Full,)
    for_encoders = (isinstance(part, Head) and not part.generates) or isinstance(part, LowRank) or moves or ahead
    spec = (ENCODER if for_encoders else DECODER).model_copy(update={slot: part})
    if isinstance(part, Residual) and part.width(spec.dim) != spec.dim:
        return spec.model_copy(update={"head": LanguageModel(tied=False)})
    if isinstance(part, Carry):
        return spec.model_copy(update={"position": NoPosition(), "attention": Recurrent()})
    return spec.model_copy(update={"position": NoPosition()}) if isinstance(part, Recurrence) else spec


def cells(head: Head) -> Spec:
    """A model of images with a head."""
    pixels = isinstance(head, PixelMixture)
    spec = formers.spec("image-transformer", head="mixture" if pixels else "categorical", levels=VOCAB, dim=16, heads=2, layers=1)
    return spec.model_copy(update={"head": head, "features": head.channels if pixels else None})


@SWEPT
def test_a_frozen_value_that_survives_json(slot: str, part: Part) -> None:
    written = json.loads(json.dumps(part.model_dump(mode="json")))
    assert slots()[slot].read(written) == part
    assert hash(slots()[slot].read(written)) == hash(part)
    assert Spec(**with_part(slot, part).model_dump(mode="json")) == with_part(slot, part)
    with refused(type(part).__name__, "'no_such_option'"):
        type(part)(**written, no_such_option=1)
    for name in type(part).model_fields:
        with pytest.raises(ValueError, match="frozen"):
            setattr(part, name, getattr(part, name))


@SWEPT
def test_every_parameter_learns(slot: str, part: Part) -> None:
    read = subject(with_part(slot, part))
    read.model.train()  # some learn in training alone
    x, mask = read.input(6), torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 3 + [True] * 3])
    out = read(x, mask=mask, targets=None if isinstance(part, NoHead | PolicyValue) else read.targets(6))
    if isinstance(part, PolicyValue):  # whose loss is computed outside
        (out.logits.square().mean() + out.value.square().mean()).backward()
    else:
        (out.hidden.square().mean() if out.loss is None else out.loss).backward()
    for name, parameter in read.model.named_parameters():
        assert parameter.grad is not None, f"{name} is not used"
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), f"{name} does not learn"


@SWEPT
@torch.no_grad()
def test_full_equals_token_by_token_and_padded_rows_the_rows_alone(slot: str, part: Part) -> None:
    read = subject(with_part(slot, part))
    x, mask = read.input(6), torch.tensor([[True] * 6, [False, True, True, False, True, False], [False] * 5 + [True]])
    whole = read(x)
    padded = read(x, mask=mask).hidden
    for row in range(read.batch):
        close(padded[row, mask[row]], read.rows([row])(x[row : row + 1, mask[row]]).hidden[0])
    if read.model.spec.is_causal:
        state, hidden = read.model.initial_state(read.batch), []
        for t in range(6):
            out = read(x[:, t : t + 1], state=state)
            state = out.state
            hidden.append(out.hidden)
        close(torch.cat(hidden, dim=1), whole.hidden)


@sweep("activation", ["relu", "gelu", "gelu-tanh", "gelu-sigmoid", "swiglu"])
def test_the_feed_forward_is_its_equation(activation: str) -> None:
    layer = subject(with_part("feedforward", Dense(hidden=20, activation=activation))).model.stack.depth.blocks[0].feedforward
    x = torch.randn(2, 3, DECODER.dim, dtype=torch.float64)
    found, left = layer(x, Context(Range(0, 3)), None, 0)
    assert left is None
    if activation == "swiglu":
        gate, value = x @ layer.into.weight[:20].T, x @ layer.into.weight[20:].T
        close(found, (gate * torch.sigmoid(gate) * value) @ layer.out.weight.T)
        return
    z = x @ layer.into.weight.T + layer.into.bias
    f = {
        "relu": z.clamp(min=0),
        "gelu": z * 0.5 * (1 + torch.erf(z / 2**0.5)),
        "gelu-tanh": 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3))),
        "gelu-sigmoid": z / (1 + torch.exp(-1.702 * z)),
    }[activation]
    close(found, f @ layer.out.weight.T + layer.out.bias)


@torch.no_grad()
def test_shared_depth_is_stacked_depth_with_equal_weights() -> None:
    shared = subject(with_part("depth", Shared(layers=3))).model
    stacked = subject(with_part("depth", Stacked(layers=3))).model
    once = shared.state_dict()
    stacked.load_state_dict({name: once[re.sub(r"blocks\.\d", "blocks.0", name)] for name in stacked.state_dict()})
    x = torch.randint(VOCAB, (2, 5))
    close(shared(x).logits, stacked(x).logits)
    assert shared.parameter_count() < stacked.parameter_count()


@torch.no_grad()
def test_without_residuals_a_block_gives_its_last_sublayer() -> None:
    model = subject(with_part("residual", Bare()).model_copy(update={"depth": Stacked(layers=1)})).model
    block = model.stack.depth.blocks[0]
    x, stream = torch.randn(2, 4, DECODER.dim, dtype=torch.float64), Context(Range(0, 4))
    y = block.feedforward(block.attention(x, stream, None, 0)[0], stream, None, 0)[0]
    close(block(x, stream, None, 0)[0], y)


def test_an_unscaled_attention_takes_the_dot_product_as_it_is() -> None:
    scaled, plain = (subject(DECODER.model_copy(update={"attention": type(DECODER.attention)(scaled=s)})).model for s in (True, False))
    assert plain.stack.depth.blocks[0].attention.scale == 1.0
    assert scaled.stack.depth.blocks[0].attention.scale == pytest.approx((DECODER.dim / DECODER.heads) ** -0.5)
    plain.load_state_dict(scaled.state_dict())
    for block in plain.stack.depth.blocks:
        widths = block.attention.widths
        with torch.no_grad():
            block.attention.qkv.weight[: widths[0]] *= (DECODER.dim / DECODER.heads) ** -0.5
            block.attention.qkv.bias[: widths[0]] *= (DECODER.dim / DECODER.heads) ** -0.5
    x = torch.randint(VOCAB, (2, 5))
    close(plain(x).logits, scaled(x).logits)

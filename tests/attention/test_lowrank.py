"""Low-rank attention against loops, against dense attention if the rank is the length, padded and short."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

import formers
from formers import Model
from formers.attention import DotProduct, LowRank
from formers.attention.lowrank import LowRankAttention
from formers.core import Context, Range, Sizes, Watch
from formers.patterns import Full
from helpers import close, gradients, refused, sweep

SHARINGS = ("none", "headwise", "key-value", "layerwise")
HEADS, DIM, LENGTH, RANK = 3, 12, 10, 4
SIZES = Sizes(dim=DIM, heads=HEADS, head_dim=5, value_dim=5, length=LENGTH, depth_steps=1, dropout=0.0, attention_dropout=0.0)
KINDS = [LowRank(rank=RANK, sharing=s, projection=p) for p in ("linear", "conv") for s in SHARINGS] + [
    LowRank(rank=RANK, projection="mean")
]
SWEPT = sweep("part", KINDS)


def sublayer(part: LowRank | DotProduct, sizes: Sizes = SIZES) -> torch.nn.Module:
    """A sublayer in float64 with no parameter left at 0."""
    made = part.build(sizes, Full()).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def read(layer: torch.nn.Module, x: Tensor, valid: Tensor | None = None) -> Tensor:
    return layer(x, Context(Range(0, x.shape[1]), valid), None, 0)[0]


def by_loops(layer: LowRankAttention, part: LowRank, x: Tensor) -> Tensor:
    """One row x (n, dim) by the paper's formulas: keys of all tokens first, then projected, head by head and key by key."""
    sizes, n = layer.sizes, len(x)
    q, kv = x @ layer.q.weight.T + layer.q.bias, x @ layer.condense.kv.weight.T + layer.condense.kv.bias
    k, v = kv.split([HEADS * sizes.head_dim, HEADS * sizes.value_dim], dim=-1)
    heads = []
    for m in range(HEADS):
        mine = [t.unflatten(-1, (HEADS, -1))[:, m] for t in (q, k, v)]
        made = []
        for side, tokens in enumerate(mine[1:]):
            w = math.ceil(sizes.length / part.rank)
            windows = [range(start, min(start + w, n)) for start in range(0, n, w)]
            if part.projection == "mean":
                made.append(torch.stack([sum(tokens[j] for j in window) / len(window) for window in windows]))
                continue
            weight = layer.condense.projections.both[side]
            weight = weight[m] if part.sharing == "none" else weight
            if part.projection == "linear":
                made.append(torch.stack([sum(weight[r, j] * tokens[j] for j in range(n)) for r in range(part.rank)]))
            else:
                made.append(torch.stack([sum(tokens[j] @ weight[j - window[0]] for j in window) for window in windows]))
        a = torch.softmax(mine[0] @ made[0].T / sizes.head_dim**0.5, dim=-1)
        heads.append(a @ made[1])
    return torch.cat(heads, dim=-1) @ layer.out.weight.T + layer.out.bias


@SWEPT
@sweep("n", [1, 3, 4, 7, LENGTH])
def test_it_is_the_papers_formula_at_every_length(part: LowRank, n: int) -> None:
    layer = sublayer(part)
    x = torch.randn(2, n, DIM, dtype=torch.float64, requires_grad=True)
    found, wanted = read(layer, x), torch.stack([by_loops(layer, part, row) for row in x])
    close(found, wanted, 1e-12)
    parameters = [x, *layer.parameters()]
    for a, b in zip(gradients(found, parameters), gradients(wanted, parameters), strict=True):
        close(a, b, 1e-11)


def with_weights_of(dense: torch.nn.Module, part: LowRank) -> LowRankAttention:
    """A low-rank sublayer with a dense one's weights and identities as projections."""
    layer = part.build(dense.sizes).double().eval()
    with torch.no_grad():
        layer.q.weight.copy_(dense.qkv.weight[: dense.widths[0]])
        layer.q.bias.copy_(dense.qkv.bias[: dense.widths[0]])
        layer.condense.kv.weight.copy_(dense.qkv.weight[dense.widths[0] :])
        layer.condense.kv.bias.copy_(dense.qkv.bias[dense.widths[0] :])
        layer.out.load_state_dict(dense.out.state_dict())
        if part.projection != "mean":
            for weight in layer.condense.projections.parameters():
                weight.copy_(torch.eye(weight.shape[-1]).expand(weight.shape))
    return layer


@sweep("part", [p.replace(rank=LENGTH) for p in KINDS])
def test_it_is_dense_attention_at_rank_equal_to_length_with_identities(part: LowRank) -> None:
    dense = sublayer(DotProduct())
    layer = with_weights_of(dense, part)
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    found, wanted = read(layer, x), read(dense, x)
    close(found, wanted, 1e-12)
    kv = layer.condense.kv
    dx, dq, db, dkv, dbkv, dout = gradients(found, [x, layer.q.weight, layer.q.bias, kv.weight, kv.bias, layer.out.weight])
    theirs = gradients(wanted, [x, dense.qkv.weight, dense.qkv.bias, dense.out.weight])
    for a, b in zip((dx, torch.cat([dq, dkv]), torch.cat([db, dbkv]), dout), theirs, strict=True):
        close(a, b, 1e-12)
    if part.projection != "linear":  # windows of one token are dense attention for shorter and padded rows, too
        valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [0]])
        close(read(layer, x, valid), read(dense, x, valid), 1e-12)
        close(read(layer, x[:, :6]), read(dense, x[:, :6]), 1e-12)


@torch.no_grad()
@SWEPT
def test_a_padded_row_is_the_row_alone_and_one_of_padding_gives_no_keys(part: LowRank) -> None:
    layer = sublayer(part)
    lengths = [LENGTH, 7, 3, 1, 0]
    valid = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), LENGTH, DIM, dtype=torch.float64)
    together = read(layer, x, valid)
    for row, n in enumerate(lengths[:-1]):
        close(together[row, :n], read(layer, x[row : row + 1, :n])[0])
    close(together[-1], layer.out.bias.expand(LENGTH, DIM))


@torch.no_grad()
@SWEPT
def test_nothing_that_stands_at_padding_matters(part: LowRank) -> None:
    layer, valid = sublayer(part), torch.arange(LENGTH) < torch.tensor([[6], [0]])
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    before = read(layer, x, valid)
    x[:, 6:] = 1e6
    assert torch.equal(read(layer, x, valid)[0, :6], before[0, :6])


@torch.no_grad()
@sweep("sharing", SHARINGS)
def test_weights_times_projection_have_at_most_the_rank(sharing: str) -> None:
    layer = sublayer(LowRank(rank=RANK, sharing=sharing))
    watch = Watch()
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    layer(x, Context(Range(0, LENGTH), watch=watch), None, 0)
    weights = watch.notes["attention"][0]
    assert weights.shape == (1, HEADS, LENGTH, RANK)
    close(weights.sum(dim=-1), torch.ones(1, HEADS, LENGTH, dtype=torch.float64))
    whole = weights @ layer.condense.projections.both[1]
    assert whole.shape == (1, HEADS, LENGTH, LENGTH)
    assert (torch.linalg.matrix_rank(whole) == RANK).all()


@torch.no_grad()
@SWEPT
def test_no_form_of_it_is_causal(part: LowRank) -> None:
    layer = sublayer(part)
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    before = read(layer, x)
    x[:, -1] += 1.0
    assert (read(layer, x)[0, 0] != before[0, 0]).any(), "the first output must feel the last token"


def made(sharing: str, projection: str = "linear", **options: object) -> Model:
    sizes = {"dim": 12, "heads": 3, "layers": 4, "hidden": 16, "length": LENGTH, "rank": RANK, **options}
    return formers.create("linformer", vocab=7, sharing=sharing, projection=projection, **sizes)


def projections(model: Model) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters() if "projections" in n or "common" in n}


@sweep(("sharing", "matrices"), [("none", 4 * 2 * 3), ("headwise", 2 * 4), ("key-value", 4), ("layerwise", 1)])
def test_the_number_of_matrices_is_the_papers(sharing: str, matrices: int) -> None:
    plain = formers.create("encoder", vocab=7, dim=12, heads=3, layers=4, hidden=16, length=LENGTH).parameter_count()
    assert made(sharing).parameter_count() == plain + matrices * RANK * LENGTH
    assert made(sharing, "conv").parameter_count() == plain + matrices * math.ceil(LENGTH / RANK) * 4 * 4
    assert made(sharing, "mean").parameter_count() == plain
    assert (list(projections(made(sharing))) == ["stack.common.keys"]) == (sharing == "layerwise")


def layers(model: Model) -> list[Tensor]:
    return [block.attention.condense.projections.keys for block in model.stack.depth.blocks]


@pytest.mark.parametrize("projection", ["linear", "conv"])
def test_layers_share_one_tensor_whatever_becomes_of_the_model(projection: str, tmp_path: object) -> None:
    model = made("layerwise", projection)
    model.save_pretrained(tmp_path)
    twin = made("layerwise", projection)
    twin.load_state_dict(model.state_dict(), assign=True)
    swapped = copy.deepcopy(model)
    swapped.stack.common.keys = torch.nn.Parameter(torch.zeros_like(swapped.stack.common.keys))
    for other in (model, copy.deepcopy(model), formers.load(tmp_path), made("layerwise", projection).double().to("cpu"), twin, swapped):
        shared = layers(other)
        assert all(tensor is shared[0] for tensor in shared)
        assert shared[0] is other.stack.common.keys
    assert copy.deepcopy(model).stack.common.keys is not model.stack.common.keys
    assert [name for name in model.state_dict() if "common" in name or "projections" in name] == ["stack.common.keys"]
    x = torch.randint(7, (2, 6))
    close(formers.load(tmp_path)(x).logits, model.eval()(x).logits, 0.0)
    assert not torch.equal(swapped.eval()(x).logits, model(x).logits)


def test_other_sharings_share_nothing_between_layers_and_a_stack_shares_nothing_with_another() -> None:
    for sharing in SHARINGS[:3]:
        model = made(sharing)
        assert model.stack.common is None
        assert len({id(t) for t in layers(model)}) == 4
    spec = formers.spec("transformer", vocab=7, dim=12, heads=3, layers=2)
    both = formers.build(spec.replace(encoder=spec.encoder.replace(attention=LowRank(rank=4))))
    assert both.encoder.common is not None
    assert both.stack.common is None


@torch.no_grad()
def test_projected_keys_begin_with_the_variance_of_keys() -> None:
    sizes = Sizes(dim=64, heads=4, head_dim=16, value_dim=16, length=512, depth_steps=1, dropout=0.0, attention_dropout=0.0)
    x = torch.randn(4, 512, 64)
    for part in (
        LowRank(rank=64, sharing="headwise"),
        LowRank(rank=64, sharing="none"),
        LowRank(rank=64, sharing="none", projection="conv"),
    ):
        layer = part.build(sizes)
        k, v, valid = layer.condense(x, None)
        plain = layer.condense.kv(x)
        assert valid is None
        assert k.std() / plain[..., :64].std() == pytest.approx(1.0, abs=0.1)
        assert v.std() / plain[..., 64:].std() == pytest.approx(1.0, abs=0.1)


@SWEPT
def test_more_tokens_than_the_projections_have_are_refused(part: LowRank) -> None:
    with refused(f"{LENGTH + 1} tokens", f"length={LENGTH}", "fewer tokens"):
        read(sublayer(part), torch.randn(1, LENGTH + 1, DIM, dtype=torch.float64))


@sweep("option", [{"sharing": "heads"}, {"projection": "max"}, {"rank": 0}])
def test_unknown_choices_are_refused(option: dict[str, object]) -> None:
    with refused(*option):
        formers.spec("linformer", vocab=7, **option)


def test_a_causal_linformer_is_refused_with_the_reason() -> None:
    with refused("future", "causal"):
        formers.create("linformer", vocab=7, causal=True)
    with refused("rank=40", "length=32", "at most 32"):
        formers.create("linformer", vocab=7, length=32, rank=40)
    model = made("layerwise")
    with refused("linformer", "no state"):
        model.initial_state(1)


@SWEPT
def test_lower_precision_and_dropout_run_and_stay_finite(part: LowRank) -> None:
    spec = formers.spec("linformer", vocab=7, dim=12, heads=3, layers=2, length=LENGTH, rank=RANK, dropout=0.1, attention_dropout=0.2)
    model = formers.build(spec.replace(attention=part)).train()
    x, mask = torch.randint(7, (3, 8)), torch.arange(8) < torch.tensor([[8], [5], [0]])
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x, targets=x, mask=mask).loss
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.to(torch.bfloat16).eval()(x, mask=mask).logits.isfinite().all()


def test_it_reads_the_source_of_an_encoder_decoder() -> None:
    spec = formers.spec("transformer", vocab=9, dim=12, heads=3, layers=2, length=LENGTH, dropout=0.0)
    low = LowRank(rank=RANK, sharing="key-value")
    model = formers.build(spec.replace(encoder=spec.encoder.replace(attention=low))).double().eval()
    source, target = torch.randint(9, (2, 7)), torch.randint(9, (2, 5))
    real = torch.arange(7) < torch.tensor([[7], [4]])
    out = model(source, target, targets=target, source_mask=real)
    out.loss.backward()
    with torch.no_grad():
        close(model(source[1:, :4], target[1:]).logits, out.logits[1:].detach())
        step = model(source, target[:, :1], source_mask=real)
        close(model(None, target[:, 1:2], state=step.state).logits, out.logits[:, 1:2].detach())
    seen = model.inspect(source, target, source_mask=real)
    assert [tuple(a.shape) for a in (seen.encoder[0], seen.attention[0], seen.cross[0])] == [(2, 3, 7, 4), (2, 3, 5, 5), (2, 3, 5, 7)]

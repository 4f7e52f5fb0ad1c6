"""The adaptive softmax is a distribution over all words, its loss equals the plain one, and wrong options are errors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import formers
from formers import Model
from formers.core import IGNORED
from formers.heads import AdaptiveSoftmax, LanguageModel
from formers.heads.adaptive import chosen_cutoffs
from formers.inputs.tokens import AdaptiveEmbedding
from formers.training.config import Settings
from formers.training.optim import optimizer
from helpers import close, refused, sweep

VOCAB, TINY = 23, dict(dim=16, heads=2, layers=1, hidden=24, length=8)
HEADS = [
    AdaptiveSoftmax(cutoffs=()),
    AdaptiveSoftmax(cutoffs=(5, 9)),
    AdaptiveSoftmax(cutoffs=(5, 9), tied=False),
    AdaptiveSoftmax(cutoffs=(), division=2),
    AdaptiveSoftmax(cutoffs=(5, 9), division=2),
    AdaptiveSoftmax(cutoffs=(1, 2, 22), division=2, tied_projections="all"),
    AdaptiveSoftmax(cutoffs=(5, 9), division=4, tied_projections="none"),
    AdaptiveSoftmax(cutoffs=(5, 9), division=2, tied=False, tied_projections="all"),
]
SWEPT = sweep("head", HEADS)


def model_of(head: AdaptiveSoftmax, member: str = "decoder", **options: object) -> Model:
    torch.manual_seed(0)
    model = formers.build(formers.spec(member, vocab=VOCAB, **{**TINY, **options}).replace(head=head)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def oracle(model: Model, hidden: Tensor) -> Tensor:
    """log p of every word, one by one, from the equations."""
    head, read = model.head, model.embedding
    edges = head.edges
    count = len(edges) - 1
    untied = list(head.tables)
    if model.spec.head.division == 1:
        whole = untied[0] if untied else read.weight
        tables, states = [whole[a:b] for a, b in itertools.pairwise(edges)], [hidden] * count
    else:
        tables = untied or list(read.tables)
        own = {"all": 0, "tails": 1, "none": count}[model.spec.head.tied_projections]
        states = [hidden @ (head.projections[i] if i < own else read.projections[i]) for i in range(count)]
    scores = [states[i] @ tables[i].T * head.scale + head.bias[edges[i] : edges[i + 1]] for i in range(count)]
    first = scores[0].exp()
    clusters = (states[0] @ head.cluster.T + head.cluster_bias).exp() if count > 1 else hidden.new_zeros(*hidden.shape[:-1], 0)
    whole = first.sum(-1) + clusters.sum(-1)
    columns = [(first[..., w] / whole).log() for w in range(edges[1])]
    for i in range(1, count):
        inside = scores[i].exp()
        columns += [(clusters[..., i - 1] / whole * inside[..., w] / inside.sum(-1)).log() for w in range(inside.shape[-1])]
    return torch.stack(columns, dim=-1)


@SWEPT
@sweep("scale", ["input", "output"])
def test_values_and_gradients_are_those_of_the_equations(head: AdaptiveSoftmax, scale: str) -> None:
    model = model_of(head, embedding_scale=scale)
    tokens, targets = torch.randint(VOCAB, (2, 3, 8)).unbind(0)
    targets[0, :2] = IGNORED
    out = model(tokens, targets)
    assert out.logits is None
    log_p = model(tokens).logits
    close(log_p.exp().sum(-1), torch.ones(3, 8, dtype=torch.float64))
    wanted = oracle(model, out.hidden)
    close(log_p, wanted)
    nats = -wanted.gather(2, targets.clamp(min=0)[..., None])[..., 0] * (targets != IGNORED)
    close(model.head.token_losses(out.hidden, model.embedding, targets), nats)
    close(out.loss, nats.sum() / (targets != IGNORED).sum())
    weights = [w for name, w in model.named_parameters() if name.startswith(("head", "embedding"))]
    found = torch.autograd.grad(out.loss, weights, retain_graph=True)
    for slope, expected in zip(found, torch.autograd.grad(nats.sum() / (targets != IGNORED).sum(), weights), strict=True):
        close(slope, expected)


@SWEPT
def test_words_are_embedded_by_their_cluster(head: AdaptiveSoftmax) -> None:
    model = model_of(head)
    read = model.embedding
    tokens = torch.arange(VOCAB).view(1, -1)
    assert isinstance(read, AdaptiveEmbedding) == (head.division > 1)
    if isinstance(read, AdaptiveEmbedding):
        rows = [row @ read.projections[i].T for i, table in enumerate(read.tables) for row in table]
        assert [tuple(t.shape) for t in read.tables] == list(head.tables(VOCAB, 16))
    else:
        rows = list(read.weight)
    close(read(tokens)[0], torch.stack(rows) * 4.0)
    for wrong in (VOCAB, -1):
        with refused(f"token id {wrong}", f"0 ... {VOCAB - 1}"):
            read(torch.tensor([[1, wrong]]))


@SWEPT
def test_empty_clusters_and_no_targets_at_all(head: AdaptiveSoftmax) -> None:
    model = model_of(head)
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    model(tokens, torch.zeros_like(tokens)).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, f"{name} has no gradient, which several processes would wait for"
        assert weight.grad.isfinite().all(), name
    out = model(tokens, torch.full_like(tokens, IGNORED))
    assert out.loss.item() == 0.0
    out.loss.backward()


@SWEPT
def test_bf16_is_near_and_losses_are_float32(head: AdaptiveSoftmax) -> None:
    model = model_of(head).float()
    tokens, targets = torch.randint(VOCAB, (2, 2, 8)).unbind(0)
    exact = model(tokens, targets).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens, targets)
        log_p = model(tokens).logits
    assert out.loss.dtype == log_p.dtype == torch.float32
    assert abs(out.loss.item() - exact.item()) < 0.1
    assert (log_p.exp().sum(-1) - 1).abs().max() < 1e-3
    out.loss.backward()


def test_the_loss_of_each_token_is_the_same_for_a_plain_head():
    model = model_of(LanguageModel(tied=False, label_smoothing=0.1))
    tokens, targets = torch.randint(VOCAB, (2, 2, 8)).unbind(0)
    targets[0, 0] = IGNORED
    out = model.train()(tokens, targets)
    nats = model.head.token_losses(out.hidden, model.embedding, targets)
    close(nats, F.cross_entropy(out.logits.transpose(1, 2), targets, reduction="none"))
    assert nats[0, 0] == 0.0
    close(model.eval()(tokens, targets).loss, nats.sum() / 15)
    with refused("ClassHead", "one by one"):
        formers.create("encoder", vocab=VOCAB, classes=2, **TINY).head.token_losses(out.hidden, model.embedding, targets)


def test_padding_counts_for_nothing():
    model = model_of(HEADS[4])
    tokens, targets = torch.randint(VOCAB, (2, 1, 8)).unbind(0)
    mask = torch.tensor([[True] * 5 + [False] * 3])
    close(model(tokens, targets, mask=mask).loss, model(tokens[:, :5], targets[:, :5]).loss)


@pytest.mark.slow
def test_the_distribution_is_the_same_under_torch_compile():
    model = model_of(HEADS[4]).float()
    tokens, targets = torch.randint(VOCAB, (2, 2, 8)).unbind(0)
    compiled = torch.compile(model, backend="eager")
    close(compiled(tokens, targets).loss, model(tokens, targets).loss, 1e-5)


@pytest.mark.parametrize("member", ["transformer-xl", "sparse-transformer", "transformer"])
def test_any_member_that_writes_may_have_it_and_be_saved(member, tmp_path):
    model = model_of(HEADS[4], member, length=16).float().eval()
    tokens = torch.randint(VOCAB, (1, 8))
    inputs = (tokens, tokens) if member == "transformer" else (tokens,)
    model.save_pretrained(tmp_path)
    close(formers.load(tmp_path)(*inputs).logits, model(*inputs).logits, 0.0)
    if member != "transformer":
        written = formers.generate(model, tokens, max_new_tokens=3, temperature=0.0)
        for n in range(8, 11):
            assert written[0, n] == model(written[:, :n]).logits[0, -1].argmax()


def test_tables_are_not_decayed():
    model = model_of(HEADS[4])
    kept = {id(p) for p in optimizer(model, Settings(weight_decay=0.3)).param_groups[1]["params"]}
    assert all(id(table) in kept for table in model.embedding.tables)
    assert id(model.head.cluster) not in kept


def test_embeddings_begin_as_spread_as_plain_ones():
    torch.manual_seed(0)
    spec = formers.spec("decoder", vocab=4000, dim=128, heads=2, layers=1, cutoffs=[1000, 2000], division=4)
    x = formers.build(spec).embedding(torch.arange(4000)[None])
    for part in x[0].split([1000, 1000, 2000]):
        assert part.std().item() == pytest.approx(1.0, abs=0.1)


def test_cutoffs_are_chosen_by_the_number_of_words():
    assert chosen_cutoffs(267_735) == (20_000, 40_000, 200_000)
    assert chosen_cutoffs(793_471) == (60_000, 100_000, 640_000)
    assert chosen_cutoffs(33_278) == (2079, 8319)
    assert chosen_cutoffs(10_000) == chosen_cutoffs(256) == ()
    spec = formers.spec("transformer-xl", preset="wikitext103", vocab=267_735)
    assert spec.head == AdaptiveSoftmax(cutoffs=(20_000, 40_000, 200_000), division=1)
    assert formers.spec("decoder", vocab=33_278, cutoffs=[]).head == LanguageModel()
    assert formers.spec("decoder", vocab=33_278, label_smoothing=0.1).head == LanguageModel(label_smoothing=0.1)
    untied = formers.spec("transformer-xl", vocab=100, cutoffs=[10], division=2, tied=False).head
    assert untied == AdaptiveSoftmax(cutoffs=(10,), division=2, tied=False, tied_projections="none")


def test_what_cannot_be_is_refused():
    with refused("cutoffs=[9, 5]", "must be increasing"):
        AdaptiveSoftmax(cutoffs=(9, 5))
    with refused("cutoffs=[5, 5]", "must be increasing"):
        formers.spec("transformer-xl", vocab=VOCAB, cutoffs=[5, 5])
    with refused("cutoffs", "0"):
        formers.spec("transformer-xl", vocab=VOCAB, cutoffs=[0, 5])
    for last in (VOCAB, VOCAB + 1):
        with refused(f"cutoffs=[5, {last}]", f"vocab={VOCAB}"):
            formers.create("decoder", vocab=VOCAB, cutoffs=[5, last])
    with refused("division=0"):
        formers.spec("decoder", vocab=VOCAB, cutoffs=[5], division=0)
    with refused("division=8", "dim=16", "no width"):
        formers.create("decoder", vocab=VOCAB, cutoffs=[5, 9], division=8, **TINY)
    with refused("label_smoothing=0.1", "cutoffs=[5]"):
        formers.spec("decoder", vocab=VOCAB, cutoffs=[5], label_smoothing=0.1)
    with refused("AdaptiveSoftmax", "features=4"):
        formers.build(formers.spec("encoder", features=4, classes=2, **TINY).replace(head=HEADS[1]))
    with refused("a language model over Full"):
        formers.build(formers.spec("encoder", vocab=VOCAB, **TINY).replace(head=HEADS[1]))
    model = model_of(HEADS[4])
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    for wrong in (VOCAB, -1):
        with refused(f"target {wrong} ", f"0 ... {VOCAB - 1}"):
            model(tokens, torch.tensor([[0, 1, 2, wrong]]))
    with refused("targets are", "(1, 4)"):
        model(tokens, tokens[:, :3])


def test_a_step_costs_what_zipf_s_law_says_it_does():
    from formers.inspect.measure.costs import Costs

    sizes = dict(vocab=30_000, dim=64, heads=2, layers=1, hidden=64, length=64)
    full, adaptive = (Costs(formers.spec("decoder", **sizes, cutoffs=c)).at(64).training.forward.flops["head"] for c in ([], [2000, 8000]))
    shares = [math.log(8000 / 2000) / math.log(30_000), math.log(30_000 / 8000) / math.log(30_000)]
    rows = [round(64 * share) for share in shares]
    assert adaptive == 2 * 64 * (64 * 2002 + rows[0] * 6000 + rows[1] * 22_000)
    assert adaptive < full / 3

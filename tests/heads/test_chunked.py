"""The chunked loss equals the plain head's, values and gradients, and never stores the logits of all positions."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import formers
from formers import FormersError, Model
from formers.core import IGNORED
from formers.evaluation.metrics import LastWordMetrics, MaskedMetrics
from formers.heads import AdaptiveSoftmax, Auxiliary, LanguageModel, MaskedLM
from formers.heads.base import cross_entropy
from formers.heads.chunked import chunked_cross_entropy
from formers.inspect.measure.costs import Costs
from helpers import Largest, close, refused, sweep

VOCAB, TINY = 23, dict(dim=16, heads=2, layers=1, hidden=24, length=16)
HEADS = [
    LanguageModel(),
    LanguageModel(label_smoothing=0.2),
    LanguageModel(tied=False),
    LanguageModel(tied=False, label_smoothing=0.2),
    LanguageModel(bias=True, label_smoothing=0.2),
    LanguageModel(tied=False, bias=True),
    MaskedLM(label_smoothing=0.1),
    Auxiliary(),
]


def pair(head: LanguageModel, chunk: int, **options: object) -> tuple[Model, Model]:
    """A model with a head, and one of the same weights whose head has a chunk, in float64."""
    member = "decoder" if head.generates else "encoder"
    spec = formers.spec(member, vocab=VOCAB, **{**TINY, **options}, dropout=0.0).replace(head=head)
    plain = formers.build(spec).double()
    with torch.no_grad():
        for weight in plain.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    chunked = formers.build(spec.replace(head=head.replace(chunk=chunk))).double()
    chunked.load_state_dict(plain.state_dict())
    return plain, chunked


def batch(rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Padded rows with some targets that do not count."""
    tokens, targets = torch.randint(VOCAB, (rows, length)), torch.randint(VOCAB, (rows, length))
    targets[0, ::3] = IGNORED
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[1, 5:], mask[2, :4] = False, False
    return {"tokens": tokens, "targets": targets, "mask": mask}


def slopes(model: Model, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))


@sweep("training", [True, False])
@sweep("head", HEADS)
def test_the_loss_and_every_gradient_are_the_plain_heads(head: LanguageModel, training: bool) -> None:
    for chunk, scale in ((1, "input"), (4, "output"), (27, "none"), (100, "output")):
        plain, chunked = (model.train(training) for model in pair(head, chunk, embedding_scale=scale))
        given = batch()
        wanted, found = plain(**given), chunked(**given)
        assert found.logits is None
        assert found.losses.keys() == wanted.losses.keys()
        for name, term in wanted.losses.items():
            close(found.losses[name], term)
        for slope, other in zip(slopes(chunked, found.loss), slopes(plain, wanted.loss), strict=True):
            close(slope, other)
        with torch.no_grad():
            close(chunked(**given).loss, wanted.loss.detach())
            close(chunked(given["tokens"]).logits, plain(given["tokens"]).logits)
            nats = [m.head.token_losses(wanted.hidden.detach(), m.embedding, given["targets"]) for m in (chunked, plain)]
            close(*nats)
        hidden = wanted.hidden.detach().requires_grad_()  # a loss of each target that somebody goes on with
        nats = [m.head.token_losses(hidden, m.embedding, given["targets"]) for m in (chunked, plain)]
        each = [torch.autograd.grad((n * torch.arange(n.numel()).view(n.shape)).sum(), hidden)[0] for n in nats]
        close(*each)


def test_an_encoder_decoder_and_a_saved_model_have_it(tmp_path) -> None:
    spec = formers.spec("transformer", vocab=VOCAB, **TINY, dropout=0.0)
    plain = formers.build(spec)
    chunked = formers.build(spec.replace(head=spec.head.replace(chunk=5)))
    chunked.load_state_dict(plain.state_dict())
    source, target = torch.randint(VOCAB, (2, 6)), torch.randint(VOCAB, (2, 8))
    close(chunked(source, target[:, :-1], targets=target[:, 1:]).loss, plain(source, target[:, :-1], targets=target[:, 1:]).loss, 1e-6)
    chunked.save_pretrained(tmp_path)
    assert formers.load(tmp_path).spec.head.chunk == 5
    assert Auxiliary(chunk=7).deployed() == LanguageModel(chunk=7)


def test_where_no_target_counts_the_loss_and_its_gradients_are_0() -> None:
    _, chunked = pair(LanguageModel(label_smoothing=0.1), 4)
    given = batch()
    loss = chunked(given["tokens"], targets=torch.full_like(given["targets"], IGNORED)).loss
    assert loss.item() == 0
    assert all(not slope.any() for slope in slopes(chunked, loss))


@sweep("wrong", [torch.full((3, 9), VOCAB), torch.full((3, 9), -1), torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 9)])
@sweep("grad", [True, False])
def test_bad_targets_are_refused_as_ever(wrong: Tensor, grad: bool) -> None:
    said = []
    for model in pair(LanguageModel(), 4):
        with torch.set_grad_enabled(grad), pytest.raises(FormersError) as caught:
            model(batch()["tokens"], targets=wrong)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_logits_of_all_positions_are_never_made() -> None:
    """Neither forward nor backward, neither in training nor in evaluation; the same is seen in the peak."""
    n, vocab, chunk = 256, 1024, 32
    peaks = {}
    for size in (None, chunk):
        model = formers.create("decoder", vocab=vocab, dim=16, heads=2, layers=1, length=n, loss_chunk=size)
        tokens = torch.randint(vocab, (1, n + 1))
        with Largest() as live:
            model(tokens[:, :-1], targets=tokens[:, 1:]).loss.backward()
        peaks[size] = live.peak
        if size is None:
            assert live.largest == 4 * n * vocab
            continue
        assert live.largest <= 4 * vocab * max(chunk, 16)
        with torch.no_grad(), Largest() as live:
            hidden = model(tokens[:, :-1], targets=tokens[:, 1:]).hidden
            model.head.token_losses(hidden, model.embedding, tokens[:, 1:])
        assert live.largest <= 4 * vocab * max(chunk, 16)
        hidden.requires_grad_()
        with Largest() as live:
            model.head.token_losses(hidden, model.embedding, tokens[:, 1:]).sum().backward()
        assert live.largest <= 4 * vocab * max(chunk, 16)
    assert peaks[chunk] < peaks[None] / 3


def test_an_explanation_knows() -> None:
    plain, chunked = (Costs(formers.spec("decoder", vocab=256, layers=1, loss_chunk=size)).at(2048) for size in (None, 128))
    logits = 4 * 2048 * 256
    assert plain.training.peak - chunked.training.peak > logits
    assert plain.training.activations - chunked.training.activations > logits
    assert chunked.training.total == plain.training.total, "nothing is computed twice"
    assert chunked.forward.flops == plain.forward.flops
    assert chunked.forward.executors == plain.forward.executors


@sweep("auto", [False, True])
def test_half_precision_is_no_less_precise_than_the_plain_head(auto: bool) -> None:
    exact_hidden, exact_weight = torch.randn(300, 16, dtype=torch.float64), torch.randn(VOCAB, 16, dtype=torch.float64)
    targets = torch.randint(VOCAB, (300,))
    off = []
    for chunk in (None, 16):
        kind = torch.float32 if auto else torch.bfloat16
        hidden, weight = (t.to(kind).requires_grad_() for t in (exact_hidden, exact_weight))
        truth = [t.detach().bfloat16().double().requires_grad_() for t in (hidden, weight)]
        wanted = torch.autograd.grad(cross_entropy(F.linear(*truth), targets), truth)
        with torch.autocast("cpu", torch.bfloat16) if auto else nullcontext():
            if chunk is None:
                loss = cross_entropy(F.linear(hidden, weight), targets)
            else:
                loss = chunked_cross_entropy(hidden, weight, targets, 1.0, 0.0, chunk)
        assert loss.dtype == torch.float32
        found = torch.autograd.grad(loss, [hidden, weight])
        assert [t.dtype for t in found] == [kind] * 2
        off.append([(a.double() - b).norm() / b.norm() for a, b in zip(found, wanted, strict=True)])
    for plain, chunked in zip(*off, strict=True):
        assert chunked < 1.1 * plain
        assert chunked < 0.01


def test_autocast_keeps_no_copy_of_the_table_without_gradients() -> None:
    hidden, weight = torch.randn(6, 8), torch.randn(VOCAB, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        chunked_cross_entropy(hidden, weight, torch.zeros(6, dtype=torch.long), 1.0, 0.0, 4)
        later = F.linear(hidden, weight)
    assert torch.autograd.grad(later.sum(), weight)[0].any()


def test_a_scaled_loss_of_half_precision_has_gradients() -> None:
    """As fp16 is trained: errors are not divided by the count before they are scaled up again."""
    hidden, weight = (torch.randn(n, 8).half().requires_grad_() for n in (4096, VOCAB))
    loss = chunked_cross_entropy(hidden, weight, torch.randint(VOCAB, (4096,)), 1.0, 0.0, 64)
    slope = torch.autograd.grad(loss * 2.0**14, hidden)[0]
    assert slope.isfinite().all()
    assert (slope != 0).float().mean() > 0.99


def test_gradients_can_be_asked_for_one_by_one_and_twice() -> None:
    hidden, weight = torch.randn(9, 8, dtype=torch.float64), torch.randn(VOCAB, 8, dtype=torch.float64)
    targets = torch.randint(VOCAB, (9,))
    for which in ((True, False), (False, True), (True, True)):
        h, w = (t.clone().requires_grad_(on) for t, on in zip((hidden, weight), which, strict=True))
        wanted_by = [t for t in (h, w) if t.requires_grad]
        wanted = torch.autograd.grad(cross_entropy(F.linear(h, w) * 0.5, targets), wanted_by)
        loss = chunked_cross_entropy(h, w, targets, 0.5, 0.0, 4)
        for keep in (True, False):
            for slope, other in zip(torch.autograd.grad(loss, wanted_by, retain_graph=keep), wanted, strict=True):
                close(slope, other)
    assert not chunked_cross_entropy(hidden, weight, targets, 1.0, 0.0, 4).requires_grad


def test_compiled_it_is_one_graph() -> None:
    torch._dynamo.reset()
    given = [torch.randn(n, 8, dtype=torch.float64, requires_grad=True) for n in (9, VOCAB)]
    targets = torch.randint(VOCAB, (9,)).index_fill(0, torch.tensor([2, 5]), IGNORED)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return chunked_cross_entropy(hidden, weight, targets, 0.5, 0.1, 4) * 3

    wanted, found = loss(*given), torch.compile(loss, fullgraph=True, backend="aot_eager")(*given)
    close(found, wanted)
    for slope, other in zip(torch.autograd.grad(found, given), torch.autograd.grad(wanted, given), strict=True):
        close(slope, other)


def test_scores_find_the_likeliest_tokens_without_logits() -> None:
    given = batch()
    for head, score in ((MaskedLM(), lambda m: MaskedMetrics(m, None)), (LanguageModel(), LastWordMetrics)):
        sums = []
        for model in pair(head, 4):
            model.eval()
            evaluated = score(model)
            with torch.no_grad():
                best = model(given["tokens"], mask=given["mask"]).logits.argmax(dim=-1)
                targets = torch.where(torch.rand(best.shape, generator=torch.Generator().manual_seed(0)) < 0.7, best, IGNORED)
                targets[1] = (targets[1] + 1).where(targets[1] != IGNORED, IGNORED) % VOCAB
                targets = targets.masked_fill(~given["mask"], IGNORED)
                evaluated.update(targets, model(given["tokens"], targets=targets, mask=given["mask"]))
            sums.append(evaluated.sums)
        assert sums[0] == pytest.approx(sums[1])
        assert sums[0]["right"] > 0


def test_the_recipe_offers_it_and_refuses_what_has_no_meaning() -> None:
    assert formers.spec("decoder", vocab=256, loss_chunk=512).head == LanguageModel(chunk=512)
    assert isinstance(formers.spec("decoder", vocab=50_000).head, AdaptiveSoftmax)
    assert formers.spec("decoder", vocab=50_000, loss_chunk=512).head == LanguageModel(chunk=512)
    with refused("loss_chunk=512", "cutoffs=[2000]"):
        formers.spec("decoder", vocab=50_000, loss_chunk=512, cutoffs=(2000,))
    with refused("loss_chunk=512", "division=2"):
        formers.spec("decoder", vocab=50_000, loss_chunk=512, division=2)
    with refused("loss_chunk"):
        formers.spec("decoder", vocab=256, loss_chunk=0)
    first = formers.create("decoder", vocab=256, **TINY, loss_chunk=4)
    tokens = torch.randint(256, (2, 17))
    assert abs(first(tokens[:, :-1], targets=tokens[:, 1:]).loss.item() - math.log(256)) < 2

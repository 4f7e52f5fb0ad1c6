"""Parts in a stack: they may add losses and change scores, and padding is never used as tokens."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import formers
from formers.heads import Classify, NoHead
from formers.patterns import Causal
from formers.score.base import ScoreModule
from helpers import close, refused, sweep

SMALL = {"dim": 16, "heads": 2, "layers": 2, "length": 32}


class Spy(nn.Module):
    """A sublayer that keeps what it was given and adds a loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, []

    def forward(self, x, context, past, step):
        self.seen.append((x, context))
        context.losses[f"spy {step}"] = x.square().mean()
        return self.inner(x, context, past, step)


class Steep(ScoreModule):
    """A score with one parameter: nearer keys are preferred, and queries are doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x, q, keys, context, scale, step) -> tuple[Tensor, Tensor]:
        back = context.positions.tensor(q.device)[..., :, None] - keys.tensor(q.device)[..., None, :]
        return 2 * q, (-self.slope * back)[None, None]


def spied() -> tuple[formers.Model, list[Spy]]:
    model = formers.create("decoder", vocab=11, **SMALL).double()
    spies = []
    for block in model.stack.depth.blocks:
        block.feedforward = Spy(block.feedforward)
        spies.append(block.feedforward)
    return model, spies


def test_losses_that_sublayers_add_are_named_and_summed():
    model, _ = spied()
    tokens = torch.randint(11, (2, 5))
    out = model(tokens, targets=tokens)
    assert set(out.losses) == {"cross_entropy", "spy 0", "spy 1"}
    close(out.loss, sum(out.losses.values()))
    assert model(tokens).losses == {}


def test_a_masked_continuation_gives_sublayers_real_tokens_first_and_zeros_behind():
    model, spies = spied()
    mask = torch.tensor([[True, False, True], [False, False, True]])
    with torch.no_grad():
        state = model(torch.randint(11, (2, 4))).state
        model(torch.randint(11, (2, 3)), state=state, mask=mask)
    _, context = spies[0].seen[-1]
    assert context.valid.tolist() == [[True, True, False], [True, False, False]]
    assert context.positions.index.tolist() == [[4, 5, -1], [4, -1, -1]]


def test_a_score_changes_queries_and_scores_the_same_way_in_one_pass_and_in_segments():
    model = formers.create("decoder", vocab=11, **SMALL).double().requires_grad_(False)
    plain = model(torch.arange(8)[None]).logits
    for block in model.stack.depth.blocks:
        block.attention.score = Steep()
    tokens = torch.randint(11, (2, 12))
    whole = model(tokens, targets=tokens)
    assert not model(torch.arange(8)[None]).logits.allclose(plain)
    state, loss = model.initial_state(2), 0.0
    for start in range(0, 12, 3):
        out = model(tokens[:, start : start + 3], targets=tokens[:, start : start + 3], state=state)
        state, loss = out.state, loss + out.loss / 4
    close(loss, whole.loss)
    loss.backward()
    assert all(block.attention.score.slope.grad.abs() > 0 for block in model.stack.depth.blocks)


def test_what_stands_in_padding_does_not_matter_even_nan():
    model = formers.create("encoder", features=3, classes=2, **SMALL).double().eval()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    mask = torch.tensor([[True] * 6, [False, True, True, False, True, False]])
    broken = x.masked_fill(~mask[..., None], float("nan"))
    close(model(broken, mask=mask).logits, model(x, mask=mask).logits)


def test_wrappers_find_the_tensors_of_an_output():
    model = formers.create("decoder", vocab=11, **SMALL)
    tokens = torch.randint(11, (1, 4))
    out = model(tokens, targets=tokens)
    leaves = tree_leaves(out)
    assert any(leaf is out.loss for leaf in leaves)
    assert any(leaf is out.logits for leaf in leaves)


@sweep("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_a_model_in_half_precision_is_that_of_its_logits(dtype):
    from formers.heads.base import cross_entropy

    logits, targets = (torch.randn(4096, 64) * 3).to(dtype), torch.randint(64, (4096,))
    wanted = nn.functional.cross_entropy(logits.double(), targets)
    close(cross_entropy(logits, targets).double(), wanted, 1e-4)


def test_a_state_survives_a_change_of_precision():
    model = formers.create("decoder", vocab=11, **SMALL).eval()
    tokens = torch.randint(11, (2, 9))
    with torch.no_grad():
        state = model(tokens[:, :5]).state
        exact = copy.deepcopy(model).double()
        close(exact(tokens[:, 5:], state=state).logits, exact(tokens).logits[:, 5:], 1e-5)


def test_heads_that_cannot_answer_say_so():
    spec = formers.spec("decoder", vocab=11, **SMALL)
    judge = formers.build(spec.replace(head=Classify(classes=3)))
    with refused("sees all tokens at once"):
        judge.initial_state(2)
    with torch.no_grad():
        assert judge(torch.randint(11, (2, 5))).state is None
    with refused("no loss"):
        formers.build(spec.replace(head=NoHead(), pattern=Causal()))(torch.zeros(1, 2, dtype=torch.long), targets=torch.zeros(1, 2).long())


def test_what_is_no_tensor_state_or_spec_is_refused():
    model = formers.create("decoder", vocab=11, **SMALL)
    with refused("list"):
        model([[1, 2]])
    with refused("str"):
        model(torch.zeros(1, 2, dtype=torch.long), state="s")
    with refused("'decoder'", "formers.create"):
        formers.build("decoder")
    with refused("list"):
        formers.generate(model, [1, 2])
    with refused("list"):
        formers.attend([1], torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    with refused("'causal'"):
        formers.attend(*torch.zeros(3, 1, 1, 2, 2), "causal")
    with refused("dropout=1.5"):
        formers.attend(*torch.zeros(3, 1, 1, 2, 2), dropout=1.5)

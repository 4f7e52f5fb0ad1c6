"""Auxiliary losses: the equations, their schedules, which weights they train, and that deployed models do not contain them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import formers
from formers.heads import Auxiliary, LanguageModel
from formers.heads.auxiliary import future
from formers.memory import NoMemory
from helpers import close, refused, sweep

LAYERS = 4
TINY = {"vocab": 11, "dim": 16, "heads": 2, "layers": LAYERS, "length": 12}
tokens = torch.randint(11, (3, 9))


def made(head: Auxiliary = Auxiliary(), member: str = "decoder", **options: object) -> formers.Model:
    torch.manual_seed(1)
    return formers.build(formers.spec(member, **{**TINY, **options}).replace(head=head)).double().train()


def step(model: formers.Model, progress: float = 0.0, **more: object) -> formers.Output:
    model.zero_grad()
    out = model(tokens[:, :-1], targets=tokens[:, 1:], progress=progress, **more)
    out.loss.backward()
    return out


def by_hand(model: formers.Model, weights: list[float], targets: int = 2) -> dict[str, torch.Tensor]:
    """The auxiliary losses by the equations, from the outputs of blocks as hooks see them."""
    seen: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda *call: seen.append(call[2][0])) for block in model.stack.depth.blocks]
    model(tokens[:, :-1])
    for hook in hooks:
        hook.remove()

    def loss(layer: int, target: int) -> torch.Tensor:
        x = model.stack.final(seen[layer - 1])[:, : 9 - target]
        logits = x @ model.auxiliary.classifiers[f"layer{layer}_target{target}"].weight.T
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, target:].flatten(), reduction="sum") / (3 * 8)

    def all_of(layer: int, first: int) -> torch.Tensor:
        return sum((1.0 if k == 1 else 0.5) * loss(layer, k) for k in range(first, targets + 1))

    return {"future": all_of(LAYERS, 2), "intermediate": sum(w * all_of(t + 1, 1) for t, w in enumerate(weights))}


@sweep("norm", ["pre", "post"])
@sweep(
    ("intermediate", "progress", "weights"),
    [
        ("cut-off", 0.0, [1, 1, 1]),
        ("cut-off", 0.2, [0, 1, 1]),
        ("cut-off", 0.25, [0, 0, 1]),
        ("decay", 0.0, [1, 1, 1]),
        ("decay", 0.2, [0, 0.2, 1 - 1.6 / 3]),
        ("constant", 0.9, [1, 1, 1]),
    ],
)
def test_losses_are_the_equations(norm, intermediate, progress, weights):
    model = made(Auxiliary(intermediate=intermediate), norm=norm)
    out, wanted = step(model, progress), by_hand(model, weights)
    assert list(out.losses) == ["cross_entropy", "future", "intermediate"]
    for name, value in wanted.items():
        close(out.losses[name], value)
    close(out.loss, sum(out.losses.values()))
    close(out.losses["cross_entropy"], F.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten()))


def test_more_targets_are_further_on():
    model = made(Auxiliary(targets=4))
    out, wanted = step(model), by_hand(model, [1, 1, 1], targets=4)
    for name, value in wanted.items():
        close(out.losses[name], value)


@sweep("progress", [0.0, 0.1, 0.125, 0.2, 0.25, 0.3, 0.375, 0.4, 0.5, 1.0])
def test_a_layer_s_classifiers_learn_until_its_end_and_no_longer(progress):
    model = made()
    out = step(model, progress)
    for name, weight in model.auxiliary.named_parameters():
        layer = int(name.split("layer")[1][0])
        learns = layer == LAYERS or progress < layer / (2 * LAYERS)
        assert (weight.grad is not None) == learns, name
        assert not learns or weight.grad.any(), name
    assert ("intermediate" in out.losses) == (progress < 3 / 8)


def test_behind_half_of_the_time_only_the_last_layer_s_losses_are_left():
    both, alone = made(), made(Auxiliary(intermediate="none"))
    alone.load_state_dict({name: value for name, value in both.state_dict().items() if name in alone.state_dict()})
    late, wanted = step(both, 0.5), step(alone)
    assert late.loss.equal(wanted.loss)
    assert list(late.losses) == ["cross_entropy", "future"]
    slopes = {name: p.grad for name, p in both.named_parameters()}
    for name, weight in alone.named_parameters():
        assert slopes[name].equal(weight.grad), name
    only = step(made(Auxiliary(targets=1)), 0.5)
    assert list(only.losses) == ["cross_entropy"]


def test_without_progress_training_has_just_begun_and_evaluation_computes_nothing_else():
    model, calls = made(), []
    assert model(tokens[:, :-1], targets=tokens[:, 1:]).loss.equal(step(model, 0.0).loss)
    model.auxiliary.register_forward_hook(lambda *_: calls.append(1))
    out = model.eval()(tokens[:, :-1], targets=tokens[:, 1:])
    assert list(out.losses) == ["cross_entropy"]
    assert out.loss.equal(out.losses["cross_entropy"])
    assert not calls


def test_the_other_weights_start_as_without():
    torch.manual_seed(1)
    plain = formers.create("decoder", **TINY).double().state_dict()
    found = made().state_dict()
    assert all(found[name].equal(value) for name, value in plain.items())


def test_future_targets_end_with_the_row_and_skip_padding():
    targets = torch.tensor([[1, 2, 3, 4]])
    assert future(targets, 1, None).tolist() == [[2, 3, 4, -100]]
    assert future(targets, 5, None).tolist() == [[-100] * 4]
    assert future(targets, 0, None).equal(targets)
    assert future(targets, 1, torch.tensor([[True, False, True, True]])).tolist() == [[3, -100, 4, -100]]
    assert future(targets, 1, torch.tensor([[False, True, True, False]])).tolist() == [[-100, 3, -100, -100]]


def test_a_padded_row_has_the_losses_of_the_row_alone():
    model, mask = made(), torch.tensor([[False, True, True, False, True, True, False, False]])
    padded = model(tokens[:1, :-1], targets=tokens[:1, 1:], mask=mask)
    alone = model(tokens[:1, :-1][mask][None], targets=tokens[:1, 1:][mask][None])
    for name, value in alone.losses.items():
        close(padded.losses[name], value)


def test_pieces_of_a_batch_add_up_where_rows_differ_in_length():
    model, mask = made(), torch.tensor([[True] * 8, [True] * 3 + [False] * 5, [True] + [False] * 7])
    whole = model(tokens[:, :-1], targets=tokens[:, 1:], mask=mask)
    rows = [model(tokens[i : i + 1, :-1], targets=tokens[i : i + 1, 1:], mask=mask[i : i + 1]) for i in range(3)]
    for name, value in whole.losses.items():
        close(sum(row.losses[name] * n / 12 for row, n in zip(rows, (8, 3, 1), strict=True)), value)


@pytest.mark.parametrize("member", ["decoder", "transformer-xl", "sparse-transformer"])
def test_other_members_may_use_it(member, tmp_path):
    model = made(member=member)
    carried = {} if isinstance(model.spec.memory, NoMemory) else {"state": model.initial_state(3)}
    out = step(model, 0.2, **carried)
    assert list(out.losses) == ["cross_entropy", "future", "intermediate"]
    model.save_pretrained(tmp_path)
    assert isinstance(formers.load(tmp_path).spec.head, LanguageModel)


def test_an_encoder_decoder_may_use_it():
    torch.manual_seed(0)
    model = formers.build(formers.spec("transformer", **TINY).replace(head=Auxiliary())).train()
    out = model(tokens, tokens[:, :-1], targets=tokens[:, 1:], progress=0.2)
    out.loss.backward()
    assert list(out.losses) == ["cross_entropy", "future", "intermediate"]
    assert model.auxiliary.classifiers["layer2_target1"].weight.grad.any()


def test_checkpointing_changes_nothing():
    model = made(dropout=0.2)
    found = []
    for on in (False, True):
        model.checkpointing(on)
        torch.manual_seed(3)
        found.append((step(model, 0.2).loss, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    assert found[0][0].equal(found[1][0])
    assert all((a is None and b is None) or a.equal(b) for a, b in zip(found[0][1], found[1][1], strict=True))
    assert any(a is None for a in found[0][1])


@pytest.mark.slow
def test_one_compiled_program_has_all_weights_of_the_schedule():
    from torch._dynamo.testing import CompileCounterWithBackend  # which takes seconds to load

    torch._dynamo.reset()
    model, counts = made(), CompileCounterWithBackend("aot_eager")

    def slopes(one) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        found = []
        for progress in (0.05, 0.1, 0.13, 0.21, 0.26, 0.33, 0.37, 0.41, 0.6, 0.8):
            loss = step(one, progress).loss.detach()
            found.append((loss, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]))
        return found

    wanted = slopes(model)
    for (loss, found), (right, others) in zip(slopes(torch.compile(model, fullgraph=True, backend=counts)), wanted, strict=True):
        close(loss, right)
        for one, other in zip(found, others, strict=True):
            close(one, other)
    assert counts.frame_count <= 4, "not one for each weight of the schedule"


def test_what_only_training_needs_is_not_saved_and_is_not_missed(tmp_path):
    model = made().eval()
    wanted = model(tokens).logits
    model.save_pretrained(tmp_path)
    assert not any("auxiliary" in name for name in load_file(tmp_path / "model.safetensors"))
    assert json.loads((tmp_path / "config.json").read_text())["spec"]["head"]["kind"] == "LanguageModel"
    loaded = formers.load(tmp_path)
    assert loaded(tokens).logits.equal(wanted)
    assert model.auxiliary is not None, "saving takes nothing away"
    assert loaded.parameter_count() == model.parameter_count(training=False) < model.parameter_count()
    model.deploy()
    assert model(tokens).logits.equal(wanted)
    assert model.spec == loaded.spec
    assert model.parameter_count() == loaded.parameter_count()


def test_nothing_to_add_is_refused():
    with refused("intermediate=none and targets=1", "LanguageModel"):
        Auxiliary(intermediate="none", targets=1)
    with refused("targets"):
        Auxiliary(targets=0)

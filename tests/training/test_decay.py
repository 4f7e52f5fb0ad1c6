"""Which parameters weight decay applies to, for every specimen of every member, and that older checkpoints still fit."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import formers
from contracts.specimens import SPECIMENS
from formers.training import checkpoint
from formers.training.config import Settings
from formers.training.optim import optimizer

# What has two or more dimensions and is a table of vectors, or a bias: written down name by name, and not read from the modules.
TABLES = (
    r"(source_)?embedding\.values",  # channel values of images
    r"label_embedding\.weight",
    r"(source_)?embedding\.(weight|mask|tables\.\d+)",  # tokens, the places of a fact's words, clusters of tokens
    r"(stack|encoder)\.extra",  # vectors before the tokens
    r"(stack|encoder)\.position\.(table|tables|row|column|channel|steps)",
    r"(stack|encoder)\.common_score\.(position_keys|u_bias|v_bias)",
    r"(stack|encoder)\.depth\.blocks\.\d+\.attention\.score\.(position\.position_keys|biases\.[uv]_bias)",
)


def decayed(model: nn.Module) -> set[str]:
    """The names of the parameters that the optimiser decays."""
    groups = optimizer(model, Settings(weight_decay=0.3)).param_groups
    rates = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    return {name for name, p in model.named_parameters() if rates[id(p)] == 0.3}


def test_matrices_decay_and_tables_do_not() -> None:
    met = set()
    for specimen in SPECIMENS:
        model = formers.build(specimen.spec)
        found, wanted = decayed(model), set()
        for name, parameter in model.named_parameters():
            tables = [rule for rule in TABLES if re.fullmatch(rule, name)]
            met.update(tables)
            if parameter.dim() >= 2 and not tables:
                wanted.add(name)
        assert found == wanted, f"{specimen}: {sorted(found ^ wanted)}"
    assert met == set(TABLES), "a rule that no specimen meets says nothing"


def test_extra_vectors_are_spared_and_maps_of_inputs_are_not() -> None:
    sizes = {"dim": 16, "heads": 2, "layers": 1, "length": 16}
    assert "stack.extra" not in decayed(formers.create("bigbird", vocab=11, block=2, window=1, extra=2, **sizes))
    assert "embedding.into.weight" in decayed(formers.create("encoder", features=4, classes=3, **sizes))
    words = decayed(formers.create("transformer-xl", vocab=11, cutoffs=(4, 7), division=2, **sizes))
    assert {f"embedding.projections.{i}" for i in range(3)} <= words
    assert not any(name.startswith("embedding.tables") for name in words)


class Odd(nn.Module):
    """A module from outside, whose names say nothing about what its parameters are."""

    undecayed = ("x", "many")

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(2, 2))
        self.bias_of_position_embedding = nn.Parameter(torch.ones(2, 2))
        self.many = nn.ParameterList([torch.ones(2, 2)])


def test_names_of_parameters_decide_nothing() -> None:
    assert decayed(nn.Sequential(Odd(), Odd())) == {"0.bias_of_position_embedding", "1.bias_of_position_embedding"}


def in_older_groups(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with its parameters in the groups, and so in the order, that releases before this rule had."""
    words = ("embedding", "position", "bias")
    older = [p for n, p in model.named_parameters() if p.dim() >= 2 and not any(word in n for word in words)]
    chosen = {id(p) for p in older}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return torch.optim.AdamW([{"params": older, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], fused=True)


def test_a_checkpoint_of_the_older_groups_is_restored_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = formers.create("bigbird", features=4, classes=3, dim=16, heads=2, layers=1, length=16, block=2, window=1, extra=2)
    before = in_older_groups(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before.step()
    after = optimizer(model, Settings())
    order = [[id(p) for group in each.param_groups for p in group["params"]] for each in (before, after)]
    assert order[0] != order[1], "the groups of this member have changed, or the test shows nothing"
    (tmp_path / checkpoint.OPTIMIZER).write_bytes(checkpoint._optimizer(loop(model, before)))
    checkpoint._restore_optimizer(tmp_path, loop(model, after))
    for parameter in model.parameters():
        one, other = (moments(each, parameter) for each in (before, after))
        assert one.keys() == other.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(one[name], other[name]) for name in one)


def loop(model: nn.Module, made: torch.optim.Optimizer) -> Any:
    """As much of a training loop as its optimiser's file asks for."""
    return SimpleNamespace(model=model, optimizer=made)


def moments(made: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimiser keeps of a parameter."""
    kept: dict[str, Tensor] = made.state[parameter]
    return kept

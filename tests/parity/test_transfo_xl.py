"""Ours against the Transformer-XL of `transformers` 4.57, by copied weights, from what record_transfo_xl.py has recorded of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import formers
from formers import Model, Spec
from formers.core import HiddenMemory
from formers.heads import AdaptiveSoftmax
from helpers import close, sweep

RECORDED = Path(__file__).parent / "recorded"
FACTS = json.loads((RECORDED / "transfo_xl.json").read_text())
ALL = load_file(RECORDED / "transfo_xl.safetensors")


def spec_of(theirs: dict[str, Any]) -> Spec:
    """Our spec of their configuration."""
    spec = formers.spec(
        "transformer-xl", vocab=theirs["vocab_size"], dim=theirs["d_model"], heads=theirs["n_head"], head_dim=theirs["d_head"],
        layers=theirs["n_layer"], hidden=theirs["d_inner"], length=FACTS["segment"], memory=theirs["mem_len"],
        clamp=theirs["clamp_len"] if theirs["clamp_len"] > 0 else None, same_length=theirs["same_length"], untied=theirs["untie_r"],
        norm="post", activation="relu",
    )  # fmt: skip
    share = theirs.get("proj_share_all_but_first", True)
    tied = "all" if "tie_projs" in theirs else "tails" if share else "none"
    return spec.replace(head=AdaptiveSoftmax(cutoffs=theirs["cutoffs"], division=theirs["div_val"], tied_projections=tied))


def named(model: Model, theirs: dict[str, Any]) -> dict[str, Tensor]:
    """Our parameters by the names of theirs; where theirs has several for one of ours, these in their order, with a space between."""
    ours = dict(model.named_parameters())
    pairs = {}
    for i in range(theirs["n_layer"]):
        mine, layer = f"stack.depth.blocks.{i}", f"transformer.layers.{i}"
        pairs[f"{layer}.dec_attn.qkv_net.weight"] = f"{mine}.attention.qkv.weight"
        pairs[f"{layer}.dec_attn.o_net.weight"] = f"{mine}.attention.out.weight"
        pairs[f"{layer}.dec_attn.r_net.weight"] = f"{mine}.attention.score.r.weight"
        for kind in ("weight", "bias"):
            pairs[f"{layer}.dec_attn.layer_norm.{kind}"] = f"{mine}.residual_attention.norm.{kind}"
            pairs[f"{layer}.pos_ff.layer_norm.{kind}"] = f"{mine}.residual_feedforward.norm.{kind}"
            pairs[f"{layer}.pos_ff.CoreNet.0.{kind}"] = f"{mine}.feedforward.into.{kind}"
            pairs[f"{layer}.pos_ff.CoreNet.3.{kind}"] = f"{mine}.feedforward.out.{kind}"
        if theirs["untie_r"]:
            pairs[f"{layer}.dec_attn.r_w_bias"] = f"{mine}.attention.score.biases.u_bias"
            pairs[f"{layer}.dec_attn.r_r_bias"] = f"{mine}.attention.score.biases.v_bias"
    if not theirs["untie_r"]:
        pairs["transformer.r_w_bias"], pairs["transformer.r_r_bias"] = "stack.common_score.u_bias", "stack.common_score.v_bias"
    if theirs["cutoffs"]:
        pairs["crit.cluster_weight"], pairs["crit.cluster_bias"] = "head.cluster", "head.cluster_bias"
    clusters = len(theirs["cutoffs"]) + 1 if theirs["div_val"] > 1 else 0
    pairs[" ".join(f"crit.out_layers.{i}.bias" for i in range(max(clusters, 1)))] = "head.bias"
    for i in range(clusters):
        pairs[f"transformer.word_emb.emb_layers.{i}.weight"] = f"embedding.tables.{i}"
        pairs[f"transformer.word_emb.emb_projs.{i}"] = f"embedding.projections.{i}"
        if f"head.projections.{i}" in ours:
            pairs[f"crit.out_projs.{i}"] = f"head.projections.{i}"
    if not clusters:
        pairs["transformer.word_emb.emb_layers.0.weight"] = "embedding.weight"
    assert sorted(pairs.values()) == sorted(ours), "some parameters of ours are not paired"
    return {name: ours[mine] for name, mine in pairs.items()}


def theirs_of(recorded: dict[str, Tensor], kind: str, names: str, like: Tensor) -> Tensor:
    """A weight or a gradient of theirs, in the shape of ours."""
    return torch.cat([recorded.pop(f"{kind} {name}") for name in names.split()]).double().view(like.shape)


@sweep("case", FACTS["cases"])
def test_everything_is_as_recorded(case: str) -> None:
    theirs = FACTS["cases"][case]
    recorded = {name.removeprefix(f"{case}/"): value for name, value in ALL.items() if name.startswith(f"{case}/")}
    model = formers.build(spec_of(theirs)).double()
    weights = named(model, theirs)
    with torch.no_grad():
        for names, weight in weights.items():
            weight.copy_(theirs_of(recorded, "weight", names, weight))
    stream, segment = recorded["stream"], FACTS["segment"]
    state = read = model.initial_state(len(stream))
    total = torch.zeros((), dtype=torch.float64)
    for number in range((stream.shape[1] - 1) // segment):
        here = slice(number * segment, (number + 1) * segment)
        tokens, targets = stream[:, here], stream[:, 1:][:, here]
        model.train()
        out = model(tokens, targets, state)
        state, total = out.state, total + out.loss
        assert out.logits is None
        close(out.hidden, recorded["hidden"][:, here])
        close(model.head.token_losses(out.hidden, model.embedding, targets), recorded["losses"][:, here])
        for step, memory in zip(state.steps, recorded[f"memory {number}"], strict=True):
            assert isinstance(step[0], HiddenMemory)
            close(step[0].states, memory)
        with torch.no_grad():
            answer = model.eval()(tokens, state=read)
        read = answer.state
        close(answer.logits, recorded["log_probabilities"][:, here])
    total.backward()
    for names, weight in weights.items():
        close(weight.grad, theirs_of(recorded, "gradient", names, weight))
    assert not [name for name in recorded if name.startswith(("weight ", "gradient "))], "some parameters of theirs are not paired"

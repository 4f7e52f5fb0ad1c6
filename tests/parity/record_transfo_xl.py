"""Records what the Transformer-XL of `transformers` computes, for test_transfo_xl.py: weights, inputs, outputs, memories and gradients.

`transformers` 4.57 is the last that has it, so that an environment of its own is needed. From the root of the repository:

    python -m venv transfo-xl
    transfo-xl/bin/pip install torch 'transformers>=4.57,<4.58'
    transfo-xl/bin/python tests/parity/record_transfo_xl.py

writes tests/parity/recorded/transfo_xl.safetensors and transfo_xl.json, the same from the same versions. All is in float64. Theirs casts
masked scores to float32 and computes the frequencies of its sinusoids in float32; both are lifted here, as is the order of its losses,
which come by cluster unless `keep_order` is given. Its memory begins with zeros that are attended to, unless one gives an empty one: here
it is empty. And as it comes it does not run: it calls `type_as(dtype=...)`, which torch does not have; here torch has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent / "recorded"
SEGMENT, SEGMENTS, BATCH = 5, 4, 2
SIZES = dict(vocab_size=40, d_model=16, d_embed=16, n_head=2, d_head=5, d_inner=24, n_layer=2, mem_len=7, clamp_len=-1, same_length=False)
CASES: dict[str, dict[str, Any]] = {
    "full softmax": dict(cutoffs=[], div_val=1, untie_r=False),
    "clusters": dict(cutoffs=[8, 20], div_val=1, untie_r=True),
    "projections tied but the first": dict(cutoffs=[8, 20], div_val=2, untie_r=False, proj_share_all_but_first=True, clamp_len=4),
    "projections not tied": dict(cutoffs=[8, 20], div_val=2, untie_r=True, proj_share_all_but_first=False, same_length=True),
    "projections all tied": dict(cutoffs=[8], div_val=4, untie_r=False, tie_projs=[True, True], clamp_len=6, same_length=True),
}


def as_type(self: Tensor, other: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """`Tensor.type_as`, which also takes a type."""
    return self.to(dtype if other is None else other.dtype)


def their_model(options: dict[str, Any], seed: int) -> Any:
    """A TransfoXLLMHeadModel in float64, with no weight at 0 or 1."""
    from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel

    config = TransfoXLConfig(**{**SIZES, **{k: v for k, v in options.items() if k != "tie_projs"}}, dropout=0.0, trainer_compatible=True)
    config.tie_projs = options.get("tie_projs", config.tie_projs)
    model = TransfoXLLMHeadModel(config).double().eval()
    even = torch.arange(0, config.d_model, 2, dtype=torch.float64)
    model.transformer.pos_emb.inv_freq = 1 / 10000 ** (even / config.d_model)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) * 0.3 + ("layer_norm.weight" in name))
    return model


def record(options: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """What a model computes over segments that follow one another, and the gradients of the mean loss, segment by segment summed."""
    model = their_model(options, seed)
    random = torch.Generator().manual_seed(100 + seed)
    stream = torch.randint(SIZES["vocab_size"], (BATCH, SEGMENT * SEGMENTS + 1), generator=random)
    stream[:, 1:9] = torch.arange(0, 40, 5)  # every cluster is met
    width = SIZES["d_model"]
    mems = [torch.zeros(0, BATCH, width, dtype=torch.float64) for _ in range(SIZES["n_layer"])]
    kept: dict[str, list[Tensor]] = {"hidden": [], "log_probabilities": [], "losses": []}
    found = {"stream": stream}
    total = torch.zeros((), dtype=torch.float64)
    with mock.patch.object(torch.Tensor, "float", lambda self: self), mock.patch.object(torch.Tensor, "type_as", as_type):
        for number in range(SEGMENTS):
            start = number * SEGMENT
            tokens, targets = stream[:, start : start + SEGMENT], stream[:, start + 1 : start + SEGMENT + 1]
            out = model.transformer(tokens, mems=mems)
            hidden, mems = out.last_hidden_state, out.mems
            # They shift: a place in front of the targets and one behind the states, that neither counts.
            behind, before = torch.zeros(BATCH, 1, width, dtype=torch.float64), torch.zeros(BATCH, 1, dtype=torch.long)
            losses = torch.cat(
                [
                    model.crit(torch.cat([h, b])[None], torch.cat([f, t])[None], keep_order=True)[None]
                    for h, b, f, t in zip(hidden, behind, before, targets, strict=True)
                ]
            )
            total = total + losses.mean()
            kept["hidden"].append(hidden)
            kept["losses"].append(losses)
            kept["log_probabilities"].append(model.crit(hidden).view(BATCH, SEGMENT, -1))
            found[f"memory {number}"] = torch.stack(mems).transpose(1, 2)  # (layers, batch, length, dim)
    total.backward()
    found |= {name: torch.cat(values, dim=1) for name, values in kept.items()}
    for name, weight in model.named_parameters():
        found[f"weight {name}"], found[f"gradient {name}"] = weight.to(torch.float32), weight.grad  # they were drawn in float32
    return {name: value.detach().contiguous().clone() for name, value in found.items()}


def main() -> None:
    """Writes the record."""
    import transformers

    HERE.mkdir(exist_ok=True)
    tensors = {f"{case}/{name}": value for i, case in enumerate(CASES) for name, value in record(CASES[case], i).items()}
    save_file(tensors, HERE / "transfo_xl.safetensors")
    facts = {
        "transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0], "segment": SEGMENT,
        "cases": {case: {**SIZES, **options} for case, options in CASES.items()},
    }  # fmt: skip
    (HERE / "transfo_xl.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()

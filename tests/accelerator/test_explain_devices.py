"""`formers explain --device`: the executors of a device that is not present are those that run on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

import formers
from accelerator.device import NAME, use_test_device
from formers.attention.attend import choose
from formers.attention.request import Request
from formers.core import Range, Watch
from formers.inspect import explain_facts, subject
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.doctor.choices import runs_on
from formers.inspect.measure.other_devices import as_on, layers_on
from formers.patterns import BigBird, Causal, Full, Local, Pattern
from formers.score import ByDistance
from helpers import refused, sweep

LENGTH = 640
OPTIONS: dict[str, dict[str, Any]] = {
    "decoder": {},
    "transformer-xl": {"memory": 64},
    "sparse-transformer": {"stride": 16},
    "bigbird": {"block": 16},
    "linformer": {},
    "reformer": {"chunk": 32},
}
SIZES: dict[str, Any] = {"dim": 32, "heads": 2, "layers": 2, "length": LENGTH}


def running(layers: Any) -> dict[str, dict[int, str]]:
    return {kind: {step: next(v.name for v in found if v.runs) for step, found in by_step.items()} for kind, by_step in layers.items()}


@sweep(("member", "flex"), [(member, flex) for member in OPTIONS for flex in (True, False)])
def test_explained_executors_are_those_that_run(member: str, flex: bool) -> None:
    spec = formers.spec(member, vocab=31, dropout=0.0, **SIZES, **OPTIONS[member])
    costs = Costs(spec, batch=2).forward(LENGTH)
    with use_test_device(flex=flex):
        explained = running(layers_on(costs, NAME, training=False))
        watch = Watch(only="executors")
        with torch.no_grad():
            formers.build(spec).eval().to(NAME)(torch.zeros(2, LENGTH, dtype=torch.long, device=NAME), watch=watch)
    assert explained == running(watch.notes)


def test_a_sparse_member_runs_flex_on_cuda_and_blocked_on_cpu_and_mps() -> None:
    what = subject("sparse-transformer", options={"dim": 64, "heads": 2, "layers": 2, "length": 1024})
    facts = explain_facts(what, [1024], device="cuda:1")
    assert json.loads(json.dumps(facts)) == facts
    assert facts["device"] == "cuda"
    assert {kind: running["training"][0]["executor"] for kind, running in facts["devices"].items()} == {
        "cpu": "blocked", "cuda": "flex", "mps": "blocked",
    }  # fmt: skip
    (group,) = facts["passes"]["training"]["attention"]
    assert next(verdict["name"] for verdict in group["executors"] if verdict["runs"]) == "flex"
    (group,) = explain_facts(what, [1024], device="mps")["passes"]["training"]["attention"]
    why = next(verdict["why_not"] for verdict in group["executors"] if verdict["name"] == "flex")
    assert "mps" in why
    assert "meta" not in why


def test_costs_do_not_depend_on_the_device() -> None:
    what = subject("decoder", options={"dim": 32, "heads": 2, "layers": 2, "length": 64})
    here, there = explain_facts(what, [64]), explain_facts(what, [64], device="mps")
    assert here["device"] == "cpu"
    for name in ("parts", "lengths", "bytes", "devices"):
        assert here[name] == there[name]


def test_an_unknown_device_is_refused() -> None:
    with refused("device='cudda'", "cuda"):
        explain_facts(subject("decoder"), device="cudda")


def test_the_doctor_names_the_executor_of_each_device() -> None:
    found = {kind: runs_on(torch.device(kind)) for kind in ("cpu", "cuda", "mps")}
    assert found["cpu"]["Local(window=128)"] == found["mps"]["Local(window=128)"] == "blocked"
    assert found["cuda"]["Local(window=128)"] == "flex"
    assert {by["Causal"] for by in found.values()} == {"sdpa"}


def asked(pattern: Pattern, n: int = 4096, width: int = 64, padded: bool = False, term: bool = False, **more: Any) -> list[str]:
    """The executors of a request on a CPU, with FlexAttention and without it."""
    dtype = more.pop("dtype", torch.float32)
    with FakeTensorMode():
        q, k, v = (torch.empty(2, 4, n, width, dtype=dtype, requires_grad=True) for _ in range(3))
        valid = torch.empty(2, n, dtype=torch.bool) if padded else None
    rows = Range(0, n)
    bias = ByDistance(q, k[0], None, rows, rows) if term else None
    request = Request(pattern if padded else pattern.of(n), rows, rows, 4, 0.1, valid, bias, **more)
    found = []
    for kind in ("cpu", "cuda", "xpu", "mps"):
        with as_on(kind) as move:
            found.append(choose(request, move(q), move(k), move(v)).name)
    assert found[1] == found[2]
    return [found[0], found[1], found[3]]


def test_the_table_of_executors_in_the_documents_is_correct() -> None:
    window = Local(window=64)
    rows = {
        "full or causal attention": [asked(Full()), asked(Causal())],
        "full attention of padded rows": [asked(Full(), padded=True)],
        "a sparse pattern below 512 tokens": [asked(window, 256)],
        "a sparse pattern, also with dropout": [asked(window), asked(window, dropout=0.1), asked(BigBird(block=64).at(0))],
        "a sparse pattern, heads narrower than 16": [asked(window, width=8)],
        "BigBird in padded rows, whose pattern depends on their lengths": [asked(BigBird(block=64).at(0), padded=True)],
        "a term by distance: Transformer-XL, spans": [asked(Causal(), term=True)],
        "a term by distance below 512 tokens": [asked(Causal(), 256, term=True)],
        "a sparse pattern in float64": [[*asked(window, dtype=torch.float64)[:2], "no float64"]],
    }
    page = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text(encoding="utf-8")
    lines = page.partition("## Which executor runs")[2].partition("```python")[0].splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    assert {words: cells for words, *cells in table} == {words: found[0] for words, found in rows.items()}
    for words, found in rows.items():
        assert all(one == found[0] for one in found), words

"""torch.compile makes at most two graphs of a member in each mode, for any lengths and batches of two or more.

Sparse members stay sparse: the graph contains their operation, and no tensor of all pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import formers
from contracts.specimens import FIRST, SPECIMENS, Specimen, Subject, lengthened, subject
from formers import Model
from formers.model.compile_limits import compile_limits
from formers.patterns import Local
from helpers import close

LENGTHS = (5, 9, 14, 17, 22)
BATCHES = (2, 3)
MORE = {
    "image-transformer-11-7-7-2d-(3, 2)-(2, 1)-pre",
    "sparse-transformer-strided-interleaved-4-2",
    "decoder-axial-7",  # a loss in chunks
    "transformer-xl-5-True-True-3-post-3",
    "gtrxl-7-post",
}
CHOSEN = [*FIRST, *(s for s in SPECIMENS if str(s) in MORE and s not in FIRST)]


class Graphs:
    """A backend that counts graphs, notes their operations of this library, and measures the largest tensor of a run."""

    def __init__(self, measure: bool = False) -> None:
        self.operations: list[int] = []
        self.largest = 0
        self.backend = aot_autograd(fw_compiler=self.measured) if measure else None

    @property
    def count(self) -> int:
        return len(self.operations)

    def __call__(self, graph: torch.fx.GraphModule, given: list[Any]) -> Any:
        self.operations.append(sum("formers" in str(node.target) for node in graph.graph.nodes))
        return graph.forward if self.backend is None else self.backend(graph, given)

    def measured(self, graph: torch.fx.GraphModule, given: list[Any]) -> Any:
        note = self

        class Measured(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                found = super().run_node(node)
                for each in found if isinstance(found, tuple | list) else (found,):
                    if isinstance(each, Tensor):
                        note.largest = max(note.largest, each.untyped_storage().nbytes())
                return found

        return make_boxed_func(lambda *values: Measured(graph).run(*values))  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(model: Model, graphs: Graphs) -> Any:
    return torch.compile(model, fullgraph=True, dynamic=True, backend=graphs)


def batches(read: Subject, model: Any) -> list[tuple[Subject, int]]:
    """The subject with other numbers of rows and, for an encoder-decoder, other lengths of the source."""
    spec = read.model.spec
    found = []
    for batch in BATCHES:
        for length in LENGTHS:
            one = subject(spec, batch, torch.float32, length + 1) if spec.encoder is not None else replace(read, batch=batch)
            label = None if spec.labels is None else torch.randint(spec.labels, (batch,))
            found.append((replace(one, model=model, batch=batch, label=label), length))
    return found


@pytest.mark.parametrize("specimen", [pytest.param(s, id=str(s), marks=[] if str(s) == "decoder" else pytest.mark.slow) for s in CHOSEN])
@pytest.mark.parametrize("training", [True, False])
def test_all_lengths_and_batches_share_two_graphs(specimen: Specimen, training: bool) -> None:
    read, graphs = subject(lengthened(specimen.spec, 30), 2, torch.float32), Graphs()
    if compile_limits(read.model.spec) is not None:
        pytest.skip("its loop over the tokens is unrolled")
    model = compiled(read.model.train(training), graphs)
    for one, length in batches(read, model):
        x, targets = replace(one, model=read.model).input(length), replace(one, model=read.model).targets(length)
        with torch.set_grad_enabled(training):
            loss = one(x, targets=targets).loss
        if training:
            loss.backward()
    assert 1 <= graphs.count <= 2


@pytest.mark.parametrize(
    "specimen", [pytest.param(s, id=str(s), marks=[] if str(s) == "decoder" else pytest.mark.slow) for s in CHOSEN if s.spec.is_causal]
)
def test_decoding_steps_share_two_graphs(specimen: Specimen) -> None:
    """24 tokens after a prompt that was read without torch.compile: the cache grows, and forgets."""
    read, graphs = subject(lengthened(specimen.spec, 40), 2, torch.float32), Graphs()
    model = replace(read, model=compiled(read.model, graphs))
    x = read.input(31)
    with torch.no_grad():
        state = read(x[:, :7]).state
        made = []
        for t in range(7, 31):
            out = model(x[:, t : t + 1], state=state)
            state = out.state
            made.append(out.logits)
        assert graphs.count <= 2
        if made[0] is not None and made[0].dim() == 3:
            close(torch.cat(made, dim=1), read(x).logits[:, 7:], 1e-4)


def sparse(member: str, **options: Any) -> Model:
    """A small sparse member for long rows."""
    return formers.create(member, vocab=16, dim=16, heads=2, layers=2, length=2048, dropout=0.0, **options)


SPARSE = {
    "sparse-transformer": {"pattern": "strided", "stride": 32},
    "bigbird": {"block": 16},
    "adaptive-span": {"span": 64},
    "transformer-xl": {"memory": 64},
    "reformer": {"chunk": 32},
}


@pytest.mark.parametrize("member", [pytest.param(m, marks=[] if m == "sparse-transformer" else pytest.mark.slow) for m in SPARSE])
def test_sparse_members_stay_sparse(member: str) -> None:
    """The largest tensor of a compiled step grows as the length does, and values and gradients are those of the plain step."""
    model, graphs = sparse(member, **SPARSE[member]), Graphs(measure=True)
    run, sizes = compiled(model.eval() if member == "reformer" else model.train(), graphs), []
    for n in (640, 1280):
        x = torch.randint(16, (2, n))
        targets = torch.randint(16, model.spec.head.target_shape(2, n))
        found = []
        for call in (run, model):
            model.zero_grad()
            graphs.largest = 0
            loss = call(x, targets=targets).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
            if call is run:
                sizes.append(graphs.largest)
        for one, other in zip(*found, strict=True):
            close(one, other, 1e-4)
    assert min(graphs.operations) >= 2
    assert sizes[1] <= 2.2 * sizes[0]
    assert sizes[1] < 2 * 2 * 1280 * 1280 * 4 / 4


def test_padded_rows_of_a_pattern_that_depends_on_the_length() -> None:
    """They are grouped inside the operation: one graph, whatever the lengths."""
    model, graphs = sparse("bigbird", block=16).train(), Graphs()
    run = compiled(model, graphs)
    for n, short in ((640, 600), (720, 513)):
        x = torch.randint(16, (3, n))
        mask = torch.arange(n) < torch.tensor([n, short, 40])[:, None]
        targets = torch.randint(16, model.spec.head.target_shape(3, n))
        found = []
        for call in (run, model):
            model.zero_grad()
            loss = call(x, targets=targets, mask=mask).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        for one, other in zip(*found, strict=True):
            close(one, other, 1e-4)
    assert graphs.count == 1
    assert graphs.operations[0] == 2


def test_every_call_of_a_graph_draws_new_dropout() -> None:
    model = formers.create("sparse-transformer", vocab=16, dim=16, heads=2, layers=1, length=1024, attention_dropout=0.5, dropout=0.0,
                           stride=32).train()  # fmt: skip
    graphs, x = Graphs(), torch.randint(16, (2, 640))
    run = compiled(model, graphs)
    torch.manual_seed(0)
    first, second = run(x).hidden, run(x).hidden
    torch.manual_seed(0)
    assert graphs.operations == [1]
    assert not torch.equal(first, second)
    close(run(x).hidden, first, 1e-6)


def test_models_that_differ_in_their_pattern_do_not_share_a_graph() -> None:
    graphs = Graphs()
    x = torch.randint(16, (2, 640))
    with torch.no_grad():
        for window in (8, 64):
            spec = formers.spec("decoder", vocab=16, dim=16, heads=2, layers=1, length=1024).replace(pattern=Local(window=window))
            model = formers.build(spec).eval()
            close(compiled(model, graphs)(x).logits, model(x).logits, 1e-5)
    assert graphs.operations == [1, 1]


def test_members_with_a_loop_over_the_tokens_have_compile_limits() -> None:
    limits = {member: compile_limits(next(s for s in FIRST if s.member == member).spec) for member in formers.members()}
    assert {member for member, why in limits.items() if why is not None} == {"rnn", "act-rnn", "seq2seq"}
    assert "recurrent layers of rnn" in str(limits["rnn"])

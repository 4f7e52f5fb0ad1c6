"""The recipe of the recurrent encoder-decoder says what the papers say."""

from __future__ import annotations

import torch

import formers
from formers.patterns import Causal, Full
from formers.recurrent import Aligned, Recurrent
from helpers import close, refused


def test_words_and_parts() -> None:
    spec = formers.spec("seq2seq", vocab=9, layers=3, cell="gru", alignment="multiplicative", feeding=False)
    assert spec.attention == Aligned(cell="gru", layers=3, alignment="general", feeding=False)
    assert spec.depth.steps == 1
    assert (spec.encoder.attention, spec.encoder.pattern, spec.encoder.depth.steps) == (Recurrent(cell="gru", direction="both"), Full(), 3)
    forward = formers.spec("seq2seq", vocab=9, bidirectional=False).encoder
    assert (forward.attention, forward.pattern) == (Recurrent(), Causal())
    with refused("alignment='luong'", "'additive'", "'multiplicative'"):
        formers.spec("seq2seq", vocab=9, alignment="luong")
    with refused("cell='rnn'", "'tanh'"):
        formers.spec("seq2seq", vocab=9, cell="rnn")
    with refused("dim=15", "even"):
        formers.create("seq2seq", vocab=9, dim=15)


@torch.no_grad()
def test_without_alignment_the_source_is_known_by_its_last_states_alone() -> None:
    model = formers.create("seq2seq", vocab=9, dim=16, alignment="none").double().eval()
    out = model(torch.randint(9, (2, 700)), torch.randint(9, (2, 3)))
    (entry,) = out.state.steps[0]
    assert [t for t in (entry.said, entry.keys, entry.values, entry.valid) if t is not None] == []
    assert entry.states.shape == (2, 1, 2, 16), "its size is the same, whatever the length of the source"


@torch.no_grad()
def test_every_row_that_a_state_is_selected_for_is_evaluated_as_a_whole_row_is() -> None:
    """As a beam search does: the source goes with the state."""
    model = formers.create("seq2seq", vocab=5, dim=16, alignment="dot").double().eval()
    source = torch.randint(5, (2, 6))
    rows = torch.cartesian_prod(*[torch.arange(5)] * 3)
    for row in source:
        start = model(row[None], torch.tensor([[0]]))
        state, logits, total = start.state.select(torch.zeros(len(rows), dtype=torch.long)), start.logits.expand(len(rows), -1, -1), 0.0
        for t in range(3):
            total = total + logits[:, -1].log_softmax(dim=-1).gather(1, rows[:, t : t + 1])
            out = model(None, rows[:, t : t + 1], state=state)
            logits, state = out.logits, out.state
        whole = model(row.expand(len(rows), -1), torch.cat([torch.zeros(len(rows), 1, dtype=torch.long), rows[:, :2]], dim=1)).logits
        close(total, whole.log_softmax(dim=-1).gather(2, rows[:, :, None]).sum(dim=1))

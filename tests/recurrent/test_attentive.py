"""The decoder with attention to a source against a plain loop over torch's cells, with torch's packed encoder."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import formers
from formers import Model, Spec, build
from formers.depth import Stacked
from formers.feedforward import NoFeedForward
from formers.heads import LanguageModel, NoHead
from formers.patterns import Causal, Full
from formers.position import NoPosition
from formers.recurrent import Aligned, Pondering, Recurrent
from formers.residual import Bare
from helpers import close, gradients, sweep

DIM, VOCAB = 6, 9
ENCODERS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell}
ALIGNMENTS = ("none", "additive", "dot", "general")
SOURCE_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 1]], dtype=torch.bool)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)


def spec(part: Aligned, layers: int = 1, both: bool = True, dim: int = DIM, source_dim: int = DIM) -> Spec:
    common = dict(heads=1, length=16, position=NoPosition(), residual=Bare(), feedforward=NoFeedForward())
    reader = Recurrent(cell=part.cell, direction="both" if both else "forward")
    encoder = Spec(
        vocab=VOCAB, dim=source_dim, attention=reader, pattern=Full() if both else Causal(), depth=Stacked(layers), head=NoHead(), **common
    )
    return Spec(
        vocab=VOCAB, dim=dim, attention=part, pattern=Causal(), depth=Stacked(1), head=LanguageModel(tied=False), encoder=encoder, **common
    )


def made(part: Aligned, **sizes: int | bool) -> Model:
    """A model in float64 and in evaluation mode."""
    torch.manual_seed(0)
    return build(spec(part, **sizes)).double().eval()


def loop(model: Model, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Hidden states (length, dim) and weights (length, n) of one row without padding, written down as in the papers."""
    part, decoder = model.spec.attention, model.stack.depth.blocks[0].attention
    h, finals = model.source_embedding(source[None]), []
    for block in model.encoder.depth.blocks:
        torch_layer = ENCODERS[part.cell](h.shape[2], h.shape[2] // 2, batch_first=True, bidirectional=True).double()
        packed = pack_padded_sequence(h, torch.tensor([h.shape[1]]), batch_first=True)
        out, final = torch.func.functional_call(torch_layer, dict(block.attention.recurrence.named_parameters()), (packed,))
        h, _ = pad_packed_sequence(out, batch_first=True)
        final = final if part.cell == "lstm" else (final,)
        finals.append([torch.cat(list(z), dim=1) for z in final])
    h = h[0]
    read, states = decoder.source, []
    for layer in range(part.layers):
        z = finals[min(layer + max(0, len(finals) - part.layers), len(finals) - 1)]
        maps = [bridge.weight for bridge in read.bridges[layer]]
        states.append([torch.tanh(z[0] @ maps[0].T)] + ([z[1] @ maps[1].T] if part.cell == "lstm" else []))
    said, hidden, seen = torch.zeros(1, DIM, dtype=torch.float64), [], []
    for x in model.embedding(target[None])[0]:
        inside, context = x[None], None
        if part.alignment == "additive":
            scores = torch.stack(
                [decoder.energy.weight[0] @ torch.tanh(decoder.query.weight @ states[-1][0][0] + read.keys.weight @ k) for k in h]
            )
            context = torch.softmax(scores, 0) @ h
            seen.append(torch.softmax(scores, 0))
        if part.feeding and part.alignment == "additive":
            inside = torch.cat([inside, context[None]], dim=1)
        elif part.feeding and part.alignment != "none":
            inside = torch.cat([inside, said], dim=1)
        for layer, weights in enumerate(decoder.cells):
            cell = CELLS[part.cell](inside.shape[1], DIM).double()
            named = {name.removesuffix("_l0"): w for name, w in weights.named_parameters()}
            state = tuple(states[layer]) if part.cell == "lstm" else states[layer][0]
            new = torch.func.functional_call(cell, named, (inside, state))
            states[layer] = list(new) if part.cell == "lstm" else [new]
            inside = states[layer][0]
        s = states[-1][0]
        if part.alignment in ("dot", "general"):
            keys = h if part.alignment == "dot" else h @ read.keys.weight.T
            context = torch.softmax(keys @ s[0], 0) @ h
            seen.append(torch.softmax(keys @ s[0], 0))
        if part.alignment != "none":
            s = said = torch.tanh(torch.cat([context[None], s], dim=1) @ decoder.out.weight.T)
        hidden.append(s[0])
    return torch.stack(hidden), torch.stack(seen) if seen else None


KINDS = [
    Aligned(cell=cell, layers=layers, alignment=alignment, feeding=feeding)
    for alignment, feeding in [("none", True), *itertools.product(ALIGNMENTS[1:], (True, False))]
    for cell, layers in (("lstm", 1), ("lstm", 2), ("gru", 2), ("tanh", 1))
]


@sweep("part", KINDS)
def test_values_weights_and_gradients_are_those_of_a_plain_loop(part: Aligned) -> None:
    """Padded sources and targets among them: every row equals the loop over its real tokens."""
    model = made(part, layers=part.layers)
    source, target = torch.randint(VOCAB, SOURCE_MASK.shape), torch.randint(VOCAB, MASK.shape)
    found = model(source, target, source_mask=SOURCE_MASK, mask=MASK).hidden
    seen = model.inspect(source, target, source_mask=SOURCE_MASK, mask=MASK).cross
    rows = [loop(model, source[i, SOURCE_MASK[i]], target[i, MASK[i]]) for i in range(3)]
    wanted = torch.cat([hidden for hidden, _ in rows])
    close(found[MASK], wanted)
    body = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    for a, b in zip(gradients(found[MASK], body), gradients(wanted, body), strict=True):
        close(a, b)
    if part.alignment == "none":
        assert seen == []
        return
    (weights,) = seen
    assert weights.shape == (3, 1, 4, 5)
    for i, (_, alone) in enumerate(rows):
        close(weights[i, 0][MASK[i]][:, SOURCE_MASK[i]], alone)
        close(weights[i, 0, MASK[i]].sum(dim=1), torch.ones(int(MASK[i].sum()), dtype=torch.float64))
        assert (weights[i, 0][:, ~SOURCE_MASK[i]] == 0).all(), "padding is looked at"


@torch.no_grad()
def test_a_decoder_begins_with_the_last_states_of_cells_that_ponder() -> None:
    spec = formers.spec("seq2seq", vocab=VOCAB, dim=8, alignment="none", bidirectional=False, length=8, dropout=0.0)
    encoder = spec.encoder.replace(attention=Pondering(cell="lstm", steps=3))
    model = formers.build(spec.replace(encoder=encoder)).double().eval()
    sources = torch.randint(VOCAB, (2, 5))
    one, other = (model(source[None], torch.tensor([[1, 2]])).logits for source in sources)
    assert not torch.allclose(one, other), "nothing of the source arrives"


@sweep("part", KINDS)
@torch.no_grad()
def test_a_source_without_a_token_is_none_whatever_extra_vectors_an_encoder_has(part: Aligned) -> None:
    """The decoder begins as a row does that was reset, and not with what the encoder makes of its extra vectors alone."""
    plain = spec(part)
    model = build(plain.replace(encoder=plain.encoder.replace(extra=2))).double().eval()
    source, target = torch.randint(VOCAB, (3, 5)), torch.randint(VOCAB, (3, 4))
    mask = SOURCE_MASK & torch.tensor([[True], [False], [True]])
    state = model(source, target[:, :1], source_mask=SOURCE_MASK).state.reset(torch.tensor([False, True, False]))
    close(model(source, target, source_mask=mask).hidden[1], model(None, target, state=state).hidden[1])


@sweep("layers", [(1, 2), (2, 1)])
@sweep("part", [Aligned(), Aligned(alignment="none"), Aligned(cell="gru", alignment="dot")])
@torch.no_grad()
def test_stacks_of_other_heights(part: Aligned, layers: tuple[int, int]) -> None:
    """A layer without a fellow in the encoder starts from the encoder's last one; of more layers the top ones count."""
    model = made(part.replace(layers=layers[1]), layers=layers[0])
    source, target = torch.randint(VOCAB, (5,)), torch.randint(VOCAB, (4,))
    close(model(source[None], target[None]).hidden[0], loop(model, source, target)[0])

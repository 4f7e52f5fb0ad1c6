"""The class of a row: its vector is added at every position, it is needed at every call, and wrong ones are errors."""

from __future__ import annotations

import torch

import formers
from formers.inputs.labels import LabelEmbedding
from helpers import close, refused, sweep

SMALL = {"height": 2, "width": 3, "levels": 4, "dim": 8, "heads": 2, "layers": 1, "hidden": 8, "dropout": 0.0}


def test_the_vector_of_its_class_is_added_at_every_position() -> None:
    part = LabelEmbedding(5, 3, 1.0).double()
    x, label = torch.randn(4, 6, 3, dtype=torch.float64), torch.tensor([4, 0, 0, 2])
    wanted = torch.stack([torch.stack([x[n, t] + part.weight[label[n]] for t in range(6)]) for n in range(4)])
    close(part(x, label), wanted, 0.0)
    close(part(x, label.to(torch.uint8)), wanted, 0.0)


def test_states_take_the_label_at_every_call() -> None:
    model = formers.create("image-transformer", condition="class", labels=3, **SMALL).double().eval()
    levels, label = torch.randint(4, (2, 6)), torch.tensor([2, 1])
    with torch.no_grad():
        whole = model(levels, label=label).logits
        assert not torch.equal(whole, model(levels, label=label.flip(0)).logits)
        first = model(levels[:, :4], state=model.initial_state(2), label=label)
        close(torch.cat([first.logits, model(levels[:, 4:], state=first.state, label=label).logits], dim=1), whole)
        with refused("no label is given"):
            model(levels[:, 4:], state=first.state)


def test_an_encoder_decoder_may_have_classes_and_be_inspected() -> None:
    spec = formers.spec("image-transformer", condition="small", **{**SMALL, "width": 4}).replace(labels=3)
    model = formers.build(spec).eval()
    source, target, label = torch.randint(4, (1, 2)), torch.randint(4, (1, 8)), torch.tensor([1])
    assert torch.isfinite(model(source, target, label=label).logits).all()
    assert model.inspect(source, target, label=label) is not None


@sweep(
    ("label", "words"),
    [
        (None, "no label is given"),
        (torch.tensor([1]), "shape (1,)"),
        (torch.tensor([1.0, 2.0]), "float32"),
        (torch.tensor([[1, 2]]), "shape (1, 2)"),
        ([1, 2], "a list"),
        (torch.tensor([0, 3]), "class 3 does not exist"),
        (torch.tensor([-1, 2]), "class -1 does not exist"),
    ],
)
def test_mistakes(label: object, words: str) -> None:
    model = formers.create("image-transformer", condition="class", labels=3, **SMALL)
    with refused(words, "shape (2,)", "0 ... 2"):
        model(torch.randint(4, (2, 6)), label=label)


def test_a_model_without_classes_takes_no_label() -> None:
    with refused("not conditioned on classes"):
        formers.create("image-transformer", **SMALL)(torch.randint(4, (2, 6)), label=torch.tensor([0, 1]))

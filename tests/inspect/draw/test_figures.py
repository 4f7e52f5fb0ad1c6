"""The known figures: each is drawn, and what it shows follows its spec, its pattern or its model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import formers
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.reference import Rules, pair_counts
from formers.cli import names
from formers.family import MEMBERS
from formers.heads.auxiliary import SCHEDULES
from formers.inspect.draw.figures import FIGURES, figure_facts, figure_options, save_named_figure
from formers.inspect.draw.figures.images import part_marks
from formers.inspect.measure.segments import visibility
from formers.model import Spec
from formers.patterns import Blocks, Fixed, LocalGrid, Strided
from formers.position import sinusoid
from helpers import close, refused, sweep

ROOT = Path(__file__).parents[3]
LARGEST = 150_000
"""Bytes of a picture of docs/figures.md."""


def values(name: str, folder: Path, **options: Any) -> dict[str, Any]:
    """What a figure shows with some options."""
    return save_named_figure(name, folder / f"{name}.svg", options).values


@sweep("name", FIGURES)
def test_every_figure_draws(name: str, tmp_path: Path) -> None:
    drawn = save_named_figure(name, tmp_path / f"{name}.svg")
    text = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert f"<title>{FIGURES[name].shows}</title>" in text
    assert len(text) < LARGEST
    assert drawn.caption
    assert drawn.values
    first = (tmp_path / f"{name}.svg").read_bytes()
    save_named_figure(name, tmp_path / f"{name}.svg")
    assert (tmp_path / f"{name}.svg").read_bytes() == first
    save_named_figure(name, tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("architecture", {"member": "universal-transformer", "decoder_steps": 4}),
    ("architecture", {"member": "reformer"}),
    ("multi-head", {"member": "transformer-xl", "heads": 8}),
    ("blocks", {"members": "reformer,seq2seq,decoder:norm=bare"}),
    ("act-graph", {"text": "abcde", "steps": 3}),
    ("image-local", {"height": 16, "width": 16}),
    ("lsh", {"text": "hash", "reach": "bucket"}),
]
"""Figures with options of other sizes than their own."""


@sweep(("name", "options"), [*((name, {}) for name in FIGURES), *OTHERS])
def test_no_text_lies_outside_or_on_other_text(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = save_named_figure(name, tmp_path / f"{name}.png", options).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.get_window_extent(renderer).padded(1)
    boxes = []
    for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize") and hasattr(artist, "get_text")):
        if text.get_text().strip() and text.get_visible() and text.get_window_extent(renderer).width:
            extent = text.get_window_extent(renderer)
            assert text.get_fontsize() >= 7, text.get_text()
            # Ticks beyond the limits of their axes are not drawn.
            if whole.contains(extent.x0, extent.y0) and whole.contains(extent.x1, extent.y1):
                boxes.append((text.get_text(), extent.padded(-1)))
            else:
                assert text.axes is None, text.get_text()
                assert text not in figure.texts, text.get_text()
    for place, (text, extent) in enumerate(boxes):
        over = [other for other, box in boxes[place + 1 :] if extent.overlaps(box) and other != text]
        assert not over, (text, over)


def test_the_catalogue_names_equations_and_options_that_exist() -> None:
    known = set(re.findall(r"^### (E\d+):", (ROOT / "EQUATIONS.md").read_text(encoding="utf-8"), re.MULTILINE))
    for name, entry in FIGURES.items():
        assert set(entry.equations) <= known, name
        assert not entry.member or set(entry.options) <= set(MEMBERS[entry.member].options), name
        facts = figure_facts(name)
        assert facts["options"] == figure_options(name)
    assert names.figures() == {name: entry.member for name, entry in FIGURES.items()}


def test_the_page_shows_every_figure_with_its_command() -> None:
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    for name in FIGURES:
        picture = ROOT / "docs" / "pictures" / f"figure-{name}.svg"
        assert f"(pictures/{picture.name})" in page
        assert f"$ formers show figure {name} --out {name}.svg" in page
        assert picture.stat().st_size < LARGEST


def test_multi_head_has_the_sizes_of_the_module(tmp_path: Path) -> None:
    shown = values("multi-head", tmp_path, dim=48, heads=3, head_dim=8, value_dim=10)
    model = formers.create("decoder", vocab=256, dim=48, heads=3, head_dim=8, value_dim=10, layers=1)
    weights = dict(model.named_parameters())
    assert shown["qkv"] == list(weights["stack.depth.blocks.0.attention.qkv.weight"].shape)
    assert shown["out"] == list(weights["stack.depth.blocks.0.attention.out.weight"].shape)
    assert (shown["heads"], shown["head_dim"], shown["value_dim"]) == (3, 8, 10)
    assert any("Causal" in step for step in shown["steps"])
    plain = values("multi-head", tmp_path, member="encoder")
    assert not any("mask" in step for step in plain["steps"])
    relative = values("multi-head", tmp_path, member="transformer-xl", memory=7)
    assert any("Relative" in step for step in relative["steps"])
    assert (plain["memory"], relative["memory"]) == (0, 7)


def test_the_architecture_follows_the_spec(tmp_path: Path) -> None:
    post = values("architecture", tmp_path, vocab=99, dim=24, heads=2, hidden=40, layers=5)
    encoder, decoder = (stack["items"] for stack in post["stacks"])
    assert encoder.count("LayerNorm") == 2
    assert decoder.count("LayerNorm") == 3
    assert any(item.startswith("cross-attention") for item in decoder)
    assert not any(item.startswith("cross-attention") for item in encoder)
    assert "embedding\n99 → 24" in decoder
    assert any("24 → 40 → 24" in item for item in decoder)
    assert post["parameters"] == formers.create("transformer", vocab=99, dim=24, heads=2, hidden=40, layers=5).parameter_count()
    pre = values("architecture", tmp_path, norm="pre", position="learned")
    assert [stack["items"].count("LayerNorm") for stack in pre["stacks"]] == [3, 4]  # with the final ones
    assert "Learned" in pre["stacks"][0]["items"]
    (alone,) = values("architecture", tmp_path, member="decoder")["stacks"]
    assert sum(item.startswith("self-attention") for item in alone["items"]) == 1


@sweep("layers", [1, 4])
def test_the_number_of_layers_is_drawn(layers: int, tmp_path: Path) -> None:
    figure = save_named_figure("architecture", tmp_path / "a.svg", {"layers": layers}).figure
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count(f"\N{MULTIPLICATION SIGN} {layers}") == 2


def test_the_sinusoid_is_that_of_the_models(tmp_path: Path) -> None:
    shown = torch.tensor(values("sinusoid", tmp_path, length=9, dim=6)["values"], dtype=torch.float64)
    close(shown, sinusoid(torch.arange(9), 6))


def test_auxiliary_losses_follow_their_schedule(tmp_path: Path) -> None:
    shown = values("auxiliary-losses", tmp_path, layers=5, targets=3, positions=4, progress=0.25)
    assert shown["weights"] == [0, 0, 1, 1, 1]  # layer l until l/2n of the training
    assert shown["tokens"][0] == [[], [], [], []]
    assert shown["tokens"][4] == [[1, 2, 3], [2, 3, 4], [3, 4], [4]]
    decay = values("auxiliary-losses", tmp_path, layers=5, intermediate="decay", progress=0.25)
    ends = torch.arange(1, 5, dtype=torch.float64) / 10
    close(torch.tensor(decay["weights"], dtype=torch.float64)[:-1], SCHEDULES["decay"](ends, 0.25))
    with refused("decoder", "auxiliary"):
        values("auxiliary-losses", tmp_path, member="decoder")


def test_the_graph_of_act_is_that_of_the_model(tmp_path: Path) -> None:
    shown = values("act-graph", tmp_path, text="abcd")
    assert shown["tokens"] == list("abcd")
    assert len(set(shown["steps"])) > 1
    for n, halting, weights in zip(shown["steps"], shown["halting"], shown["weights"], strict=True):
        assert len(halting) == len(weights) == n
        assert sum(weights) == pytest.approx(1.0, abs=1e-6)
        assert sum(halting[:-1]) < 0.99  # nobody halts early
    assert max(values("act-graph", tmp_path, steps=2)["steps"]) <= 2
    with refused("decoder", "act-rnn"):
        values("act-graph", tmp_path, member="decoder")


@sweep(("layers", "memory", "same_length"), [(1, 4, False), (2, 4, False), (3, 2, False), (2, 4, True)])
def test_segments_are_what_a_model_depends_on(layers: int, memory: int, same_length: bool) -> None:
    """Where a token is changed, what is predicted changes where the figure says that the token was seen, and nowhere else."""
    spec = formers.spec(
        "transformer-xl", vocab=17, dim=16, heads=2, layers=layers, length=4, memory=memory, same_length=same_length, dropout=0.0
    )
    model = formers.build(spec).double().eval()

    def read(tokens: torch.Tensor, carried: bool) -> torch.Tensor:
        state, found = model.initial_state(1), []
        for part in tokens.split(4, dim=1):
            out = model(part, state=state)
            state = out.state if carried else model.initial_state(1)
            found.append(out.logits)
        return torch.cat(found, dim=1)

    tokens = torch.randint(17, (1, 12))
    for carried in (False, True):
        seen = visibility(spec, 3, 4, memory if carried else 0).reaches[-1]
        with torch.no_grad():
            before = read(tokens, carried)
            for j in range(12):
                changed = tokens.clone()
                changed[0, j] = (changed[0, j] + 1) % 17
                moved = (read(changed, carried) - before).abs().amax(dim=-1)[0] > 0
                assert torch.equal(moved, seen[:, j]), (carried, j)


def test_the_figure_of_segments_shows_the_triangle(tmp_path: Path) -> None:
    shown = values("segments", tmp_path, layers=2, length=3, memory=3)
    assert shown["without"]["seen"] == [6, 7, 8]
    assert shown["with"]["seen"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert shown["with"]["sees"][0][8] == [3, 4, 5, 6, 7, 8]
    assert len(shown["with"]["sees"]) == 2
    with refused("decoder", "transformer-xl"):
        values("segments", tmp_path, member="decoder")


def test_two_heads_look_as_far_as_their_spans(tmp_path: Path) -> None:
    shown = values("two-heads", tmp_path, spans=[2, 12], ramp=4)
    assert [head["span"] for head in shown["heads"]] == pytest.approx([2, 12], abs=1e-5)
    for head in shown["heads"]:
        back = list(reversed(head["weights"]))
        reach = head["span"] + 4
        assert all(weight == 0 for distance, weight in enumerate(back) if distance >= reach + 1e-4)
        assert back[1] > 0
        assert sum(back) == pytest.approx(1.0, abs=1e-5)
    with refused("spans", "span=32"):
        values("two-heads", tmp_path, spans=[2, 99])


def test_the_soft_mask_is_the_equation(tmp_path: Path) -> None:
    shown = values("soft-mask", tmp_path, spans=[5], ramp=4)
    assert shown["mask"][0][:11] == [1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_local_attention_on_the_image_is_the_pattern(tmp_path: Path) -> None:
    shown = values(
        "image-local", tmp_path, height=8, width=8, query_block=16, memory_block=8, query_block_2d=[4, 4], memory_block_2d=[2, 2]
    )
    first, second = shown["layouts"]
    for layout, pattern in ((first, Blocks(query=16, memory=8)), (second, LocalGrid(height=8, width=8, query=(4, 4), memory=(2, 2)))):
        row, column = layout["pixel"]
        sees = pattern.mask(64)[0, 8 * row + column]
        marked = torch.tensor([mark in "Q#+" for line in layout["seen"] for mark in line])
        assert torch.equal(marked, sees), layout["layout"]


@sweep("pattern", [Strided(stride=6), Fixed(stride=6, summary=2), Strided(stride=1)])
def test_the_two_parts_together_are_the_pattern(pattern: Strided | Fixed) -> None:
    marks = part_marks(pattern, 30)
    assert torch.equal(torch.from_numpy(marks != " "), pattern.mask(30)[0])


def test_factorised_figures_follow_stride_and_summary(tmp_path: Path) -> None:
    shown = values("factorized", tmp_path, stride=4, summary=2)["patterns"]
    assert shown[0]["pattern"] == {"kind": "Strided", "stride": 4}
    assert shown[1]["pattern"] == {"kind": "Fixed", "stride": 4, "summary": 2, "subblocks": 1}
    for found, pattern in zip(shown, (Strided(stride=4), Fixed(stride=4, summary=2)), strict=True):
        seen = torch.tensor([[mark != " " for mark in row] for row in found["marks"]])
        assert torch.equal(seen, pattern.mask(36)[0])


@sweep("reach", ["chunk", "bucket"])
def test_lsh_shows_the_buckets_order_and_keys_of_the_layer(reach: str, tmp_path: Path) -> None:
    shown = values("lsh", tmp_path, text="who meets whom", reach=reach, chunk=3)
    buckets, order = torch.tensor(shown["buckets"]), torch.tensor(shown["order"])
    assert shown["order"] == sorted(range(len(buckets)), key=lambda token: (shown["buckets"][token], token))
    hashed = Hashed(buckets[None, None, None], order[None, None, None])
    met = pair_counts(hashed, Rules(causal=True, chunk=3, reach="chunk" if reach == "chunk" else "bucket"))[0, 0].bool()
    assert shown["keys"] == [[j for j in row.nonzero()[:, 0].tolist() if j != i] for i, row in enumerate(met)]
    assert shown["chunk"] == (3 if reach == "chunk" else None)


def test_the_steps_of_a_universal_transformer(tmp_path: Path) -> None:
    shown = values("universal-steps", tmp_path, text="abcd", steps=4)
    assert all(1 <= n <= 4 for n in shown["steps"])
    assert shown["reads"] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    plain = save_named_figure("universal-steps", tmp_path / "u.svg", {"text": "abc", "steps": 3, "act": "none", "halt_bias": None})
    assert plain.values["steps"] == [3, 3, 3]
    assert "P^{3}" in " ".join(text.get_text() for text in plain.figure.axes[0].texts)
    with refused("decoder", "universal-transformer"):
        values("universal-steps", tmp_path, member="decoder")


def test_blocks_are_drawn_from_their_residuals(tmp_path: Path) -> None:
    post, reordered, gated = (block["items"] for block in values("blocks", tmp_path)["blocks"])
    assert [item.split("\n")[0] for item in post] == ["self-attention", "", "LayerNorm", "feed-forward", "", "LayerNorm"]
    assert [item.split("\n")[0] for item in reordered] == [
        "LayerNorm",
        "self-attention",
        "ReLU",
        "",
        "LayerNorm",
        "feed-forward",
        "ReLU",
        "",
    ]
    assert [item for item in gated if "gate" in item] == ["gru gate", "gru gate"]
    (highway, bare) = (block["items"] for block in values("blocks", tmp_path, members="gtrxl:gate=highway, decoder:norm=bare")["blocks"])
    assert "highway gate" in highway
    assert [item.split("\n")[0] for item in bare] == ["self-attention", "feed-forward"]


def test_a_run_is_drawn_in_place_of_a_new_model(tmp_path: Path) -> None:
    torch.manual_seed(3)
    spec: Spec = formers.spec("adaptive-span", vocab=256, dim=16, heads=2, layers=2, span=16, ramp=2, length=16)
    model = formers.build(spec)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("share"):
                weight.copy_(torch.tensor([0.25, 0.5]) + (0.25 if ".1." in name else 0.0))
    model.save_pretrained(tmp_path / "a$b")
    drawn = save_named_figure("two-heads", tmp_path / "t.svg", run=tmp_path / "a$b")
    assert [(head["layer"], head["head"], head["span"]) for head in drawn.values["heads"]] == [(0, 0, 4.0), (1, 1, 12.0)]
    assert save_named_figure("architecture", tmp_path / "a.svg", run=tmp_path / "a$b").values["parameters"] == model.parameter_count()
    with refused("heads=4", "leave one of them out"):
        save_named_figure("two-heads", tmp_path / "t.svg", {"heads": 4}, run=tmp_path / "a$b")
    with refused("--run", "soft-mask"):
        save_named_figure("soft-mask", tmp_path / "t.svg", run=tmp_path / "a$b")


@sweep(
    ("name", "options", "words"),
    [
        ("multihead", {}, ["multihead", "did you mean 'multi-head'"]),
        ("segments", {"layrs": 2}, ["layrs", "did you mean 'layers'"]),
        ("soft-mask", {"rampe": 2}, ["rampe", "did you mean 'ramp'"]),
        ("soft-mask", {"ramp": 0}, ["ramp=0"]),
        ("sinusoid", {"length": 0}, ["length=0"]),
        ("segments", {"segments": 99}, ["396", "1 ... 48"]),
        ("multi-head", {"member": "decodr"}, ["decodr", "did you mean 'decoder'"]),
        ("multi-head", {"member": "reformer"}, ["LSH", "DotProduct"]),
        ("multi-head", {"layer": 9}, ["layer=9", "0 ... 3"]),
        ("lsh", {"text": ""}, ["empty"]),
        ("lsh", {"text": "x" * 25}, ["25", "1 ... 24"]),
        ("two-heads", {"text": ""}, ["empty"]),
        ("two-heads", {"heads": 1}, ["heads=1"]),
        ("image-local", {"height": 99}, ["99", "1 ... 32"]),
        ("factorized", {"pixel": [9, 9]}, ["9,9", "5,5"]),
        ("blocks", {"members": "decodr"}, ["decodr", "did you mean 'decoder'"]),
        ("blocks", {"members": "gtrxl:gate"}, ["'gate'", "name=value"]),
        ("act-graph", {"text": "too long"}, ["8", "1 ... 5"]),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with refused(*words):
        save_named_figure(name, tmp_path / "x.svg", options)

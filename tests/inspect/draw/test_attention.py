"""Attention, drawn: the marks, pixels and numbers are the weights."""

from __future__ import annotations

import base64
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import formers
from formers.data import Bytes
from formers.data.words import build_words
from formers.inspect import (
    View,
    alignment_of,
    attention_facts,
    attention_page,
    by_words,
    draw_map,
    find_view,
    save_attention_page,
    save_heads,
    save_map,
    token_labels,
    views_of,
)
from formers.inspect.draw.attention import SHADES
from formers.inspect.draw.attention_page import quantised
from formers.inspect.draw.fonts import drawable, fonts_for
from helpers import close, refused, sweep

BYTES = Bytes(specials=("begin", "end"))
LABELS = token_labels(BYTES, [256, *"déjà vu x".encode()])


def causal(length: int, layers: int = 2, heads: int = 3) -> Tensor:
    scores = 2 * torch.randn(layers, heads, length, length)
    return scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf")).softmax(dim=-1)


def view_of(labels: list[str] = LABELS) -> View:
    return View("self-attention", labels, labels, causal(len(labels)))


def translation() -> View:
    source, target = ["ein", "␣Mann", "␣liest"], ["⟨begin⟩", "a", "␣man", "␣reads"]
    return View("cross-attention", target, source, torch.randn(2, 2, 4, 3).softmax(dim=-1))


def seq2seq() -> formers.Model:
    model = formers.create("transformer", vocab=258, dim=16, heads=2, layers=2, length=64)
    model.tokenizer = BYTES
    return model


# --- views


def test_a_view_refuses_what_it_cannot_be() -> None:
    with refused("(2, 3, 4, 5)", "(layers, heads, 2, 5)"):
        View("self-attention", ["a", "b"], list("abcde"), torch.ones(2, 3, 4, 5))
    with refused("not finite", "checkpoint"):
        View("self-attention", ["a"], ["a"], torch.full((1, 1, 1, 1), float("nan")))
    with refused("at least one"):
        View("self-attention", [], [], torch.ones(1, 1, 0, 0))


def test_what_is_left_out_is_averaged_and_what_there_is_none_of_refused() -> None:
    view = view_of()
    assert view.chosen(1, 2).equal(view.weights[1, 2])
    close(view.chosen(1), view.weights[1].mean(dim=0), 1e-6)
    close(view.chosen(head=2), view.weights[:, 2].mean(dim=0), 1e-6)
    close(view.chosen(), view.weights.mean(dim=(0, 1)), 1e-6)
    for layer, head, words in ((2, None, ("layer=2", "0 ... 1")), (-1, 0, ("layer=-1",)), (0, 3, ("head=3", "0 ... 2"))):
        with refused(*words):
            view.chosen(layer, head)


def test_an_alignment_stands_at_the_token_that_was_written() -> None:
    cross = translation()
    aligned = alignment_of(cross)
    assert aligned.queries == ["a", "␣man", "␣reads"]
    assert aligned.weights.equal(cross.weights[:, :, :3])  # what ⟨begin⟩ looked at wrote "a"
    assert by_words(aligned).queries == ["a", "man", "reads"]
    with refused("empty"):
        alignment_of(View("cross-attention", ["⟨begin⟩"], ["a"], torch.ones(1, 1, 1, 1)))


def test_words_sum_over_keys_and_average_over_queries() -> None:
    view = view_of()
    words = by_words(view)
    assert words.queries == words.keys == ["⟨begin⟩", "déjà", "vu", "x"]
    ranges = [range(0, 1), range(1, 7), range(7, 10), range(10, len(LABELS))]
    for q, queries in enumerate(ranges):
        for k, keys in enumerate(ranges):
            block = view.weights[:, :, queries.start : queries.stop, keys.start : keys.stop]
            close(words.weights[:, :, q, k], block.sum(dim=3).mean(dim=2), 1e-6)
    close(words.weights.sum(dim=3), torch.ones(2, 3, 4), 1e-5)


@sweep(
    ("labels", "words"),
    [
        (["the", "␣cat", "s", "␣", "␣sat", "⏎"], ["the", "cats", "sat", "⏎"]),
        (["⏎", "⏎", "a", "␣", "b"], ["⏎⏎a", "b"]),
        (["a␣", "b", "␣", "c"], ["a", "b", "c"]),
        (["⟨begin⟩", "⟨end⟩", "a", "⟨end⟩", "b"], ["⟨begin⟩", "⟨end⟩", "a", "⟨end⟩", "b"]),
        (["␣", "␣"], ["␣␣"]),
        ([r"\xe6", "␣", r"\xe6", r"\x97", r"\xa5"], [r"\xe6", "日"]),
        (["a"], ["a"]),
    ],
)
def test_words_reach_from_white_space_to_white_space(labels: list[str], words: list[str]) -> None:
    assert by_words(view_of(labels)).queries == words


# --- of a model


@sweep("name", ["decoder", "encoder"])
def test_the_views_of_a_stack_are_its_maps(name: str) -> None:
    model = formers.create(name, vocab=256, dim=16, heads=2, layers=3, length=64)
    (view,) = views_of(model, "déjà\n")
    assert view.queries == view.keys == ["d", r"\xc3", r"\xa9", "j", r"\xc3", r"\xa0", "⏎"]
    maps = model.inspect(torch.tensor([list("déjà\n".encode())])).attention
    close(view.weights, torch.stack(maps)[:, 0], 1e-6)
    close(view.weights.sum(dim=-1), torch.ones(3, 2, 7), 1e-5)
    assert views_of(model, "a")[0].weights.tolist() == [[[[1.0]], [[1.0]]]] * 3
    with refused("empty"):
        views_of(model, "")
    with refused(name, "target"):
        views_of(model, "a", "b")


@pytest.mark.parametrize(("projection", "keys"), [("linear", 4), ("mean", 2)])
def test_projected_keys_are_numbered_and_never_called_tokens(projection: str, keys: int, tmp_path: Path) -> None:
    model = formers.create("linformer", vocab=256, dim=16, heads=2, layers=3, length=12, rank=4, projection=projection)
    (view,) = views_of(model, "01 23")
    assert view.queries == ["0", "1", "␣", "2", "3"]
    assert view.keys == [f"⟨{number}⟩" for number in range(keys)]
    assert view.projected
    assert not view.same
    assert view.sides == ("query", "projected key")
    close(view.weights, torch.stack(model.inspect(torch.tensor([list(b"01 23")])).attention)[:, 0], 1e-6)
    assert by_words(view).keys == view.keys, "projected keys make no words"
    assert "projected key across. A projected key is made of many tokens." in draw_map(view, columns=200)
    page = attention_page([view])
    assert '"projected":true' in page
    assert '"keys":"projected key"' in page
    drawn = save_heads(view, tmp_path / "heads.svg").read_text()
    assert "tokens" not in drawn
    spec = formers.spec("transformer", vocab=258, dim=16, heads=2, layers=1, length=12)
    pair = formers.build(spec.replace(encoder=spec.encoder.replace(attention=model.spec.attention)))
    pair.tokenizer = BYTES
    encoder, own, cross = views_of(pair, "01 23", "4")
    assert (encoder.projected, own.projected, cross.projected) == (True, False, False)
    assert (encoder.keys, own.keys, cross.keys) == (view.keys, own.queries, view.queries)


def test_the_views_of_an_encoder_decoder_are_three() -> None:
    model = seq2seq()
    views = views_of(model, "ab c", "dé")
    assert [view.title for view in views] == ["encoder self-attention", "self-attention", "cross-attention"]
    encoder, own, cross = views
    assert encoder.queries == encoder.keys == cross.keys == ["a", "b", "␣", "c"]
    assert own.queries == own.keys == cross.queries == ["⟨begin⟩", "d", r"\xc3", r"\xa9"]
    seen = model.inspect(torch.tensor([list(b"ab c")]), torch.tensor([[256, *"dé".encode()]]))
    close(cross.weights, torch.stack(seen.cross)[:, 0], 1e-6)
    assert not own.weights.triu(1).any()
    assert find_view(views) == 2
    assert [find_view(views, name) for name in ("encoder", "self", "cross")] == [0, 1, 2]
    with refused("empty"):
        views_of(model, "", "a")
    with refused("'cross'", "it has self."):
        find_view([own], "cross")


def test_an_encoder_decoder_without_a_target_writes_one() -> None:
    model = seq2seq()
    written = formers.generate(model, torch.tensor([list(b"ab")]), max_new_tokens=54, temperature=0)[0].tolist()
    written = written[: written.index(257)] if 257 in written else written
    assert views_of(model, "ab")[2].queries == token_labels(BYTES, [256, *written])


# --- the page


def page_data(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def unpacked(view: dict) -> Tensor:
    values = np.frombuffer(base64.b64decode(view["weights"]), dtype=f"<u{view['bits'] // 8}").astype(np.float64)
    shape = (view["layers"], view["heads"], len(view["queries"]), len(view["keys"]))
    return torch.from_numpy(values / (2 ** view["bits"] - 1)).view(shape)


@sweep("length", [1, 12, 420])
def test_the_page_holds_the_weights(length: int) -> None:
    labels = token_labels(Bytes(), b"abc " * (length // 4) + b"x" * (length % 4))
    view = view_of(labels)
    serialisable = page_data(attention_page([view]))["views"][0]
    assert serialisable["bits"] == (8 if length == 420 else 16)
    read = unpacked(serialisable)
    close(read, view.weights.double(), 0.5001 / (2 ** serialisable["bits"] - 1))
    assert not read.triu(1).any()


def test_a_row_without_keys_stays_zero_and_one_stays_one() -> None:
    weights = torch.tensor([0.0, 1.0, 0.5, 1e-9, 1.0000001])
    assert list(quantised(weights, 8)) == [0, 255, 128, 0, 255]
    assert np.frombuffer(quantised(weights, 16), "<u2").tolist() == [0, 65535, 32768, 0, 65535]


def test_a_page_of_200_tokens_is_small_and_one_of_thousands_refused() -> None:
    labels = ["a"] * 200
    assert len(attention_page([View("self-attention", labels, labels, torch.zeros(6, 8, 200, 200))])) < 2_800_000
    labels = ["a"] * 2000
    with refused("from 2,000 to about 1,414 tokens", ".png"):
        attention_page([View("self-attention", labels, labels, torch.zeros(1, 1, 1, 1).expand(2, 4, 2000, 2000))])
    with refused("at least one"):
        attention_page([])


def test_text_cannot_leave_the_data_and_nothing_is_asked_for() -> None:
    nasty = ["</script><script>alert(1)</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "{{script}}", '"\\', "日"]
    page = attention_page([view_of(nasty)], model="</title><script>alert(1)</script>")
    assert page_data(page)["views"][0]["queries"] == nasty
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "alert(1)</" not in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = save_attention_page([view_of()], tmp_path / "a.html", "decoder", 1, 2)
    assert page_data(path.read_text(encoding="utf-8"))["start"] == {"view": 0, "layer": 1, "head": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]
    with refused("nowhere", "folder"):
        save_attention_page([view_of()], tmp_path / "nowhere" / "a.html")
    with refused("layer=2"):
        save_attention_page([view_of()], tmp_path / "a.html", layer=2)


# --- pictures


def png_size(path: Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.mark.parametrize("labels", [["a"], LABELS, ["日本", "🙂", "$x$", r"\$", "<b>", "␣"], ["ab"] * 130], ids=len)
@pytest.mark.filterwarnings("error")
def test_pictures_of_any_text_are_written(labels: list[str], tmp_path: Path) -> None:
    view = view_of(labels)
    for name, path in {"heads": save_heads(view, tmp_path / "h.png", "m"), "map": save_map(view, tmp_path / "m.png", 1, 2, "m")}.items():
        assert path.read_bytes().startswith(b"\x89PNG"), name
        assert max(png_size(path)) < 4000
    assert ElementTree.parse(save_map(view, tmp_path / "m.svg")).getroot().tag.endswith("svg")


def test_a_picture_has_the_weights_as_colours_and_the_tokens_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr("formers.inspect.draw.attention.save_figure", lambda figure, path: figures.append(figure) or Path(path))
    view = translation()
    save_map(view, tmp_path / "a.png", 1, 0)
    save_heads(view, tmp_path / "b.png")
    one, many = figures
    axes = one.axes[0]
    assert np.array_equal(axes.images[0].get_array(), view.weights[1, 0].numpy())
    assert [text.get_text() for text in axes.get_xticklabels()] == view.keys
    assert [text.get_text() for text in axes.get_yticklabels()] == view.queries
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")
    assert "to write the next" in " ".join(one._supxlabel.get_text().split())
    assert [a.get_title() for a in many.axes[:4]] == ["head 0", "head 1", "", ""]
    for place, panel in enumerate(many.axes[:4]):
        assert np.array_equal(panel.images[0].get_array(), view.weights[place // 2, place % 2].numpy())


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    view = translation()
    for suffix in ("png", "svg"):
        first, second = (save_map(view, tmp_path / f"{i}.{suffix}").read_bytes() for i in range(2))
        assert first == second


def test_characters_that_no_font_has_are_written_by_number() -> None:
    families, missing = fonts_for(["abc", "\U000f0000"])
    assert families == ["DejaVu Sans"]
    assert drawable("a\U000f0000", missing) == r"a\U000f0000"


def test_pictures_refuse_what_they_cannot_be(tmp_path: Path) -> None:
    with refused("a.gif"):
        save_map(view_of(), tmp_path / "a.gif")
    with refused("layer=7"):
        save_map(view_of(), tmp_path / "a.png", 7)
    with refused("40 layers of 40 heads"):
        save_heads(View("self-attention", ["a"], ["a"], torch.ones(40, 40, 1, 1)), tmp_path / "a.png")


# --- the terminal


def read_marks(drawing: str, rows: int) -> list[str]:
    body = drawing.split("\n\n")[0].splitlines()[-rows:]
    return [re.sub(r"[^·░▒▓█]", "", line) for line in body]


def level(weight: float) -> int:
    return 0 if weight == 0 else 1 + min(int(4 * weight**0.5), 3)


def test_marks_are_the_weights() -> None:
    view = view_of()
    weights = view.chosen(1, 2)
    marks = read_marks(draw_map(view, 1, 2), len(LABELS))
    for row, line in zip(weights.tolist(), marks, strict=True):
        assert [SHADES.index(mark) for mark in line[::2]] == [level(w) for w in row]
        assert line[::2] == line[1::2]


@sweep(("columns", "length"), [(80, 70), (60, 300), (20, 40), (80, 1)])
def test_what_does_not_fit_is_pooled_by_its_strongest(columns: int, length: int) -> None:
    view = view_of(["ab"] * length)
    drawing = draw_map(view, 0, columns=columns)
    assert max(map(len, drawing.splitlines())) <= columns
    down = 1 if length <= 200 else 3
    marks = read_marks(drawing, -(-length // down))
    wide = 2 if length == 1 else 1
    across = -(-length // (len(marks[0]) // wide))
    weights = view.chosen(0)
    for r, line in enumerate(marks):
        for c, mark in enumerate(line[::wide]):
            inside = weights[r * down : (r + 1) * down, c * across : (c + 1) * across]
            assert SHADES.index(mark) == level(inside.max().item())


def test_a_terminal_without_unicode_gets_labels_it_can_show() -> None:
    labels = [*token_labels(BYTES, [256, *"é ".encode()]), "日本" * 20]
    drawing = draw_map(view_of(labels), encoding="ascii")
    assert drawing.isascii()
    assert r"\<begin> ##" in drawing
    assert r"\s " in drawing
    assert max(map(len, drawing.splitlines())) <= 80


def test_labels_stand_beside_rows_and_above_columns() -> None:
    lines = draw_map(translation(), 0, 0).splitlines()
    heading = lines[: len("␣liest")]
    assert "".join(line.ljust(20)[9 + 4] for line in heading).strip() == "␣liest"
    assert [line.split()[0] for line in lines[6:10]] == ["⟨begin⟩", "a", "␣man", "␣reads"]
    assert "cross-attention, layer 0, head 0: target down, source across." in lines[11]


def test_a_query_without_keys_is_drawn_as_nothing(tmp_path: Path) -> None:
    weights = causal(3)
    weights[:, :, 1] = 0
    view = View("self-attention", ["a", "b", "c"], ["a", "b", "c"], weights)
    assert read_marks(draw_map(view), 3)[1] == "······"
    assert attention_facts(view)["weights"][0][0][1] == [0.0, 0.0, 0.0]
    assert by_words(view).weights.isfinite().all()
    save_map(view, tmp_path / "a.png")


def test_facts_are_the_weights_to_four_digits() -> None:
    view = translation()
    facts = json.loads(json.dumps(attention_facts(view)))
    assert facts["queries"] == view.queries
    assert facts["keys"] == view.keys
    assert (facts["layers"], facts["heads"]) == (2, 2)
    close(torch.tensor(facts["weights"]), view.weights, 0.5001e-4)
    assert all(len(str(w)) <= 6 for row in facts["weights"][0][0] for w in row)


def test_extra_vectors_are_labelled_and_are_no_tokens():
    small = {"vocab": BYTES.vocab, "dim": 16, "heads": 2, "layers": 1, "extra": 2}
    for options, title in (({}, "self-attention"), ({"decoder_layers": 1}, "encoder self-attention")):
        model = formers.create("bigbird", **small, **options)
        model.tokenizer = BYTES
        views = {view.title: view for view in views_of(model, "ab c", *(["x"] if options else []))}
        assert views[title].queries == views[title].keys == ["⟨extra 1⟩", "⟨extra 2⟩", "a", "b", "␣", "c"]
        assert by_words(views[title]).keys == ["⟨extra 1⟩", "⟨extra 2⟩", "ab", "c"]
        if options:
            assert views["cross-attention"].keys == ["a", "b", "␣", "c"], "the decoder reads tokens"


def test_of_a_story_facts_look_at_facts() -> None:
    model = formers.create("encoder", vocab=9, fact=5, classes=3, dim=16, heads=2, layers=2, length=8).eval()
    model.tokenizer = build_words(["mary moved to the garden\nwhere is mary\n"])
    (view,) = views_of(model, "Mary moved to the garden. Where is Mary?")
    assert view.queries == view.keys == ["1 mary moved to the garden", "2 where is mary"]
    assert view.weights.shape == (2, 2, 2, 2)
    close(view.weights.sum(dim=-1), torch.ones(2, 2, 2), 1e-5)
    with refused("'john'"):
        views_of(model, "Where is John?")
    with refused("writes no target"):
        views_of(model, "Where is Mary?", "garden")


def test_a_recurrent_encoder_decoder_has_an_alignment_and_no_other_view() -> None:
    model = formers.create("seq2seq", vocab=258, dim=16, dropout=0.0)
    model.tokenizer = BYTES
    views = views_of(model, "abc", "de")
    (view,) = views
    assert find_view(views, "cross") == 0
    assert view.weights.shape == (1, 1, 3, 3)
    close(view.weights.sum(dim=-1), torch.ones(1, 1, 3), 1e-5)
    with refused("no view 'self'", "it has cross"):
        find_view(views, "self")


@sweep("blind", [{"name": "seq2seq", "alignment": "none"}, {"name": "rnn"}])
def test_what_compares_nothing_has_nothing_to_be_seen(blind: dict[str, str]) -> None:
    model = formers.create(**blind, vocab=258, dim=16, dropout=0.0)
    model.tokenizer = BYTES
    with refused(blind["name"], "no attention to look at"):
        views_of(model, "abc")

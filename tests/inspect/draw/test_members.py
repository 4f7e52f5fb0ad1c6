"""A description says what the member is: its slots, its real parameters, its block."""

from __future__ import annotations

import io
import json
from typing import Any

import torch
from rich.console import Console, RenderableType

import formers
from contracts.specimens import SPECIMENS, Specimen
from formers.core import Slot
from formers.family import MEMBERS
from formers.inspect import describe_member, draw_block, list_members, member_facts, members_facts, parameter_parts
from formers.inspect.measure.members import member_spec
from formers.inspect.measure.parameters import PARTS, weightless
from formers.model import Spec
from helpers import refused, sweep

NAMES = sweep("name", formers.members())


def needed(name: str) -> dict[str, Any]:
    """A small value for whatever else a recipe insists on."""
    return {option: 4 for option, p in MEMBERS[name].parameters.items() if p.default is p.empty and option != "vocab"}


def printed(what: RenderableType, width: int = 80) -> str:
    """What rich prints, without colours."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@sweep("specimen", SPECIMENS)
def test_parts_sum_to_the_parameter_count(specimen: Specimen) -> None:
    model = formers.build(specimen.spec)
    counts = parameter_parts(model)
    assert sum(counts.values()) == model.parameter_count()
    assert parameter_parts(weightless(specimen.spec)) == counts
    assert counts["attention"] > 0
    assert (counts["cross-attention"] > 0) == (specimen.spec.encoder is not None and not specimen.spec.attention.reads_source)
    assert "other" not in counts


def test_parts_are_where_the_equations_put_them() -> None:
    counts = parameter_parts(formers.create("decoder", vocab=10, dim=8, heads=2, layers=3, hidden=16, position="learned", length=5))
    assert list(counts)[: len(PARTS)] == list(PARTS)
    assert counts == {
        "embedding": 10 * 8,
        "attention": 3 * 4 * (8 * 8 + 8),
        "cross-attention": 0,
        "feed-forward": 3 * (8 * 16 + 16 + 16 * 8 + 8),
        "norms": (3 * 2 + 1) * 2 * 8,
        "head": 0,
        "positions": 5 * 8,
    }


@NAMES
def test_every_member_and_preset_describes_itself(name: str) -> None:
    for preset in (None, *MEMBERS[name].presets):
        text = printed(describe_member(name, preset=preset, options=needed(name)))
        assert max(map(len, text.splitlines())) <= 80
        facts = json.loads(json.dumps(member_facts(name, preset=preset, options=needed(name))))
        assert f"{facts['parameters']['total']:,}" in text
        assert sum(facts["parameters"]["parts"].values()) == facts["parameters"]["total"]
        spec = member_spec(name, preset=preset, options=needed(name))
        for slot in (f for f in Spec.model_fields if isinstance(getattr(spec, f), Slot)):
            assert facts["stacks"][-1]["slots"][slot]["kind"] == type(getattr(spec, slot)).__name__
            assert f"{slot} " in text
        for option in MEMBERS[name].options:
            assert option in text


@NAMES
def test_a_description_leaves_no_weightless_tensors_behind(name: str) -> None:
    describe_member(name, options=needed(name))
    model = formers.build(member_spec(name, options=needed(name)))
    assert all(t.device == torch.device("cpu") for t in (*model.parameters(), *model.buffers()))


@NAMES
def test_ascii_is_all_that_some_terminals_have(name: str) -> None:
    assert draw_block(member_spec(name, options=needed(name)), "ascii").isascii()
    about = printed(list_members("ascii"))
    assert name in about


def test_a_vocabulary_stands_in_only_where_none_is_said() -> None:
    assert member_spec("decoder").vocab == 256
    assert member_spec("decoder", 99).vocab == 99
    assert member_spec("decoder", 99, options={"vocab": 7}).vocab == 7
    assert member_spec("encoder", options={"features": 3, "classes": 2}).vocab is None


def test_options_and_presets_are_reported() -> None:
    facts = member_facts("decoder", options={"layers": 9})
    assert facts["options"]["vocab"] == {"required": True}
    assert facts["options"]["layers"] == {"required": False, "default": 4}
    assert facts["presets"]["base"]["dim"] == 512
    assert facts["stacks"][0]["slots"]["depth"] == {"kind": "Stacked", "layers": 9}
    assert facts["stacks"][0]["sizes"]["head_dim"] == 32


def order(drawing: str, *words: str) -> bool:
    """Whether words follow one another in a drawing."""
    place = -1
    for word in words:
        place = drawing.find(word, place + 1)
        if place < 0:
            return False
    return True


def test_blocks_show_how_sublayers_join() -> None:
    pre, post, bare = (draw_block(formers.spec("decoder", vocab=9, norm=norm)) for norm in ("pre", "post", "bare"))
    assert order(pre, "LayerNorm", "self-attention", "+─", "LayerNorm", "feed-forward", "+─", "╰", "LayerNorm", "LanguageModel")
    assert pre.count("LayerNorm") == 3
    assert order(post, "self-attention", "+─", "LayerNorm", "feed-forward", "+─", "LayerNorm", "╰", "LanguageModel")
    assert post.count("LayerNorm") == 2
    assert "LayerNorm" not in bare
    assert "├" not in bare
    for drawing in (pre, post, bare):
        assert order(drawing, "tokens", "embedding", "Sinusoidal", "Causal", "Dense")
        assert "\N{MULTIPLICATION SIGN} 4" in drawing


def test_an_encoder_decoder_is_drawn_side_by_side() -> None:
    drawing = draw_block(formers.spec("transformer", vocab=9))
    assert drawing.count("self-attention") == 2
    assert drawing.count("cross-attention") == 1
    assert max(map(len, drawing.splitlines())) <= 80
    assert any("Full" in line and "Causal" in line for line in drawing.splitlines())


def test_members_are_listed_with_their_first_line() -> None:
    facts = {fact["name"]: fact for fact in members_facts()}
    assert list(facts) == formers.members()
    assert facts["decoder"]["about"].startswith("The decoder alone")
    assert facts["decoder"]["presets"] == ["base"]
    assert all(name in printed(list_members()) for name in facts)


def test_mistakes_are_one_sentence() -> None:
    with refused("decodr", "did you mean 'decoder'"):
        describe_member("decodr")
    with refused("huge", "base"):
        describe_member("decoder", preset="huge")
    with refused("layrs", "did you mean 'layers'"):
        describe_member("decoder", options={"layrs": 3})
    with refused("heads=5"):
        describe_member("decoder", options={"heads": 5})

"""The member `reformer`: what its options make, what is refused, and that its presets are what they say."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import formers
from formers.attention import LSH, ByLayer, DotProduct, SharedQK
from formers.cli import main
from formers.feedforward import Chunked
from formers.heads import Classify, LanguageModel, MaskedLM, NoHead
from formers.patterns import Alternate, Blocks, Causal, Full, Local
from formers.position import Axial, Sinusoidal
from formers.residual import PreNorm, Reversible
from helpers import close, one_sentence, refused, sweep

TINY = {"vocab": 11, "dim": 16, "heads": 2, "layers": 4, "hidden": 24, "length": 32, "chunk": 8}


def test_by_default_it_is_a_decoder_over_whole_buckets() -> None:
    spec = formers.spec("reformer", vocab=11)
    assert spec.attention == LSH(rounds=2, chunk=64, reach="bucket", scaled=False)
    assert (spec.pattern, spec.residual, spec.position, spec.head) == (Causal(), Reversible(ends="mean"), Axial(), LanguageModel())
    assert spec.feedforward == Chunked(hidden=512, activation="gelu", chunk=2048)
    assert spec.is_causal
    assert spec.draws
    assert formers.spec("reformer", vocab=11, length=20).attention.chunk == 20, "a short row is one chunk"


def test_what_its_options_make() -> None:
    spec = formers.spec("reformer", **TINY, attention="local, lsh", local_chunk=4, hash_seed=3, evaluation_rounds=5, buckets=6)
    assert spec.attention == ByLayer(DotProduct(bias=False), LSH(chunk=8, buckets=6, seed=3, evaluation_rounds=5, scaled=False))
    assert spec.pattern == Alternate(Blocks(query=4, memory=4), Causal())
    assert formers.spec("reformer", **TINY, attention=["full"]).attention == SharedQK(scaled=False)
    assert formers.spec("reformer", **TINY, attention=("full", "lsh")).pattern == Causal(), "one pattern is none by turns"
    assert formers.spec("reformer", **TINY, attention="separate", scaled=True).attention == DotProduct(bias=False)
    assert formers.spec("reformer", **TINY, ff_chunk=9).feedforward == Chunked(hidden=24, activation="gelu", chunk=9)
    assert formers.spec("reformer", **TINY, loss_chunk=9).head == LanguageModel(chunk=9)
    assert formers.spec("reformer", **TINY, ends="sum").residual == Reversible(ends="sum")
    assert formers.spec("reformer", **TINY, norm="pre").residual == PreNorm()
    assert formers.spec("reformer", **TINY, position="sinusoidal").position == Sinusoidal()
    assert formers.spec("reformer", **TINY, shape=(4, 8), dims=(6, 10)).position == Axial(shape=(4, 8), dims=(6, 10))


def test_encoders_and_both() -> None:
    masked = formers.spec("reformer", **TINY, causal=False, attention="lsh,local")
    assert (masked.pattern, masked.head) == (Alternate(Full(), Local(window=8, causal=False)), MaskedLM())
    assert formers.spec("reformer", **TINY, classes=3).pattern == Full()
    assert formers.spec("reformer", **TINY, classes=3, pool="first").head == Classify(classes=3, pool="first")
    pair = formers.spec("reformer", **TINY, decoder_layers=2)
    assert (pair.encoder.attention, pair.encoder.pattern, pair.encoder.head) == (LSH(chunk=8, scaled=False), Full(), NoHead())
    assert (pair.attention, pair.pattern, pair.depth.steps) == (DotProduct(bias=False), Causal(), 2)
    assert pair.residual == pair.encoder.residual == Reversible()


def test_its_presets_are_the_papers_and_those_of_the_authors_code() -> None:
    base, ablation, trax, images, wmt = (
        formers.spec("reformer", preset=name, vocab=256) for name in ("base", "ablation", "trax", "imagenet64", "wmt")
    )
    for spec in (base, ablation, trax, images):
        assert (spec.dim, spec.heads, spec.feedforward.hidden) == (1024, 8, 4096)
    assert [spec.depth.steps for spec in (base, ablation, trax, images)] == [12, 3, 12, 6]
    assert [spec.length for spec in (base, ablation, trax, images)] == [65_536, 65_536, 65_536, 12_288]
    assert base.attention.reach == "chunk"
    kinds = [type(trax.attention.at(layer)).__name__ for layer in range(12)]
    assert kinds.count("LSH") == 3
    assert kinds[2] == "LSH"
    assert trax.residual == Reversible(ends="concat", epsilon=1e-6)
    assert (wmt.encoder.depth.steps, wmt.depth.steps, wmt.dim) == (6, 6, 512)
    assert wmt.encoder.attention == wmt.attention == DotProduct(bias=False)


WRONG: list[tuple[dict[str, object], tuple[str, ...]]] = [
    ({"buckets": 7}, ("buckets=7", "odd", "use 8")),
    ({"buckets": [4, 3]}, ("odd",)),
    ({"rounds": 0}, ("rounds=0",)),
    ({"chunk": 99}, ("chunk=99", "length=32", "at most 32")),
    ({"shape": [4, 4]}, ("shape=(4, 4)", "length=32")),
    ({"dims": [4, 4]}, ("dims=(4, 4)", "dim=16")),
    ({"across_buckets": True}, ("reach='chunk'",)),
    ({"attention": "lsh,lokal"}, ("attention", "lokal", "'local'")),
    ({"attention": []}, ("attention=[]", "local,lsh")),
    ({"norm": "pre", "ends": "sum"}, ("ends=sum", "norm=pre")),
    ({"position": "learned", "shape": [4, 8]}, ("shape=[4, 8]", "position=learned")),
    ({"position": "per-layer"}, ("PerLayer", "norm=pre")),
    ({"ends": "concat"}, ("ends=concat", "tied=False")),
    ({"classes": 2, "decoder_layers": 1}, ("classes=2", "decoder_layers=1")),
    ({"causal": True, "decoder_layers": 1}, ("causal=True", "decoder_layers=1")),
]


@sweep(("options", "words"), WRONG)
def test_what_cannot_work_is_one_sentence(options: dict[str, object], words: tuple[str, ...]) -> None:
    with refused(*words):
        formers.create("reformer", **{**TINY, **options})


@pytest.mark.parametrize("pair", ["buckets=7", "rounds=0", "chunk=999", "shape=[4,4]", "position=per-layer", "attention=lsh,lokal"])
def test_and_exit_code_2_on_the_command_line(
    pair: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["formers", "train", "reformer", "--data", "stdlib", "--steps", "1", "--set", "length=64", "--set", pair]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    line = capfd.readouterr().err.strip()
    one_sentence(line)
    assert pair.split("=")[0] in line or "PerLayer" in line


@torch.no_grad()
def test_hashing_into_one_bucket_is_full_attention() -> None:
    """A row of one chunk, all of whose buckets are seen, is the row of the same weights with dense attention."""
    lsh = formers.create("reformer", **{**TINY, "chunk": 32}, reach="chunk", across_buckets=True, duplicates=True).double().eval()
    full = formers.create("reformer", **TINY, attention="full").double().eval()
    full.load_state_dict(lsh.state_dict())
    x = torch.randint(11, (2, 32))
    close(lsh(x).logits, full(x).logits)


def test_a_step_of_training_draws_by_its_number() -> None:
    model = formers.create("reformer", **TINY, buckets=4).double()
    x = torch.randint(11, (2, 32))
    losses = [model(x, targets=x, update=update).loss.item() for update in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert model(x, targets=x).loss.item() == model(x, targets=x).loss.item()


LSH_OF_OTHERS: dict[str, Any] = {"reach": "chunk", "across_buckets": True, "duplicates": True, "wrap": "rounds"}
"""The options of tests/parity/test_reformer_attention.py."""
MODEL_OF_OTHERS: dict[str, Any] = {"ends": "concat", "tied": False, "embedding_scale": "none"}
"""Those of tests/parity/test_reformer_model.py beside them."""
CONVENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "trax": {**LSH_OF_OTHERS, **MODEL_OF_OTHERS, "scaled": False, "key_epsilon": 1e-6, "norm_epsilon": 1e-6},
    "transformers": {**LSH_OF_OTHERS, **MODEL_OF_OTHERS, "scaled": False, "key_epsilon": 1e-6, "norm_epsilon": 1e-12},
    "lucidrains": {**LSH_OF_OTHERS, "scaled": True, "ends": "mean", "tied": False, "embedding_scale": "none", "norm_epsilon": 1e-5},
}


@pytest.mark.parametrize("convention", CONVENTION_OPTIONS)
def test_a_convention_is_the_options_that_parity_is_tested_with(convention: str) -> None:
    sizes: dict[str, Any] = {"vocab": 17, "dim": 12, "heads": 2, "attention": "local,lsh", "activation": "relu"}
    made = formers.spec("reformer", **sizes, convention=convention)
    assert made == formers.spec("reformer", **sizes, **CONVENTION_OPTIONS[convention])
    assert (made == formers.spec("reformer", **sizes)) == (convention == "paper")


def test_explicit_options_override_the_convention() -> None:
    explicit: dict[str, Any] = {
        "itself": "always", "wrap": "round", "scaled": True, "ends": "sum", "tied": True, "embedding_scale": "output", "duplicates": False,
        "key_epsilon": 0.0, "norm_epsilon": 1e-3,
    }  # fmt: skip
    for convention in ("trax", "transformers", "lucidrains"):
        made = formers.spec("reformer", vocab=17, convention=convention, **explicit)
        assert made == formers.spec("reformer", vocab=17, reach="chunk", across_buckets=True, **explicit)
    preset = formers.spec("reformer", vocab=17, preset="trax", convention="transformers", tied=True, ends="mean")
    assert (preset.residual.epsilon, preset.residual.ends, preset.head.tied) == (1e-12, "mean", True)


def test_an_unknown_convention_is_refused() -> None:
    with refused("convention='trix'", "trax"):
        formers.spec("reformer", vocab=17, convention="trix")
    with refused("decoder has no option 'convention'"):
        formers.spec("decoder", vocab=17, convention="trax")

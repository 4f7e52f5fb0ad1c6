"""Evaluation: every metric is what counting by hand gives, whatever the tokenisation, the batches and the processes."""

from __future__ import annotations

import importlib
import itertools
import json
import math

import pytest
import torch
from torch import nn

import formers
from formers.core import IGNORED
from formers.data import Bytes, Language, LastWord, Streams
from formers.evaluation.evaluate import Stopped, evaluate, evaluate_all
from formers.evaluation.metrics import live_metrics, perplexity
from formers.evaluation.protocol import Protocol
from formers.evaluation.word_counter import WordCounter
from formers.heads.base import cross_entropy
from formers.model.model import Output
from helpers import refused

module = importlib.import_module("formers.evaluation.evaluate")  # the package has a function of that name
TEXT = "to be, or not\nto be:  that is\n\n the question, ob's edler im Gemüt ☺\n".encode() * 2
SIZES = dict(dim=16, heads=2, layers=1)


def windows(stream, length):
    """A text in windows."""
    return Language({"valid": torch.tensor(list(stream))}, length)


class Given:
    """Batches that are there already."""

    def __init__(self, batches, rows, length=8, continues=False):
        self.batches, self.parts, self.length, self.continues = batches, {"valid": rows}, length, continues

    def eval_batches(self, size, part="valid", stride=None):
        return ({name: value.clone() for name, value in batch.items()} for batch in self.batches)


class GivenWords(Given, LastWord):
    """Passages that are there already, as a test."""

    def __init__(self, batches, rows):
        super().__init__(batches, rows)
        self.parts = {"test": rows}


class Known(nn.Module):
    """A model that gives every token the same known probability everywhere."""

    def __init__(self, probabilities, head="decoder", **options):
        super().__init__()
        self.spec = formers.spec(head, vocab=len(probabilities), **SIZES, **options)
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())
        self.tokenizer = None

    def forward(self, tokens, targets=None):
        logits = self.logits.expand(*tokens.shape, -1)
        return Output(logits, None, {"cross_entropy": cross_entropy(logits, targets)})


class Pieces:
    """Tokens that stand for the given bytes."""

    def __init__(self, pieces):
        self.pieces = pieces

    def to_bytes(self, ids):
        return b"".join(self.pieces[i] for i in ids)

    def decode(self, ids):
        return self.to_bytes(ids).decode()


BYTES = Pieces([bytes([i]) for i in range(256)])


@pytest.fixture
def model():
    return formers.create("decoder", vocab=256, length=8, **SIZES).train()


def by_hand(model, stream, length):
    """The nats of stream[1:], token by token, in windows side by side."""
    nats = 0.0
    with torch.no_grad():
        model.eval()
        for i in range(1, len(stream)):
            begin = (i - 1) // length * length
            logits = model(torch.tensor([list(stream[begin:i])])).logits[0, -1]
            nats -= float(logits.double().log_softmax(-1)[stream[i]])
        model.train()
    return nats


def test_every_figure_of_a_text_is_what_counting_by_hand_gives(model):
    found = evaluate(model, windows(TEXT, 8), BYTES, size=3)
    nats, evaluated = by_hand(model, TEXT, 8), TEXT[1:]
    words = len(evaluated.split()) + evaluated.count(b"\n")
    assert found["targets"] == found["bytes"] == len(evaluated)
    assert found["characters"] == len(evaluated.decode()) < len(evaluated)
    assert found["words"] == words
    assert found["loss"] == pytest.approx(nats / len(evaluated), rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(evaluated), rel=1e-6)
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / len(evaluated.decode()), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nats / len(evaluated)), rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-4)
    assert found["protocol"] == f"windows of 8 tokens side by side (context 8, stride 8), all {len(evaluated)} tokens of valid"
    assert model.training  # as it was


def test_bits_per_byte_and_words_do_not_depend_on_the_tokens():
    # Every byte but "o", and "o" with whatever follows it: a prefix code in which each byte has the probability 1/256.
    pieces = [bytes([i]) for i in range(256) if i != ord("o")] + [bytes([ord("o"), i]) for i in range(256)]
    number = {piece: i for i, piece in enumerate(pieces)}
    ids, rest = [], TEXT
    while rest:
        taken = rest[: 2 if rest[0] == ord("o") else 1]
        ids.append(number[taken])
        rest = rest[len(taken) :]
    coarse = evaluate(Known([256.0 ** -len(piece) for piece in pieces]), windows(ids, 5), Pieces(pieces), size=2)
    fine = evaluate(Known([1 / 256] * 256), windows(TEXT, 7), BYTES, size=4)
    assert coarse["targets"] < fine["targets"]
    assert coarse["bits_per_byte"] == pytest.approx(8.0, abs=1e-9)
    assert fine["bits_per_byte"] == pytest.approx(8.0, abs=1e-9)
    same = ["bytes", "characters", "words", "bits_per_character", "word_perplexity"]
    assert {name: coarse[name] for name in same} == pytest.approx({name: fine[name] for name in same}, rel=1e-9)
    assert coarse["perplexity"] > fine["perplexity"] == pytest.approx(256)


def test_pieces_that_cut_words_and_characters_count_as_the_whole_does():
    for size in (1, 2, 3, 7, 1000):
        words = WordCounter()
        counts = [words.count(TEXT[i : i + size]) for i in range(0, len(TEXT), size)]
        assert [sum(c) for c in zip(*counts, strict=True)] == [len(TEXT), len(TEXT.decode()), len(TEXT.split()) + TEXT.count(b"\n")]


@pytest.mark.parametrize("first", [1, 8, 37])
def test_the_first_tokens_are_evaluated_whatever_the_batch(model, first):
    found = [evaluate(model, windows(TEXT, 8), BYTES, size, first=first) for size in (1, 4)]
    assert found[0]["targets"] == found[1]["targets"] == first
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-6)
    assert found[0]["loss"] == pytest.approx(by_hand(model, TEXT[: first + 1], 8) / first, rel=1e-6)
    assert found[0]["words"] == len(TEXT[1 : first + 1].split()) + TEXT[1 : first + 1].count(b"\n")
    assert f"the first {first} of the {len(TEXT) - 1} tokens" in found[0]["protocol"]


def test_a_limit_counts_batches(model):
    assert evaluate(model, windows(TEXT, 8), BYTES, size=2, limit=3)["targets"] == 48


def test_windows_that_overlap_evaluate_each_token_once_and_with_more_before_it(model):
    length, stride = 8, 3
    found = evaluate(model, windows(TEXT, length), BYTES, size=4, stride=stride)
    nats = 0.0
    with torch.no_grad():
        model.eval()
        for i in range(1, len(TEXT)):
            begin = stride * max(0, math.ceil((i - length) / stride))  # of the first window that reaches i
            nats -= float(model(torch.tensor([list(TEXT[begin:i])])).logits[0, -1].log_softmax(-1)[TEXT[i]])
    assert found["targets"] == len(TEXT) - 1
    assert found["words"] == len(TEXT[1:].split()) + TEXT.count(b"\n")
    assert found["loss"] == pytest.approx(nats / (len(TEXT) - 1), rel=1e-6)
    assert "windows of 8 tokens one every 3 (context 8, stride 3)" in found["protocol"]


def test_processes_share_the_batches_and_their_sums_are_the_whole(model, monkeypatch):
    data = windows(TEXT, 8)
    whole = evaluate(model, data, BYTES, size=2)
    parts = [evaluate(model, data, BYTES, size=2, share=(rank, 3)) for rank in range(3)]
    assert all(0 < part["targets"] < whole["targets"] for part in parts)
    for name in ("targets", "bytes", "characters", "words"):
        assert sum(part[name] for part in parts) == whole[name]
    assert sum(part["loss"] * part["targets"] for part in parts) == pytest.approx(whole["loss"] * whole["targets"], rel=1e-6)

    again = evaluate(model, data, BYTES, size=2, share=(1, 3), total=lambda values: [3 * value for value in values])
    assert again["targets"] == 3 * parts[1]["targets"]
    assert again["bits_per_byte"] == pytest.approx(parts[1]["bits_per_byte"])


def test_lanes_go_on_from_the_state_of_the_batch_before(model):
    stream = torch.tensor(list(TEXT))
    lanes = stream[: 2 * 33].view(2, 33)
    batches = [
        {"tokens": lanes[:, i : i + 8], "targets": lanes[:, i + 1 : i + 9], "fresh": torch.tensor([i == 0, i in (0, 16)])}
        for i in range(0, 32, 8)
    ]
    found = evaluate(model, Given(batches, stream, continues=True), BYTES, size=2, share=(1, 2))
    model.eval()
    with torch.no_grad():
        rows = [(lanes[0], 32), (lanes[1, :17], 16), (lanes[1, 16:], 16)]
        nats = sum(float(model(row[None, :-1], targets=row[None, 1:]).loss) * n for row, n in rows)
    assert found["loss"] == pytest.approx(nats / 64, rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_lanes_count_what_windows_count(model, size):
    stream = torch.tensor(list(TEXT))
    found = evaluate(model, Streams({"valid": stream}, 8), BYTES, size)
    whole = evaluate(model, windows(TEXT, 8), BYTES)
    same = ("targets", "bytes", "characters", "words")
    assert [found[name] for name in same] == [whole[name] for name in same]
    edges = [i * (len(TEXT) - 1) // size for i in range(size + 1)]
    with torch.no_grad():
        model.eval()
        rows = [stream[None, a : b + 1] for a, b in itertools.pairwise(edges)]
        nats = sum(float(model(row[:, :-1], targets=row[:, 1:]).loss) * (row.shape[1] - 1) for row in rows)
    assert found["loss"] == pytest.approx(nats / found["targets"], rel=1e-5)
    assert found["protocol"].startswith(f"segments of 8 tokens in {size} lane{'s' if size > 1 else ''}, ")


def test_a_stop_is_heard_between_batches(model):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(Stopped):
        evaluate(model, windows(TEXT, 8), BYTES, size=1, stop=stop)
    assert len(asked) == 3
    assert model.training
    assert not isinstance(Stopped(), formers.FormersError)


def test_progress_ends_at_its_total(model):
    calls = []
    evaluate(model, windows(TEXT, 8), BYTES, size=4, progress=lambda *state: calls.append(state))
    assert calls[0] == (32, len(TEXT) - 1)
    assert calls[-1] == (len(TEXT) - 1, len(TEXT) - 1)
    evaluate(model, windows(TEXT, 8), BYTES, size=1, limit=2, progress=lambda *state: calls.append(state))
    assert calls[-1] == (16, 16)


def test_hidden_tokens_are_guessed_by_the_likeliest():
    p = [0.1, 0.2, 0.7]
    targets = torch.tensor([[2, IGNORED, 1, 2], [IGNORED, IGNORED, IGNORED, 0]])
    data = Given([{"tokens": torch.zeros_like(targets), "targets": targets}], torch.zeros(8))
    found = evaluate(Known(p, "encoder"), data, Bytes())
    nats = -math.log(0.7 * 0.2 * 0.7 * 0.1)
    assert found["masked_accuracy"] == 0.5
    assert found["masked_perplexity"] == pytest.approx(math.exp(nats / 4))
    assert found["masked_bits_per_byte"] == pytest.approx(nats / 4 / math.log(2))
    assert "bits_per_byte" not in found
    assert "masked_bits_per_byte" not in evaluate(Known(p, "encoder"), data, BYTES)
    assert "4 hidden" in found["protocol"]


def test_a_classifier_is_evaluated_by_its_hits():
    model = formers.create("encoder", vocab=11, classes=3, length=8, **SIZES)
    tokens = torch.randint(11, (6, 5))
    with torch.no_grad():
        best = model.eval()(tokens).logits.argmax(-1)
    targets = torch.cat([best[:4], (best[4:] + 1) % 3])
    data = Given([{"tokens": tokens[i : i + 3], "targets": targets[i : i + 3]} for i in (0, 3)], range(6))
    found = evaluate(model, data, None)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["targets"] == 6
    assert found["protocol"] == "all 6 examples of valid"
    assert evaluate(model, data, None, first=4)["accuracy"] == 1.0
    assert evaluate(model, data, None, first=4)["protocol"] == "the first 4 of the 6 examples of valid"


def test_a_last_word_is_right_if_all_its_tokens_are():
    p = [0.2, 0.2, 0.6]
    targets = torch.tensor([[IGNORED, 2, 2], [IGNORED, 1, 2], [IGNORED, IGNORED, 2], [0, IGNORED, IGNORED]])
    data = GivenWords([{"tokens": torch.zeros_like(targets), "targets": targets}], range(4))
    found = evaluate(Known(p), data, BYTES)  # of the only part there is
    assert found["passages"] == 4
    assert found["last_word_accuracy"] == 0.5
    assert found["last_word_perplexity"] == pytest.approx((0.6**4 * 0.2**2) ** (-1 / 4))
    assert "bits_per_byte" not in found


def pairs_model(monkeypatch, answers):
    """An encoder-decoder that is said to write the given texts."""
    tokenizer = Bytes(specials=("begin", "end"))
    model = formers.create("transformer", vocab=tokenizer.vocab, **SIZES)
    model.tokenizer = tokenizer
    asked = []

    def answer(model, sources, max_new_tokens):
        asked.append(len(sources))
        return [list(answers.pop(0).encode()) for _ in sources]

    monkeypatch.setattr(module, "answer", answer)
    return model, tokenizer, asked


WANTED = ["the cat sat on the mat", "a dog was in the garden", "and nobody knew why it was so"]
WRITTEN = ["the cat sat on a mat today", "a dog was in the garden", "and nobody knew why it was so"]


class GivenPairs(Given):
    """Pairs that are there already."""

    def __init__(self, tokenizer, wanted):
        pairs = [(list(b"source"), list(text.encode())) for text in wanted]
        begin, end = tokenizer.special("begin"), tokenizer.special("end")
        rows = [
            {"source": torch.tensor([a]), "target": torch.tensor([[begin, *b]]), "targets": torch.tensor([[*b, end]])} for a, b in pairs
        ]
        super().__init__(rows, pairs)


def test_pairs_are_evaluated_by_what_is_written(monkeypatch):
    import sacrebleu

    model, tokenizer, asked = pairs_model(monkeypatch, [*WRITTEN])
    found = evaluate_all(model, GivenPairs(tokenizer, WANTED), tokenizer, 1)
    assert asked == [3]  # one generation serves both figures
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(WRITTEN, [WANTED]).score)
    assert 0 < found["bleu"] < 100
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert "all 3 pairs of valid" in found["protocol"]
    assert "tok:13a" in found["protocol"]
    assert sacrebleu.__version__ in found["protocol"]


def test_only_some_matches_are_written_and_bleu_may_be_missing(monkeypatch):
    model, tokenizer, asked = pairs_model(monkeypatch, [*WRITTEN])
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    found = evaluate_all(model, GivenPairs(tokenizer, WANTED), tokenizer, 1, matches=1)
    assert asked == [1]
    assert found["exact_match"] == 0.0
    assert "bleu" not in found
    assert "pip install formers[mt]" in found["protocol"]
    assert "; 1 of 3 pairs written greedily" in found["protocol"]


def test_a_real_transformer_writes_and_is_evaluated():
    tokenizer = Bytes(specials=("begin", "end"))
    model = formers.create("transformer", vocab=tokenizer.vocab, **SIZES)
    model.tokenizer = tokenizer
    found = evaluate_all(model, GivenPairs(tokenizer, WANTED[:2]), tokenizer, 1)
    assert found["exact_match"] == 0.0
    assert math.isfinite(found["bleu"])


def test_losses_beyond_all_bounds_are_reported_and_crash_nothing():
    sure = Known([1.0, 1e-300])
    found = evaluate(sure, windows([0, 1, 1], 8), Pieces([b"a", b"b"]))
    assert found["perplexity"] == pytest.approx(1e300, rel=1e-6)
    assert found["word_perplexity"] == math.inf
    assert perplexity(1e6, 1) == math.inf
    with torch.no_grad():
        sure.logits[0] = math.nan
    assert math.isnan(evaluate(sure, windows([0, 1, 1], 8), Pieces([b"a", b"b"]))["perplexity"])


def test_without_a_tokenizer_nothing_is_counted_per_byte(model):
    found = evaluate(model, windows(TEXT, 8), None)
    assert {"loss", "perplexity", "targets"} <= found.keys()
    assert not {"bits_per_byte", "word_perplexity", "words"} & found.keys()


def test_mistakes_are_refused(model):
    with refused("no vaild part", "valid"):
        evaluate(model, windows(TEXT, 8), BYTES, part="vaild")
    with refused("no targets"):
        empty = torch.full((1, 3), IGNORED)
        evaluate(model, Given([{"tokens": torch.zeros_like(empty), "targets": empty}], empty[0]), BYTES)


def test_the_bar_shows_bits_per_byte_or_perplexity(model):
    assert live_metrics(model, math.log(2)) == {"perplexity": pytest.approx(2.0)}
    model.tokenizer = Bytes()
    assert live_metrics(model, math.log(2)) == {"bits/byte": pytest.approx(1.0)}
    assert live_metrics(formers.create("encoder", vocab=11, classes=3, **SIZES), 1.0) == {}


def test_the_verb_prints_the_figures_and_their_protocol(monkeypatch):
    from typer.testing import CliRunner

    from formers.cli.app import app

    called = {}

    def evaluate_run(folder, data, size, **options):
        called.update(options, folder=str(folder), data=data, size=size)
        options["progress"](1, 2)
        return {"loss": 1.25, "perplexity": math.inf, "protocol": "windows of 8 tokens"}

    monkeypatch.setattr("formers.training.run.evaluate_run", evaluate_run)
    words = ["eval", "some/run", "--split", "test", "--context", "64", "--stride", "32", "--limit", "1000", "--checkpoint", "best"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1], parse_constant=pytest.fail)
    assert said == {"run": "some/run", "loss": 1.25, "perplexity": None, "perplexity_word": "inf", "protocol": "windows of 8 tokens"}
    del called["progress"]
    wanted = {"folder": "some/run", "data": None, "size": 16, "part": "test", "limit": 1000, "checkpoint": "best", "device": "auto"}
    assert called == {**wanted, "precision": "float32", "protocol": Protocol(segment=64, stride=32)}
    plain = CliRunner().invoke(app, words).stdout
    assert "windows of 8 tokens" in plain
    assert "inf" in plain

"""Words as tokens: the published counts, the order of the ids, what is kept of a text and what is not."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers.core import FormersError
from formers.data import Bytes, Reading, Streams, Tokenizer, Words, find_tokenizer, open_text, token_stream
from formers.data.words import build_words, split
from formers.evaluation.evaluate import evaluate
from formers.heads import AdaptiveSoftmax, LanguageModel
from formers.training.task import prepare, task_of
from helpers import one_sentence, refused

TEXT = " the cat saw the dog \n \n a dog <unk> the cat \n"


def test_ids_are_in_the_order_of_frequency_and_the_line_end_is_first():
    words = build_words([TEXT])
    assert words.words == ["\n", "the", "cat", "dog", "saw", "a", "<unk>"]
    assert words.vocab == 7
    assert words.encode(TEXT) == [1, 2, 4, 1, 3, 0, 0, 5, 3, 6, 1, 2, 0]
    assert words == build_words([TEXT]), "not the same each time"


def test_a_limit_leaves_out_the_rarest_and_they_are_counted_as_unknown():
    words = build_words([TEXT], size=5)
    assert words.words == ["\n", "the", "<unk>", "cat", "dog"], "<unk> is met 3 times, twice for another"
    assert words.decode(words.encode("a cat saw")) == "<unk> cat <unk>"
    limited = build_words([TEXT], size=6, specials=("mask",))
    assert limited.vocab == 6
    assert limited.special("mask") == 5
    assert limited.decode([5, 1]) == "the"
    with refused("vocab=2", "at least 3"):
        build_words([TEXT], size=2)


def test_data_without_unknown_words_have_an_id_for_them_that_is_last():
    words = build_words(["b a b"])
    assert words.words == ["\n", "b", "a", "<unk>"]
    assert words.encode("c\n") == [3, 0]


def test_published_forms_come_back_byte_for_byte_and_others_as_words():
    words = build_words([TEXT])
    assert words.to_bytes(words.encode(TEXT)) == TEXT.encode()
    assert words.decode(words.encode(TEXT)) == "the cat saw the dog\n\na dog <unk> the cat\n"
    other = "the\tcat  \r\n saw\u00a0the\u2028dog"
    assert words.decode(words.encode(other)) == "the cat\nsaw the dog"


@given(st.text(alphabet="ab \n\t\r\u00a0é", max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_a_stream_has_the_words_of_the_whole_however_it_is_cut(text, cuts):
    cuts = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
    wanted = [word for line in text.split("\n") for word in [*line.split(), "\n"]][:-1]
    assert [word for words in split(pieces) for word in words] == wanted
    tokenizer = build_words([text + " a"])
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.to_bytes([i]) for i in ids) == tokenizer.to_bytes(ids)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_the_definition_is_checked():
    words = build_words([TEXT], specials=("mask",))
    assert Tokenizer.read(words.model_dump(mode="json")) == words
    for wrong in ("no JSON", '["a"]', '["\\n", "a", "a", "<unk>"]', '["\\n", "a"]', '["\\n", "a b", "<unk>"]', '["\\n", 1, "<unk>"]', "{}"):
        with pytest.raises(FormersError, match="JSON list of different words") as caught:
            Words(definition=wrong)
        one_sentence(str(caught.value))


COUNTS = {
    "wikitext-2": (33_278, {"train": 2_088_628, "valid": 217_646, "test": 245_569}),
    "ptb": (10_000, {"train": 929_589, "valid": 73_760, "test": 82_430}),
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(published, name):
    opened = open_text(name)
    words = find_tokenizer("words", opened)
    assert isinstance(words, Words)
    streams = {part: token_stream(opened, part, words) for part in opened.parts}
    assert (words.vocab, {part: len(stream) for part, stream in streams.items()}) == COUNTS[name]
    stretch = opened.parts["test"][0]
    assert words.to_bytes(streams["test"].tolist()) == stretch.path.read_bytes()[stretch.start : stretch.stop]
    task = prepare("transformer-xl", name, None, {"dim": 16, "heads": 2, "layers": 1})
    assert isinstance(task.spec.head, AdaptiveSoftmax if name == "wikitext-2" else LanguageModel)
    assert task.spec.vocab == words.vocab
    assert isinstance(prepare("encoder", name, None, {"dim": 16, "heads": 2, "layers": 1}).tokenizer, Bytes)


@pytest.fixture
def lines(tmp_path, monkeypatch):
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "lines.txt"
    path.write_text("".join(f" the number {i % 40} is {'odd' if i % 2 else 'even'} . \n" for i in range(600)))
    return path


TINY = dict(dim=16, heads=2, layers=1, hidden=24, length=12)


@pytest.mark.parametrize("member", ["transformer-xl", "decoder"])
def test_perplexity_per_word_is_perplexity_per_token(lines, member):
    task = prepare(member, lines, None, {**TINY, "cutoffs": [6, 20]}, Reading(tokens="words"))
    assert isinstance(task.batches, Streams) == (member == "transformer-xl")
    assert isinstance(task.spec.head, AdaptiveSoftmax)
    model = formers.build(task.spec)
    found = evaluate(model, task.batches, task.tokenizer, size=3)
    assert found["words"] == found["targets"] == len(task.batches.parts["valid"]) - 1
    assert found["perplexity"] == found["word_perplexity"]
    held = task.tokenizer.to_bytes(task.batches.parts["valid"][1:].tolist())
    assert found["bytes"] == len(held)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * found["targets"] / len(held) / math.log(2))


def test_a_run_of_words_is_trained_saved_resumed_and_writes(lines, tmp_path):
    options = {**TINY, "tokens": "words", "cutoffs": [6, 20], "division": 2, "memory": 12, "batch": 4, "sample_tokens": 0}
    done = formers.train("transformer-xl", lines, tmp_path / "run", steps=3, quiet=True, **options)
    assert done.results["word_perplexity"] == done.results["perplexity"]
    model = formers.load(tmp_path / "run")
    assert model.tokenizer == done.model.tokenizer
    (config,) = (tmp_path / "run" / "ckpt" / "step-00000003").glob("config.json")
    assert "number" not in json.dumps(json.loads(config.read_text())["tokenizer"]), "words stand in a file of their own"
    text = formers.generate(model, "the number 7 is", max_new_tokens=4, temperature=0.0)
    assert text.startswith("the number 7 is")
    assert formers.resume(tmp_path / "run", steps=5, quiet=True).results["targets"] > 0


def test_vocab_limits_words_and_cutoffs_are_held_against_it(lines):
    task = prepare("decoder", lines, None, {**TINY, "vocab": 20}, Reading(tokens="words"))
    assert task.spec.vocab == task.tokenizer.vocab == 20
    found = prepare("decoder", lines, None, {**TINY, "vocab": 500}, Reading(tokens="words")).spec.vocab
    assert found is not None
    assert 48 <= found <= 49, "the last word for training may be cut in two"
    with refused(f"cutoffs=[30, {found}]", f"vocab={found}"):
        prepare("decoder", lines, None, {**TINY, "cutoffs": [30, found]}, Reading(tokens="words"))
    with refused("must be increasing"):
        prepare("decoder", "not-there", None, {**TINY, "cutoffs": [30, 20]}, Reading(tokens="words"))  # before the data are read


def test_passages_of_plain_text_are_refused(lines, monkeypatch):
    from formers.data.passages import Passages
    from formers.training import task as tasks

    words = find_tokenizer("words", open_text(lines))
    monkeypatch.setattr(tasks, "open_data", lambda data, kind: Passages({"test": ["a b"]}, "", "", data))
    with refused("lambada is plain text", "bytes or bpe"):
        task_of(formers.spec("decoder", vocab=words.vocab, **TINY), words, "lambada")


def test_pairs_and_labelled_texts_are_read_by_words_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"say {i}\tit is {i}\n" for i in range(300)))
    task = prepare("transformer", pairs, None, dict(dim=16, heads=2, layers=1), Reading(tokens="words"))
    assert isinstance(task.tokenizer, Words)
    source, target = task.batches.parts["train"][0]
    assert [task.tokenizer.decode(side) for side in (source, target)] == ["say 0", "it is 0"]

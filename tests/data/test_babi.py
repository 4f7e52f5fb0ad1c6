"""bAbI: what a row is, which questions are held out, what is refused, and that the published files are what they are said to be."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
import torch

from formers.data import Reading, Stories, kind_of, open_stories, story
from formers.data import babi as module
from formers.data.babi import Story, plain, read_stories
from formers.data.babi_files import PINS, TASKS, package
from formers.data.catalogue import Package
from formers.data.words import build_words
from helpers import refused, sweep

TALE = (
    "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    "4 Daniel went back to the hallway.\n5 Where is Daniel?\thallway\t4\n"
)
CARRIED = "1 Mary got the milk.\n2 Mary got the football.\n3 What is Mary carrying?\tmilk,football\t1 2\n"


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def batches(data, length=70, fact=7):
    tokenizer = build_words(f"{fact}\n" for fact in data.facts("train"))
    return Stories(data.parts, data.labels, length, fact, tokenizer)


def test_a_row_is_the_facts_before_a_question_and_last_the_question(tmp_path):
    path = write(tmp_path, qa1_train=TALE) / "qa1_train.txt"
    facts = ("mary moved to the bathroom", "john went to the hallway", "daniel went back to the hallway")
    assert read_stories("it", path, 1) == [
        [
            Story((*facts[:2], "where is mary"), "bathroom", 1, 1),
            Story((*facts, "where is daniel"), "hallway", 1, 1),
        ]
    ]


def test_an_answer_of_several_words_is_one_class(tmp_path):
    data = open_stories(write(tmp_path / "a", qa8_train=CARRIED, qa8_valid=CARRIED, qa8_test=CARRIED))
    assert data.labels == ("milk,football",)
    assert batches(data).difficulty("test").tolist() == [2]


def test_words_are_in_lower_case_and_without_punctuation():
    assert plain("Where's the blue-green box, Mary?  ") == "where's the blue-green box mary"
    assert plain(" ?! ") == ""


def test_tasks_of_a_folder_are_joined_or_chosen(tmp_path):
    write(tmp_path / "a", qa1_train=TALE, qa1_valid=TALE, qa2_x_train=TALE + TALE, qa2_x_valid=TALE, qa2_x_test=TALE)
    (tmp_path / "a" / "README.txt").write_text("not a story")
    data = open_stories(tmp_path / "a")
    found = batches(data)
    assert found.tasks("train") == [1, 1, 2, 2, 2, 2]
    assert found.tasks("test") == [2, 2]
    assert data.labels == ("bathroom", "hallway")
    second = open_stories(f"{tmp_path / 'a'}:2")
    assert [row.task for row in second.parts["train"]] == [2] * 4
    assert second.source == f"{tmp_path / 'a'}:2"
    with refused("names the task '1-3'", "1 ... 2"):
        open_stories(f"{tmp_path / 'a'}:1-3")
    write(tmp_path / "a", qa3_test=TALE)
    with refused("qa3_train.txt"):
        open_stories(tmp_path / "a")


def test_without_a_file_of_its_own_the_last_tenth_of_the_stories_is_held_out(tmp_path):
    tales = [TALE.replace("Mary", name) for name in ("Ann", "Bob", "Cem", "Dia", "Eve")]
    data = open_stories(write(tmp_path / "a", qa1_train="".join(tales)))
    assert [len(data.parts[part]) for part in data.parts] == [8, 2]
    assert data.parts["valid"][0].facts[-1] == "where is eve"
    with refused("only one story"):
        open_stories(write(tmp_path / "b", qa1_train=TALE))


def test_a_file_of_ones_own_may_be_trained_and_evaluated_on(tmp_path):
    write(tmp_path, qa1_train=TALE, qa2_test=TALE + CARRIED)
    given = open_stories(tmp_path / "qa1_train.txt", Reading(valid=str(tmp_path / "qa2_test.txt")))
    assert [len(given.parts[part]) for part in ("train", "valid")] == [2, 3]
    assert {row.task for row in given.parts["valid"]} == {2}
    with refused("the answer 'milk,football'", "bathroom, hallway"):
        open_stories(tmp_path / "qa1_train.txt", Reading(valid=str(tmp_path / "qa2_test.txt")), ("bathroom", "hallway"))


def test_a_batch_holds_facts_words_and_the_mask_of_the_facts(tmp_path):
    data = open_stories(write(tmp_path / "a", qa1_train=TALE, qa1_valid=TALE))
    found = batches(data)
    (batch,) = found.eval_batches(8, "valid")
    assert batch["tokens"].shape == (2, 4, 7)
    assert batch["mask"].tolist() == [[True, True, True, False], [True] * 4]
    assert [data.labels[i] for i in batch["targets"].tolist()] == ["bathroom", "hallway"]
    words = [found.tokenizer.decode(fact[fact > 0].tolist()) for fact in batch["tokens"][1]]
    assert words == list(data.parts["valid"][1].facts)
    assert not batch["tokens"][0, 3].any()
    assert torch.equal(found.train_batch(6, 1, 5)["tokens"][2:4], found.train_batch(6, 1, 5, slice(2, 4))["tokens"])


def test_of_a_long_story_the_oldest_facts_are_left_out(tmp_path):
    data = open_stories(write(tmp_path / "a", qa1_train=TALE, qa1_valid=TALE))
    (whole,), (cut,) = batches(data).eval_batches(8), batches(data, length=2, fact=4).eval_batches(8)
    assert torch.equal(cut["tokens"][1], whole["tokens"][1, 2:, :4])
    assert cut["mask"].all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mary moved.\n", ("line 1", "does not begin with its number")),
        ("2 Mary moved.\n", ("line 1", "the number 2 after 0")),
        ("1 Mary moved.\n3 John went.\n", ("line 2", "the number 3 after 1")),
        ("1 Where is Mary?\t\t1\n", ("line 1", "without an answer")),
        ("1 Mary moved.\n2 Where is Mary?\tbathroom\t7\n", ("line 2", "supported by 7")),
        ("1 Mary moved.\n2 ?\tbathroom\t1\n", ("line 2", "no words")),
        ("1 Mary moved.\n", ("no questions",)),
    ],
)
def test_what_is_no_story_is_refused_by_its_line(tmp_path, text, words):
    with refused("qa1_train.txt", *words):
        open_stories(write(tmp_path / "a", qa1_train=text, qa1_valid=TALE))


def test_supporting_facts_may_be_left_out(tmp_path):
    path = write(tmp_path, qa1_train="1 Mary moved.\n2 Where is Mary?\tbathroom\n") / "qa1_train.txt"
    assert read_stories("it", path)[0][0].supporting == 0


@sweep("name", ["babi:0", "babi:21", "babi:3-1", "babi:x", "babi:", "babi-10k:1,,2"])
def test_tasks_that_there_are_not(name):
    with refused(name, "its tasks are 1 ... 20", "such as babi"):
        open_stories(name)


def test_what_cannot_be_verified_is_refused_before_anything_is_fetched():
    for name in ("babi-10k", "babi-10k:1-3"):
        with refused("babi-10k:3 cannot be verified", "babi-10k:1-2,4-20", "babi:3"):
            open_stories(name)


def test_readings_that_mean_nothing():
    with refused("tokens=bpe", "words"):
        open_stories("babi:1", Reading(tokens="bpe"))
    with refused("valid=x.txt", "babi:1"):
        open_stories("babi:1", Reading(valid="x.txt"))


def test_only_files_that_are_called_so_are_stories(tmp_path):
    write(tmp_path / "a", qa1_train=TALE)
    write(tmp_path / "b", tale=TALE)
    assert kind_of("babi:1-3") == "stories"
    assert kind_of(tmp_path / "a") == "stories"
    assert kind_of(tmp_path / "a" / "qa1_train.txt") == "stories"
    assert not any(
        kind_of(data) == "stories" for data in ("babies", "stdlib", "multi30k:en-fr", tmp_path / "b", tmp_path / "b" / "tale.txt")
    )


def test_a_story_in_plain_words(tmp_path):
    data = open_stories(write(tmp_path / "a", qa1_train=TALE, qa1_valid=TALE))
    found = batches(data)
    (batch,) = found.eval_batches(8)
    text = "Mary moved to the bathroom. John went to the hallway.\nDaniel went back to the hallway.\nWhere is Daniel?"
    assert torch.equal(story(text, found.tokenizer, 7), batch["tokens"][1:2])
    with refused("'zebra'"):
        story("Mary moved to the zebra.", found.tokenizer, 7)
    with refused("'mary moved to the bathroom' has 5 words", "at most 3"):
        story("Mary moved to the bathroom.", found.tokenizer, 3)
    with refused("no words"):
        story(" .\n", found.tokenizer, 7)
    with refused("trained on stories"):
        story("Where is Mary?", None, None)


def test_the_archive_is_unpacked_whole_and_verified(tmp_path, monkeypatch):
    texts = {part: TALE.replace("Mary", f"Mary{part}") for part in ("train", "valid", "test")}
    names = {part: f"tasks_1-20_v1-2/en-valid/qa1_{part}.txt" for part in texts}
    (tmp_path / "data" / "babi").mkdir(parents=True)
    with tarfile.open(tmp_path / "data" / "babi" / "tasks_1-20_v1-2.tar.gz", "w:gz") as archive:
        for part in ("valid", "test", "train"):
            entry = tarfile.TarInfo(names[part])
            entry.size = len(texts[part])
            archive.addfile(entry, io.BytesIO(texts[part].encode()))
    files = {names[part]: "sha256:" + hashlib.sha256(text.encode()).hexdigest() for part, text in texts.items()}
    monkeypatch.setattr(module, "package", lambda name, tasks: Package(files, (), package(name, tasks).packed, folder="babi"))
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "data"))
    data = open_stories("babi:1")
    assert data.parts["test"][0].facts[-1] == "where is marytest"
    assert open_stories("babi:1") == data
    files[names["test"]] = "sha256:" + "0" * 64
    with refused("qa1_test.txt", "published"):
        open_stories("babi:1")


def test_all_files_but_one_are_pinned():
    assert len(PINS["babi"]) == 60
    assert {(task, part) for task in TASKS for part in ("train", "valid", "test")} - set(PINS["babi-10k"]) == {(3, "train")}


def test_the_published_tasks_are_what_the_literature_says(published):
    data = open_stories("babi:1-3")
    assert {part: len(rows) for part, rows in data.parts.items()} == {"train": 2700, "valid": 300, "test": 3000}
    assert data.labels == ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
    assert (data.longest, data.widest) == (229, 7)
    found = batches(data)
    assert all(support == task for support, task in zip(found.difficulty("test").tolist(), found.tasks("test"), strict=True))
    assert not (found.table == found.tokenizer.encode("<unk>")[0]).any()

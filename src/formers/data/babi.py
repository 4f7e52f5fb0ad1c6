"""bAbI (Weston et al., 2015): short stories, and questions that some of their facts answer.

1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary?<tab>bathroom<tab>1

The number 1 begins a story; the last column names the lines that support the answer. A row is a question: the facts before it, in their
order, then the question itself. Earlier questions are not facts. Words are in lower case and without punctuation. An answer is a class,
as it is written: `milk,football` is one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError
from formers.data.babi_files import PARTS, TASKS, package
from formers.data.catalogue import STORIES
from formers.data.download import fetch
from formers.data.files import Parts, Stretch, resolved, whole
from formers.data.reading import Reading
from formers.data.records import lines
from formers.data.text import fingerprint
from formers.data.tokenize import Tokenizer
from formers.data.words import Words

STORY_FILE = re.compile(r"qa(\d+)(?:_.*)?_(train|valid|test)\.txt(?:\.gz)?")
"""The name of a file of stories: its task and its part."""
HELD_OUT = 10
"""One story in this many is held out if there is no validation file."""
SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n")
WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


class Story(NamedTuple):
    """A question about a story."""

    facts: tuple[str, ...]
    """The facts before it, then the question; each is its words joined by spaces."""
    answer: str
    supporting: int
    """Number of facts that support the answer."""
    task: int
    """1 ... 20, or 0 if the file name does not state a task."""


class StoryData(NamedTuple):
    """Questions about stories by part, with a one-line description."""

    parts: Parts[Sequence[Story]]
    about: str
    fingerprint: str
    source: str
    labels: tuple[str, ...]
    """The answers, in the order of their classes."""

    def facts(self, *parts: str) -> list[str]:
        """The distinct facts and questions of some parts."""
        return list(dict.fromkeys(fact for part in parts for story in self.parts[part] for fact in story.facts))

    @property
    def longest(self) -> int:
        """The largest number of facts in a row, including the question."""
        return max(len(story.facts) for part in self.parts.values() for story in part)

    @property
    def widest(self) -> int:
        """The largest number of words in a fact."""
        return max(len(fact.split()) for fact in self.facts(*self.parts))


def open_stories(data: str | Path, reading: Reading = Reading(), labels: Sequence[str] | None = None) -> StoryData:
    """The questions of bAbI's tasks (`babi`, `babi:1`, `babi:1-3,7`, `babi-10k:1`), or of a file or folder in its format.

    The answers of all parts are classes, sorted, or `labels`, which must hold them all.
    """
    name = str(data)
    if reading.tokens not in (None, "words"):
        raise FormersError(f"tokens={reading.tokens} is for texts, and the tokens of {name} are words: leave it out.")
    named = name.partition(":")[0] in STORIES and not Path(name).exists()
    if named and reading.valid is not None:
        raise FormersError(f"valid={reading.valid} cannot be used with {name}, which has its own held-out questions: leave it out.")
    files = _named(name) if named else _files(name)
    parts: dict[str, list[Story]] = {}
    stretches: list[Stretch] = []
    for task, here in files.items():
        stories = {part: read_stories(stretch.name, stretch.path, task, reading.invalid) for part, stretch in here.items()}
        stretches += here.values()
        if reading.valid is None and "valid" not in stories:
            stories = _hold_out(name, stories)
        for part in PARTS:
            parts.setdefault(part, []).extend(row for story in stories.get(part, []) for row in story)
    if reading.valid is not None:
        given = whole(reading.valid, Path(reading.valid).expanduser())
        stretches.append(given)
        parts["valid"] = [row for story in read_stories(given.name, given.path, _task(given.path), reading.invalid) for row in story]
    parts = {part: rows for part, rows in parts.items() if rows}
    for part in ("train", "valid"):
        if part not in parts:
            raise FormersError(f"{name} has no questions for {'training' if part == 'train' else 'evaluation'}: give files that have some.")
    answers = tuple(labels) if labels is not None else tuple(sorted({row.answer for rows in parts.values() for row in rows}))
    _refuse_strange(name, parts, answers)
    about = f"{name}, {len(parts['train']):,} questions for training and {len(parts['valid']):,} held out"
    about += (f", {len(parts['test']):,} for testing" if "test" in parts else "") + f"; {len(answers)} answers"
    mark = fingerprint("stories", [[s.sum, s.start, s.stop] for s in stretches], reading.valid is None)
    return StoryData(Parts(dict(parts), name), about, mark, name if named else _absolute(name), answers)


def read_stories(name: str, path: Path, task: int = 0, invalid: str = "refuse") -> list[list[Story]]:
    """The questions of each story of a file in bAbI's format."""
    found: list[list[Story]] = []
    facts: dict[int, str] = {}
    last = 0
    for number, line in lines(name, path, invalid):
        head, _, rest = line.strip().partition(" ")
        if not re.fullmatch(r"[0-9]{1,9}", head):
            raise FormersError(
                f"{name}, line {number} does not begin with its number in the story: write `1 Mary moved to the bathroom.`, and a question "
                "followed by tabs, its answer and the lines that support it."
            )
        here = int(head)
        if here == 1:
            facts, last = {}, 0
            found.append([])
        if here != last + 1 or not found:
            raise FormersError(f"{name}, line {number} has the number {here} after {last}: number the lines of a story 1, 2, 3, ...")
        last = here
        sentence, *more = rest.split("\t")
        fact = plain(sentence)
        if not fact:
            raise FormersError(f"{name}, line {number} has no words: write a fact or a question, or remove the line.")
        if not more:
            facts[here] = fact
            continue
        if not more[0].strip():
            raise FormersError(f"{name}, line {number} has a question without an answer: write the answer after a tab.")
        supports = more[1].split() if len(more) > 1 else []
        if wrong := [which for which in supports if not which.isdecimal() or int(which) not in facts]:
            raise FormersError(
                f"{name}, line {number} is supported by {wrong[0]}, which is not an earlier fact: give the numbers of earlier facts."
            )
        found[-1].append(Story((*facts.values(), fact), more[0].strip(), len(supports), task))
    if not any(found):
        raise FormersError(f"{name} has no questions: write some, each followed by a tab and its answer.")
    return found


def plain(sentence: str) -> str:
    """A sentence's words in lower case, without punctuation, with spaces between."""
    return " ".join(WORD.findall(sentence.lower()))


def encode(facts: Iterable[str], tokenizer: Tokenizer, fact: int) -> Tensor:
    """The ids (facts, fact) of facts with at most `fact` words, padded with 0, the line end of `Words`, which is not a word."""
    rows = [tokenizer.encode(each)[:fact] for each in facts]
    return torch.tensor([row + [0] * (fact - len(row)) for row in rows], dtype=torch.int64).view(len(rows), fact)


def split_facts(text: str) -> list[str]:
    """The facts of a story: its sentences, which end in punctuation or at the end of a line, without case and punctuation."""
    facts = [fact for fact in map(plain, SENTENCE_END.split(text)) if fact]
    if not facts:
        raise FormersError("the story has no words: write some sentences, and last a question.")
    return facts


def story(text: str, tokenizer: Tokenizer | None, fact: int | None) -> Tensor:
    """A story, the question last, as tokens (1, facts, words) for a model with `spec.fact` = `fact` words per fact."""
    if not isinstance(tokenizer, Words) or fact is None:
        raise FormersError("a story is for a model that was trained on stories: give its tokenizer and its spec.fact.")
    facts = split_facts(text)
    known = set(tokenizer.words)
    for each in facts:
        if strange := [word for word in each.split() if word not in known]:
            raise FormersError(f"the model does not know the word {strange[0]!r}: use words of the stories that it was trained on.")
        if len(each.split()) > fact:
            raise FormersError(f"{each!r} has {len(each.split())} words, and the model reads at most {fact}: write shorter sentences.")
    return encode(facts, tokenizer, fact)[None]


def story_place(data: str) -> tuple[Path, str]:
    """The path of a file or folder, and the tasks named after a colon."""
    folder, _, tasks = data.rpartition(":")
    if folder and re.fullmatch(r"[\d,-]+", tasks) and not Path(data).expanduser().exists():
        return Path(folder).expanduser(), tasks
    return Path(data).expanduser(), ""


def _absolute(data: str) -> str:
    """The absolute name, which opens the same files from any folder."""
    place, tasks = story_place(data)
    return resolved(place) + (f":{tasks}" if tasks else "")


def _tasks(data: str, tasks: str, known: Sequence[int]) -> tuple[int, ...]:
    """The tasks that `1-3,7` names, in ascending order."""
    found: set[int] = set()
    for piece in tasks.split(","):
        ends = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", piece.strip())
        numbers = range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else range(0)
        if not numbers or any(number not in known for number in numbers):
            has = f"1 ... {known[-1]}" if list(known) == list(range(1, len(known) + 1)) else ", ".join(map(str, known))
            raise FormersError(f"{data} names the task {piece!r}: its tasks are {has}, such as {data.rpartition(':')[0]}:{known[0]}.")
        found.update(numbers)
    return tuple(sorted(found))


def _named(data: str) -> dict[int, dict[str, Stretch]]:
    """The verified files of a named set, by task and part."""
    name, colon, tasks = data.partition(":")
    chosen = _tasks(data, tasks, TASKS) if colon else tuple(TASKS)
    files = fetch(name, package(name, chosen))
    return {task: {part: whole(f"{name}/{file}", files[file]) for part in PARTS if (file := f"qa{task}_{part}.txt")} for task in chosen}


def _files(data: str) -> dict[int, dict[str, Stretch]]:
    """The files of a folder by task and part; a single file is the training part, whatever its name."""
    place, tasks = story_place(data)
    if place.is_file():
        return {_task(place): {"train": whole(data, place)}}
    found: dict[int, dict[str, Stretch]] = {}
    for file in sorted(place.iterdir()):
        if called := STORY_FILE.fullmatch(file.name):
            found.setdefault(int(called[1]), {})[called[2]] = whole(file.name, file)
    chosen = _tasks(data, tasks, sorted(found)) if tasks else tuple(sorted(found))
    for task in chosen:
        if "train" not in found[task]:
            raise FormersError(f"{place} has no file qa{task}_train.txt to train task {task} on: leave that task out, or add the file.")
    return {task: found[task] for task in chosen}


def _task(path: Path) -> int:
    """The task that a file's name states."""
    called = STORY_FILE.fullmatch(path.name)
    return int(called[1]) if called else 0


def _hold_out(name: str, stories: Mapping[str, list[list[Story]]]) -> dict[str, list[list[Story]]]:
    """Holds out the last tenth of the training stories, as bAbI's own `en-valid` does."""
    train = stories["train"]
    if len(train) < 2:
        raise FormersError(f"{name} has only one story, so none can be held out: give more, or --valid.")
    cut = len(train) - max(1, len(train) // HELD_OUT)
    return {**stories, "train": train[:cut], "valid": train[cut:]}


def _refuse_strange(name: str, parts: Mapping[str, Sequence[Story]], answers: Sequence[str]) -> None:
    known = set(answers)
    for strange in (row.answer for rows in parts.values() for row in rows if row.answer not in known):
        raise FormersError(f"{name} has the answer {strange!r}, which training does not know: it knows {', '.join(answers)}.")

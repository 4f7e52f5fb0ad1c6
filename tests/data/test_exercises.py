"""Exercises: every row is what its definition says, drawn the same again by the same keys, as hard as its part, and in one part only."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import torch

from formers.core import IGNORED
from formers.data import kind_of, tasks
from formers.data.catalogue import TASKS
from formers.data.tasks import EXERCISES, Exercise, Strings, Vectors, open_strings, open_vectors
from formers.data.tasks.agreement import NOUNS
from formers.data.tasks.exercise import BOUNDS, FEW, PARTS, Held
from formers.data.tasks.naming import mark, written
from helpers import refused, sweep

SMALL = {"rows": 60}
STRINGS = [forms.strings(**SMALL) for forms in EXERCISES.values()]
VECTORS = [forms.vectors(**SMALL) for forms in EXERCISES.values() if forms.vectors is not None]
OF_TEXT = sweep("exercise", STRINGS)
OF_VECTORS = sweep("exercise", VECTORS)

# NOR, Q and not P, P and not Q, XOR, NAND, AND, XNOR, P -> Q, Q -> P, OR
GATES = [
    lambda p, q: not (p or q), lambda p, q: q and not p, lambda p, q: p and not q, lambda p, q: p != q, lambda p, q: not (p and q),
    lambda p, q: p and q, lambda p, q: p == q, lambda p, q: not p or q, lambda p, q: p or not q, lambda p, q: p or q,
]  # fmt: skip


def applied(gates: list[int], now: bool, before: bool) -> bool:
    """b_{B+1} of b_1 and b_0."""
    values = [before, now]
    for gate in gates:
        values.append(bool(GATES[gate](values[-1], values[-2])))
    return values[-1]


def verb(source: str) -> str:
    return "are" if source.split()[1].endswith("s") else "is"


def looked_up(source: str) -> str:
    predicted, asked = source.split("?")
    return dict(zip(predicted[::2], predicted[1::2], strict=True))[asked]


ANSWERS = {
    "copy": lambda s: s,
    "duplication": lambda s: s,
    "reverse": lambda s: "".join(reversed(s)),
    "sort": lambda s: "".join(sorted(s)),
    "addition": lambda s: str(sum(int(n) for n in s.split("+"))),
    "parity": lambda s: str(sum(map(int, s)) % 2),
    "logic": lambda s: str(int(applied([ord(c) - ord("A") for c in s[2:]], s[0] == "1", s[1] == "1"))),
    "recall": lambda s: s[0],
    "retrieval": looked_up,
    "agreement": verb,
}
SIZES = {
    "addition": lambda s: max(len(n) for n in s.split("+")),
    "logic": lambda s: len(s) - 2,
    "recall": lambda s: len(s) - 1,
    "retrieval": lambda s: len(s) // 2 - 1,
    "agreement": lambda s: sum(word.endswith("s") != (verb(s) == "are") for word in s.split() if word.rstrip("s") in NOUNS),
}


def test_the_names_are_those_that_are_offered() -> None:
    assert tuple(EXERCISES) == TASKS
    assert [e.name for e in STRINGS] == list(EXERCISES)
    assert [e.name for e in VECTORS] == [name for name, forms in EXERCISES.items() if forms.vectors is not None]


@OF_TEXT
def test_answers_are_what_the_definition_says_and_rows_as_hard_as_they_say(exercise: Strings) -> None:
    size = SIZES.get(exercise.name, len)
    for part in PARTS:
        longest = [max(side) for side in zip(*(exercise.longest(d) for d in exercise.span(part)), strict=True)]
        for (source, answer), hard in zip(Held(exercise, part), exercise.difficulties(part), strict=True):
            assert answer == ANSWERS[exercise.name](source)
            assert size(source) == hard
            assert len(source) <= longest[0]
            assert len(answer) <= longest[1]
            assert set(source + answer) <= set(exercise.alphabet)
            assert exercise.labels is None or answer in exercise.labels


@OF_TEXT
def test_training_has_all_difficulties_and_valid_as_many_of_each(exercise: Strings) -> None:
    size, span = SIZES.get(exercise.name, len), exercise.span("train")
    assert {size(exercise.trained(0, step, row)[0]) for step in range(20) for row in range(16)} == set(span)
    counts = [exercise.difficulties("valid").count(d) for d in span]
    assert max(counts) - min(counts) <= 1
    assert exercise.difficulties("test") == [getattr(exercise, f"test_{exercise.dial}")] * exercise.rows
    assert max(exercise.span("test")) >= max(span)


@OF_TEXT
def test_rows_of_text_are_a_function_of_their_keys(exercise: Strings) -> None:
    again, other = exercise.replace(), exercise.replace(seed=1)
    for part in PARTS:
        assert [again.held(part, row) for row in range(9)] == list(Held(exercise, part)[:9])
        assert [other.held(part, row) for row in range(9)] != list(Held(exercise, part)[:9])
    assert exercise.held("valid", 8) != exercise.held("train", 8)
    drawn = [exercise.trained(3, 5, row) for row in range(9)]
    assert drawn == [again.trained(3, 5, row) for row in range(9)]
    for changed in ((4, 5), (3, 6)):
        assert drawn != [exercise.trained(*changed, row) for row in range(9)]
    assert drawn != [other.trained(3, 5, row) for row in range(9)]


@sweep("data", ["task:addition,digits=2,test_digits=2", "task:copy,length=4,test_length=4", "task:parity,bits=11,test_bits=11"])
def test_no_row_stands_in_two_parts_where_there_are_many(data: str) -> None:
    exercise = open_strings(data).replace(rows=300)
    many = [size for size in exercise.span("train") if exercise.count(size) >= FEW]
    size = SIZES.get(exercise.name, len)
    parts = {part: {source for source, _ in Held(exercise, part) if size(source) in many} for part in PARTS}
    parts["train"] |= {s for step in range(100) for row in range(30) for s, _ in [exercise.trained(0, step, row)] if size(s) in many}
    assert len(parts["train"]) > 500
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert parts[one]
        assert not parts[one] & parts[other]
    assert "too few to be split" in exercise.about


def test_how_many_rows_there_are_is_never_said_to_be_more() -> None:
    assert open_strings("task:agreement").count(0) == 2 * len(NOUNS)
    assert open_strings("task:copy,symbols=3").count(4) == 81
    assert open_strings("task:retrieval").count(1) == 260
    found = {open_strings("task:addition").draw(Random(i), 1)[0] for i in range(2000)}
    assert len(found) == open_strings("task:addition").count(1) == 100
    assert open_vectors("task:parity,size=5").count(2) == 40


def test_addition_of_equal_numbers_and_backwards() -> None:
    exercise = open_strings("task:addition,numbers=equal,order=reversed,digits=6")
    for source, answer in Held(exercise, "valid")[:60]:
        a, b = source.split("+")
        assert len(a) == len(b)
        assert int(a[::-1]) + int(b[::-1]) == int(answer[::-1])


def test_neither_the_last_noun_nor_most_nouns_tell_the_verb() -> None:
    n = 4
    rows = list(Held(open_strings(f"task:agreement,attractors={n},test_attractors={n},rows=2000"), "test"))
    guesses = (lambda nouns: nouns[-1], lambda nouns: sum(noun.endswith("s") for noun in nouns) > len(nouns) / 2)
    for guess, wanted in zip(guesses, (1 / 2 + 1 / (4 * n), 1 / 2 - 1 / (4 * n)), strict=True):  # of a tie, half is guessed right
        wrong = 0
        for source, answer in rows:
            nouns = [word for word in source.split() if word.rstrip("s") in NOUNS]
            predicted = guess(nouns)
            wrong += (predicted.endswith("s") if isinstance(predicted, str) else predicted) != (answer == "are")
        assert abs(wrong / len(rows) - wanted) < 0.04


@OF_VECTORS
def test_vectors_have_the_shapes_they_say(exercise: Vectors) -> None:
    for part in PARTS:
        held = exercise.held(part)
        length = exercise.steps(max(exercise.span(part)))
        assert held.tokens.shape == (60, length, exercise.features)
        assert held.targets.shape == ((60, length) if exercise.places == 1 else (60, length, exercise.places))
        assert held.mask.sum(dim=1).tolist() == [exercise.steps(size) for size in exercise.difficulties(part)]
        asked = held.targets[held.targets != IGNORED]
        assert asked.min() >= 0
        assert asked.max() < exercise.classes
        assert not held.tokens[~held.mask].any()
        assert (held.targets[~held.mask] == IGNORED).all()
        assert (held.difficulty[held.mask] > 0).all()
        assert not held.difficulty[~held.mask].any()


@OF_VECTORS
def test_vectors_are_a_function_of_their_keys_and_in_one_part_only(exercise: Vectors) -> None:
    held, drawn = exercise.held("valid"), exercise.trained(40, 3, 5)
    assert all(torch.equal(a, b) for a, b in zip(held, exercise.replace().held("valid"), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(drawn, exercise.replace().trained(40, 3, 5), strict=True))
    for other in (exercise.trained(40, 4, 5), exercise.trained(40, 3, 6), exercise.replace(seed=1).trained(40, 3, 5)):
        assert not torch.equal(drawn.tokens, other.tokens)
    for part, rows in (("train", drawn), *((part, exercise.held(part)) for part in PARTS)):
        share = exercise._hash(rows.tokens)
        steps = rows.mask.sum(dim=1)
        many = torch.tensor([exercise.is_split(int(size)) for size in (rows.difficulty[:, 0] if exercise.name == "parity" else steps)])
        assert ((share >= BOUNDS[part][0]) & (share < BOUNDS[part][1]))[many].all()
        assert many.any()


def test_hashes_of_vectors_look_random_and_change_with_an_entry() -> None:
    exercise = open_vectors("task:parity")
    share = exercise._hash(exercise.sample(torch.Generator().manual_seed(1), torch.randint(1, 65, (4000,)), 1).tokens)
    assert abs(float(share.mean()) - 0.5) < 0.03
    assert abs(float((share < 0.05).double().mean()) - 0.05) < 0.02


def test_parity_of_vectors_by_counting() -> None:
    exercise = open_vectors("task:parity,size=9,rows=200")
    held = exercise.held("valid")
    for x, target, hard in zip(held.tokens, held.targets, exercise.difficulties("valid"), strict=True):
        values = x[0].tolist()
        assert set(values) <= {-1.0, 0.0, 1.0}
        assert sum(v != 0 for v in values) == hard
        assert target.tolist() == [values.count(1.0) % 2]
    assert held.difficulty[:, 0].tolist() == exercise.difficulties("valid")
    assert exercise.bits == exercise.test_bits == 9


def test_logic_of_vectors_gate_by_gate() -> None:
    exercise = open_vectors("task:logic,gates=4,vectors=5,test_vectors=7,rows=100")
    for part in ("valid", "test"):
        held = exercise.held(part)
        for x, targets, mask, hard in zip(*held, strict=True):
            before = bool(x[0, 0])
            for step in range(int(mask.sum())):
                chunks = x[step, 2:].view(4, 10)
                used = int(chunks.sum())
                assert chunks.sum(dim=1).tolist() == [1.0] * used + [0.0] * (4 - used)
                assert hard[step] == used >= 1
                assert step == 0 or x[step, 0] == 0
                before = applied(chunks[:used].argmax(dim=1).tolist(), bool(x[step, 1]), before)
                assert targets[step] == int(before)
    assert exercise.features == 42
    assert open_vectors("task:logic").features == 102


def test_sums_of_vectors_by_int() -> None:
    exercise = open_vectors("task:addition,rows=100")
    assert (exercise.features, exercise.classes, exercise.places) == (50, 11, 6)
    for part in ("valid", "test"):
        held = exercise.held(part)
        for x, targets, mask, hard in zip(*held, strict=True):
            total = 0
            for step in range(int(mask.sum())):
                chunks = x[step].view(5, 10)
                used = int(chunks.sum())
                text = "".join(str(int(c.argmax())) for c in chunks[:used])
                assert not chunks[used:].any()
                assert str(int(text)) == text
                assert hard[step] == len(text)
                total += int(text)
                wanted = [int(digit) for digit in str(total)]
                assert targets[step].tolist() == ([IGNORED] * 6 if step == 0 else wanted + [10] * (6 - len(wanted)))


def test_sorted_vectors_name_the_places_in_order() -> None:
    exercise = open_vectors("task:sort,numbers=6,test_numbers=8,rows=100")
    assert exercise.classes == 8
    for part in ("valid", "test"):
        held = exercise.held(part)
        for x, targets, n in zip(held.tokens, held.targets, exercise.difficulties(part), strict=True):
            assert x[:n, 1].tolist() == [0.0] * (n - 1) + [1.0]
            assert not x[n:].any()
            assert (targets[:n] == IGNORED).all()
            order = targets[n : 2 * n].tolist()
            assert sorted(order) == list(range(n))
            assert all(x[a, 0] < x[b, 0] for a, b in pairwise(order))
    values = open_vectors("task:sort").held("valid").tokens[..., 0]
    assert math.isclose(float(values[values != 0].std()), 1.0, abs_tol=0.05)


@sweep("exercise", [*STRINGS, *VECTORS])
def test_what_is_written_opens_the_same_again(exercise: Exercise) -> None:
    open_one = open_vectors if isinstance(exercise, Vectors) else open_strings
    assert open_one(written(exercise)) == exercise
    assert open_one(written(exercise)).model_dump(mode="json") == exercise.model_dump(mode="json")
    assert written(type(exercise)()) == f"task:{exercise.name}"
    assert mark(exercise) == mark(exercise.replace())
    assert len({mark(exercise), mark(exercise.replace(rows=61)), mark(exercise.replace(seed=2))}) == 3


@sweep(
    ("data", "words"),
    [
        ("task:additon", ("task:additon", "addition")),
        ("task:addition,digits=0", ("digits=0", "1 or more")),
        ("task:addition,test_digits=-3", ("test_digits=-3", "1 or more")),
        ("task:addition,digit=3", ("'digit'", "digits")),
        ("task:addition,digits", ("'digits'", "name=value")),
        ("task:addition,digits=3,digits=4", ("digits", "twice")),
        ("task:addition,digits=many", ("digits='many'", "integer")),
        ("task:addition,digits=²", ("digits='²'", "integer")),
        ("task:addition,digits=3,test_digits=2", ("test_digits=2", "digits=3", "must not be easier")),
        ("task:addition,order=up", ("order='up'", "'written' or 'reversed'")),
        ("task:copy,length=0", ("length=0", "1 or more")),
        ("task:copy,symbols=1", ("symbols=1", "greater than or equal to 2")),
        ("task:copy,symbols=63", ("symbols=63", "62")),
        ("task:copy,rows=0", ("rows=0", "greater than 0")),
        ("task:retrieval,test_pairs=27", ("test_pairs=27", "at most 26")),
        ("task:agreement,attractors=-1", ("attractors=-1", "0 or more")),
        ("task:parity,size=4", ("size as vectors", "reads it as text", "bits, test_bits")),
        ("task:recall,distance=0", ("distance=0", "1 or more")),
    ],
)
def test_what_makes_no_task_is_refused(data: str, words: tuple[str, ...]) -> None:
    with refused(*words):
        open_strings(data)


@sweep(
    ("data", "words"),
    [
        ("task:copy", ("task:copy", "task:parity")),
        ("task:parity,size=4,bits=5", ("bits=5", "size=4")),
        ("task:parity,bits=0", ("bits=0", "1 or more")),
        ("task:addition,test_numbers=11", ("test_numbers=11", "at most 10")),
        ("task:addition,digits=18", ("digits=18", "at most 17")),
        ("task:addition,numbers=1", ("numbers=1", "at least 2")),
        ("task:parity,size=0", ("task:parity", "size=0")),
        ("task:sort,numbers=1", ("numbers=1", "2 or more")),
        ("task:logic,gates=0", ("gates=0", "greater than 0")),
        ("task:logic,vectors=0", ("vectors=0", "1 or more")),
    ],
)
def test_what_makes_no_vectors_is_refused(data: str, words: tuple[str, ...]) -> None:
    with refused(*words):
        open_vectors(data)


def test_test_grows_with_the_dial_where_it_is_not_given() -> None:
    assert open_strings("task:addition,digits=30").span("test") == range(30, 31)
    assert open_strings("task:addition,digits=3").span("test") == range(20, 21)
    assert open_vectors("task:parity,size=16,bits=8").span("test") == range(16, 17)


@OF_VECTORS
def test_rows_do_not_depend_on_what_torch_calls_a_float(exercise: Vectors) -> None:
    wanted = exercise.held("valid")
    torch.set_default_dtype(torch.float64)
    try:
        found = exercise.held("valid")
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


def test_the_sizes_that_are_too_few_to_be_split_are_named() -> None:
    assert "rows of bits 1 to 3, 8 are too few" in open_vectors("task:parity,size=8").about


def test_what_was_there_before_is_there() -> None:
    assert tasks.duplication(3, 4, 2, 0)["tokens"].shape == (2, 7)
    assert kind_of("task:copy") == "task"
    assert kind_of("tasks/copy.txt") == "text"

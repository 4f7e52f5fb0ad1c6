"""Learning experiments: what is evaluated is what was drawn, seeds repeat, claims are made of the lines, and a page keeps its own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from formers.cli.app import app
from formers.experiments.addition import Sums
from formers.experiments.babi import Questions
from formers.experiments.bottleneck import Words
from formers.experiments.experiment import BEGIN, END, Experiment, Table, onto
from formers.experiments.learning import Evaluated, TrainingSettings, evaluate_model, mean, middle, of, train_model
from formers.experiments.parity import Bits
from helpers import refused

TINY: list[Experiment] = [
    Bits(steps=2, batch=8, size=6, bits=3, rows=30, dim=8, most=3, few=2),
    Sums(steps=2, batch=8, digits=3, test=5, rows=30, dim=16, heads=2, depth=2, offset=3),
    Words(steps=2, batch=8, length=6, rows=30, dim=8, bucket=3),
]


@pytest.fixture
def tales(tmp_path: Path) -> Path:
    """Stories with questions of one and of two supporting facts."""
    folder = tmp_path / "tales"
    folder.mkdir()
    for part in ("train", "test"):
        lines = []
        for number in range(12):
            place, other = ("garden", "office")[number % 2], ("office", "kitchen")[number % 3 % 2]
            lines += [f"1 Mary went to the {place}.", f"2 Mary went to the {other}.", f"3 Where is Mary?\t{other}\t2"]
            lines += [f"4 Where was Mary?\t{place}\t1 2"]
        (folder / f"qa1_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("what", TINY, ids=lambda what: what.name)
def test_an_experiment_repeats_itself_and_tells_all_that_it_claims(what: Experiment, tmp_path: Path) -> None:
    seen: list[str] = []
    results = what.run(2, lambda line: seen.append(line["way"]))
    assert seen == [way for way in what.setups() for _ in range(2)]
    again = what.run(1)
    for first, other in zip(results["lines"][::2], again["lines"], strict=True):
        assert {**first, "seconds": 0} == {**other, "seconds": 0}  # seed 0
    assert set(what.limits) <= set(results)
    assert json.loads(json.dumps(results))["seeds"] == 2
    assert all(len(what.cells(line)) == len(what.titles) for line in results["lines"])
    table = what.further(results["lines"])
    assert all(len(row) == len(table.titles) for row in table.rows)
    picture = what.save(results, tmp_path / "a.svg")
    assert "<svg" in picture.read_text()
    page = what.markdown(results, "formers bench me", Path("a.svg"))
    assert "$ formers bench me" in page
    assert what.words() in page
    assert "(a.svg)" in page


def line(way: str, seed: int, **parts: dict[str, object]) -> dict[str, object]:
    return {"way": way, "seed": seed, **parts}


def test_claims_of_parity_are_medians_and_the_best_of_one_step() -> None:
    lines = [
        line("act", seed, valid={"exact": exact, "correlation": r, "by": {1: {"ponder": few}, 8: {"ponder": many}}})
        for seed, (exact, r, few, many) in enumerate([(0.9, 0.1, 5.0, 2.0), (0.8, 0.3, 3.0, 4.0), (0.5, 0.9, 2.0, 7.0)])
    ]
    lines += [line("one step", seed, valid={"exact": exact, "by": {1: {}, 8: {}}}) for seed, exact in enumerate([0.3, 0.7, 0.5])]
    found = Bits().claims(lines)
    assert found == pytest.approx({"act_error": 0.2, "plain_error": 0.3, "correlation": 0.3, "ponder_growth": 1.0})


def test_claims_of_addition_are_of_the_longer_sums_and_each_of_its_own_baseline() -> None:
    test = {"universal, offsets": (0.9, 0.7), "universal": (0.5, 0.1), "one layer, offsets": (0.8, 0.4), "one layer": (0.6, 0.2)}
    lines = [
        line(way, seed, test={"accuracy": digits, "exact": sums}, valid={"accuracy": 0.99, "exact": 0.98})
        for way, (digits, sums) in test.items()
        for seed in range(2)
    ]
    gains = {"gain_vanilla": 0.3, "gain_digits": 0.1, "gain_sums": 0.3, "gain_of_offsets": 0.4}
    assert Sums().claims(lines) == pytest.approx({"universal_digits": 0.9, **gains})
    offsets = {name: setup.spec.position.offset for name, setup in Sums().setups().items()}
    assert {name for name, offset in offsets.items() if offset == 12} == {name for name in offsets if name.endswith(", offsets")}
    assert set(offsets.values()) == {0, 12}


def test_claims_of_the_bottleneck_are_of_the_shortest_and_the_longest_words() -> None:
    ends = {"none": (0.95, 0.4), "additive": (1.0, 0.99), "multiplicative": (0.99, 0.9)}
    lines = [
        line(way, 0, valid={"by": {n: {"accuracy": short if n <= 3 else long, "exact": 0.0} for n in range(1, 7)}})
        for way, (short, long) in ends.items()
    ]
    found = Words(length=6, bucket=3).claims(lines)
    assert found == pytest.approx({"attention_longest": 0.9, "attention_fall": 0.09, "none_shortest": 0.95, "none_longest": 0.4})


def test_claims_of_stories_are_of_steps_at_the_question() -> None:
    by = {1: {"accuracy": 0.9, "asked": 4.0, "ponder": 1.0}, 2: {"accuracy": 0.6, "asked": 3.0, "ponder": 2.0}}
    by |= {3: {"accuracy": 0.5, "asked": 2.5, "ponder": 5.0}}
    found = Questions().claims([line("act", seed, test={"by": by}) for seed in range(2)])
    assert found == pytest.approx({"one_fact": 0.9, "three_facts": 0.5, "asked_growth": -1.5})


def test_seeds_have_weights_and_batches_of_their_own() -> None:
    first, second = Bits(steps=1, batch=8, size=6, bits=3, rows=30, dim=8, most=3, few=2).run(2)["lines"][:2]
    assert first["losses"] != second["losses"]
    batches = TINY[0].setups()["act"].batches
    assert not batches.train_batch(8, 0, 0)["tokens"].equal(batches.train_batch(8, 1, 0)["tokens"])


def test_stories_are_evaluated_by_their_supporting_facts(tales: Path) -> None:
    what = Questions(steps=2, batch=4, data=str(tales), dim=16, heads=2, most=3, length=5, offset=2)
    results = what.run(1)
    assert list(results["lines"][0]["test"]["by"]) == [1, 2]
    assert 1 <= results["lines"][0]["test"]["ponder"] <= 3
    assert "ponder" not in results["lines"][1]["test"]
    assert [row[0] for row in what.further(results["lines"]).rows] == [
        "right, act", "right, all steps", "steps, mean of all positions", "steps, at the question",
    ]  # fmt: skip


def test_figures_are_those_of_the_rows() -> None:
    rows = [(2, 2, 1), (2, 1, 0), (4, 3, 0)]
    evaluated = Evaluated(torch.tensor([1, 1, 2]), rows, torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 3, 5]))
    found = evaluated.figures()
    assert found["accuracy"] == 6 / 8
    assert found["exact"] == 1 / 3
    assert found["by"][1] == {"accuracy": 3 / 4, "exact": 1 / 2, "ponder": 1.5, "asked": 2.0}
    assert found["by"][2]["ponder"] == 4.0
    assert found["correlation"] == pytest.approx(0.9449, abs=1e-4)  # of (1, 2, 4) with (1, 1, 2)
    still = Evaluated(torch.tensor([1, 1, 2]), rows, torch.ones(3), torch.ones(3))
    assert still.figures()["correlation"] == 0.0  # and not NaN


def test_steps_of_a_row_leave_padding_out() -> None:
    """A model that always takes all its steps but halts by name: the mean of a padded row is that number."""
    what = Sums(steps=1, batch=4, digits=4, test=6, rows=12, dim=16, heads=2, depth=3, offset=0)
    setup = what.setups()["universal"]
    spec = setup.spec.replace(depth={"kind": "Adaptive", "layers": 3, "bias": -30.0})
    model, losses = train_model(spec, TrainingSettings(1, 4, 1e-9), 0, lambda step: setup.batches.train_batch(4, 0, step))
    found = evaluate_model(model, setup.batches, "valid", size=5)
    assert len(losses) == 1
    assert found.ponder is not None
    assert found.asked is not None
    assert found.ponder.eq(3).all()
    assert found.asked.eq(3).all()
    assert len(found.rows) == len(found.difficulty) == 12


def test_lines_are_summed_up_by_way() -> None:
    lines = [{"way": way, "seed": seed, "valid": {"exact": exact}} for way, seed, exact in (("a", 0, 0.1), ("a", 1, 0.2), ("a", 2, 0.9))]
    lines.append({"way": "b", "seed": 0, "valid": {"exact": 1.0}})
    assert of(lines, "a", "valid", "exact") == [0.1, 0.2, 0.9]
    assert mean(lines, "a", "valid", "exact") == pytest.approx(0.4)
    assert middle(lines, "a", "valid", "exact") == 0.2


def test_a_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert onto(page, "first").read_text() == f"{BEGIN}\nfirst\n{END}\n"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert onto(page, "new").read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("words\n")
    assert onto(page, "new").read_text() == f"words\n{BEGIN}\nnew\n{END}\n"
    assert Table(["a", "b"], [["x", "1"]]).markdown() == ["| a | b |", "|---|---:|", "| x | 1 |"]


def test_mistakes() -> None:
    with refused("seeds=0"):
        TINY[0].run(0)
    with refused("steps=0"):
        Bits(steps=0).run(1)
    with refused("length=12", "10"):
        Words(length=12, rows=10).run(1)
    with refused("task:copy has no stories", "babi:1-3"):
        Questions(data="task:copy").run(1)


def test_the_command_writes_page_and_picture_and_holds_the_limits(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "pictures" / "a.png"
    words = ["bench", "bottleneck", "--steps", "2", "--length", "5", "--seeds", "1", "--check", "--page", str(page), "--out", str(picture)]
    done = CliRunner().invoke(app, words)
    assert "there is no folder" in str(done.exception)  # raised before training
    assert not page.exists()
    picture.parent.mkdir()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1  # two steps teach nobody to copy
    assert "missed: attention_longest" in done.stderr
    assert "(pictures/a.png)" in page.read_text()
    assert picture.stat().st_size > 1000


def test_one_thread_learns_as_the_page_says() -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        TINY[0].run(1, lambda line: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

"""Ponder times: the numbers of a view against the arithmetic, what is drawn, difficulty, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

import formers
from formers.cli.app import app
from formers.core import Watch
from formers.data import Bytes
from formers.data.files import Parts
from formers.depth.adaptive import AdaptiveBlocks
from formers.depth.halting import STEPS, begin
from formers.evaluation.evaluate import evaluate
from formers.evaluation.exact_match import by_difficulty
from formers.heads import Tag
from formers.inspect import by_step, draw_ponder, ponder_facts, ponder_of, save_ponder
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.difficulty import ItemAnswers, Items, correlation, grouped
from formers.inspect.measure.ponder import Flops, Ponder, ponders
from formers.training import prepare
from helpers import close, refused, sweep

SIZES: dict[str, Any] = dict(dim=16, heads=2, hidden=24, length=32, steps=5, act="graves", halt_epsilon=0.05)
NAN = float("nan")
HALTING = torch.tensor([[0.6, 0.5, NAN], [0.995, NAN, NAN], [0.1, 0.2, 0.1]], dtype=torch.float64)


def thinking(**options: Any) -> Any:
    """A universal transformer whose tokens halt at different steps."""
    torch.manual_seed(3)
    model = formers.create("universal-transformer", **{"vocab": 258, **SIZES, **options}).eval()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, AdaptiveBlocks):
                part.unit.weight.normal_(std=0.5)
                part.unit.bias.fill_(-0.7)
    model.tokenizer = Bytes(specials=("begin", "end") if options.get("decoder_steps") else ())
    return model


def tagging() -> Any:
    """The same with a class at every step."""
    model = thinking(causal=False)
    tagger: Any = formers.build(model.spec.replace(head=Tag(classes=2))).eval()
    tagger.load_state_dict(model.state_dict(), strict=False)
    return tagger


def by_hand() -> Ponder:
    steps, rest = torch.tensor([2.0, 1.0, 3.0]).double(), torch.tensor([0.4, 1.0, 0.7]).double()
    return Ponder("", ["a", "b", "c"], HALTING, steps, rest)


def test_weights_and_costs_are_those_of_the_equations() -> None:
    seen = by_hand()
    close(seen.weights, torch.tensor([[0.6, 0.4, 0.0], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]]).double(), 1e-7)
    close(seen.cost, torch.tensor([2.4, 2.0, 3.7]).double(), 1e-7)
    assert seen.saved == pytest.approx(1 - 2 / 3)
    assert seen.words == "2.00 of 3 steps a token in the mean (33% saved), remainder 0.70"


def test_what_runs_out_of_steps_under_t2t_has_no_remainder() -> None:
    seen = Ponder("", ["a"], torch.tensor([[0.2, 0.3]]), torch.tensor([2.0]), torch.tensor([0.0]))
    close(seen.weights, torch.tensor([[0.2, 0.3]]))


def test_steps_tell_who_takes_them() -> None:
    first, second, third = by_step(HALTING, by_hand().steps)
    assert (first.number, first.mean, first.running) == (1, pytest.approx((0.6 + 0.995 + 0.1) / 3), pytest.approx(2 / 3))
    assert (first.lower, first.upper) == (pytest.approx(0.35), pytest.approx(0.7975))
    assert (second.mean, second.running) == (pytest.approx(0.35), pytest.approx(1 / 3))
    assert (third.mean, third.running) == (pytest.approx(0.1), 0.0)
    unused = by_step(torch.tensor([[0.99, NAN]]), torch.ones(1))[1]
    assert (unused.mean, unused.lower, unused.running) == (None, None, 0.0)


@sweep("options", [{}, {"causal": False}, {"decoder_steps": 4}])
def test_a_view_has_what_halting_computes(options: dict[str, Any]) -> None:
    model = thinking(**options)
    seen, flops = ponder_of(model, "The cat sat.", "A dog" if options.get("decoder_steps") else None)
    assert [each.title for each in seen] == (["encoder", "decoder"] if len(seen) == 2 else [""])
    for each in seen:
        spent = begin(torch.ones(len(each.labels), dtype=torch.bool), torch.float64)
        for t in range(each.most):
            p, spent = spent.step(each.halting[:, t].nan_to_num(), 0.05, last=t == each.most - 1)
            close(each.weights[:, t], p, 1e-6)
        close(each.steps, spent.steps)
        close(each.remainder, spent.remainder, 1e-6)
        assert len(set(each.steps.tolist())) > 1, "all tokens halted at one step: the test shows nothing"
    assert flops.skipping < flops.whole
    if len(seen) == 1:
        assert flops.whole == Costs(model.spec, 1).forward(len("The cat sat.")).total


def test_layers_of_recurrent_cells_are_distinguished() -> None:
    notes = {STEPS: {}, "remainder": {}, "halting": {}}
    for layer in (0, 1):
        notes[STEPS][layer], notes["remainder"][layer] = by_hand().steps[None], by_hand().remainder[None]
        notes["halting"][layer] = HALTING[None]
    seen = ponders(notes, {"": ["a", "b", "c"]})
    assert [each.title for each in seen] == ["layer 0", "layer 1"]
    assert torch.equal(seen[1].weights, by_hand().weights)


def test_a_recurrent_member_is_seen_too() -> None:
    model = formers.create("act-rnn", vocab=256, dim=8, steps=4, halt_bias=0.5)
    model.tokenizer = Bytes()
    seen, flops = ponder_of(model, "abc")
    assert [each.most for each in seen] == [4] * len(seen)
    assert all(float(each.steps.max()) < 4 for each in seen), "nobody halted early: the test shows nothing"
    assert flops.skipping < flops.whole
    assert flops.whole == Costs(model.spec, 1).forward(3).total


def test_the_drawing() -> None:
    drawn = draw_ponder([by_hand()], Flops(50, 200), columns=60)
    assert drawn.plain.splitlines() == [
        " 2.00 of 3 steps a token in the mean (33% saved), remainder",
        " 0.70.",
        "",
        " 213",
        " abc",
        "",
        " Above each token stands N, how many steps it takes; the",
        " darker it is, the more.",
        " A pass takes 50 FLOP instead of 200 FLOP with all steps",
        " for all tokens: 75% saved.",
    ]
    assert len({span.style for span in drawn.spans}) == 3  # a colour for each number of steps
    words = Ponder("", ["the", "␣cat", "\\"], HALTING, by_hand().steps, by_hand().remainder)
    lines = draw_ponder([words], Flops(1, 1), columns=10, encoding="ascii").plain.splitlines()
    assert " 2" in lines
    assert " the" in lines
    assert " \\scat \\" in lines
    assert all(line.isascii() for line in lines)


def test_pictures_and_facts(tmp_path: Path) -> None:
    seen, flops = ponder_of(thinking(decoder_steps=4), "2 $x$", "␣")
    written = save_ponder(seen, tmp_path / "a.svg", flops, "mine").read_text()
    assert "<svg" in written
    facts = ponder_facts(seen, flops, "mine")
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    for stack in facts["stacks"]:
        assert [len(h) for h in stack["halting"]] == stack["steps"]
        assert all(sum(p) == pytest.approx(1, abs=1e-3) for p in stack["weights"])


def test_inspection_puts_padding_back() -> None:
    model, tokens = thinking(), torch.randint(256, (1, 6))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.arange(9)[None] >= 3
    alone, notes = model.inspect(tokens).notes, model.inspect(padded, mask=mask).notes
    for name in (STEPS, "remainder"):
        assert notes[name][0][:, :3].eq(0).all()
        close(notes[name][0][:, 3:], alone[name][0], 1e-6)
    for h, theirs in zip(notes["halting"], alone["halting"], strict=True):
        assert h[:, :3].isnan().all()
        torch.testing.assert_close(h[:, 3:], theirs, equal_nan=True, atol=1e-6, rtol=0)


def test_looking_at_steps_alone_keeps_skipping_on() -> None:
    model, seen = thinking(decoder_steps=4), []
    source, target = torch.randint(258, (2, 9)), torch.randint(258, (2, 5))
    model.encoder.depth.blocks[0].feedforward.register_forward_hook(lambda part, given, y: seen.append(given[0].shape[:2].numel()))
    watch = Watch(only=STEPS)
    with torch.no_grad():
        model(source, target, watch=watch)
    assert sum(seen) == int(watch.notes["encoder " + STEPS][0].sum()) < 18 * 5


def test_correlation_of_numbers_made_by_hand() -> None:
    hard = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    assert correlation(hard, 3 * hard + 1) == pytest.approx(1.0)
    assert correlation(hard, -hard) == pytest.approx(-1.0)
    assert correlation(hard, torch.tensor([1.0, -1.0, -1.0, 1.0]).double()) == pytest.approx(0.0)
    assert correlation(hard, torch.tensor([1.0, 2.0, 2.0, 5.0]).double()) == pytest.approx(6 / 45**0.5)
    assert correlation(hard, torch.ones(4).double()) is None
    assert correlation(torch.ones(4).double(), hard) is None


def test_groups_of_numbers_made_by_hand() -> None:
    n, hard = torch.tensor([2.0, 4.0, 5.0]).double(), torch.tensor([1, 1, 7])
    easy, harder = grouped(n, hard, ItemAnswers(torch.tensor([2, 3, 1]), torch.tensor([2, 1, 0]), torch.tensor([True, False, False])))
    assert easy == (1, 2, 3.0, 1.0, 0.6, 0.5)
    assert harder == (7, 1, 5.0, 0.0, 0.0, 0.0)
    assert grouped(n)[0][:2] == (None, 3)


class Rows:
    """Five rows of different lengths with two classes, each as hard as it is long."""

    continues, length = False, 0
    lengths = (6, 2, 5, 2, 6)

    def __init__(self) -> None:
        self.tokens = torch.randint(256, (5, 6), generator=torch.Generator().manual_seed(0))
        self.parts: Parts[Any] = Parts({"valid": range(5)}, "rows")

    def difficulty(self, part: str) -> Tensor:
        return torch.tensor(self.lengths)

    def train_batch(self, size: int, seed: int, step: int, rows: slice = slice(None)) -> dict[str, Tensor]:
        raise NotImplementedError

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None) -> Iterator[dict[str, Tensor]]:
        for start in range(0, 5, size):
            here = slice(start, min(start + size, 5))
            mask = torch.arange(6) < torch.tensor(self.lengths[here])[:, None]
            yield {"tokens": self.tokens[here], "targets": torch.tensor([0, 1, 1, 0, 1])[here], "mask": mask}


class StepRows(Rows):
    """The same with a class at every step, which is as hard as its place."""

    def step_difficulty(self, part: str) -> Tensor:
        return torch.arange(1, 7).expand(5, 6)

    def eval_batches(self, size: int, part: str = "valid", stride: int | None = None) -> Iterator[dict[str, Tensor]]:
        for batch in super().eval_batches(size, part):
            yield {**batch, "targets": (batch["tokens"] % 2).masked_fill(~batch["mask"], -100)}


def test_difficulty_over_batches_is_that_of_each_row_alone() -> None:
    model, rows = thinking(classes=2), Rows()
    items = Items(model, rows, "valid", every_step=True)
    figures = evaluate(model, rows, None, size=2, ponder=items)
    alone = [model.inspect(rows.tokens[i : i + 1, :n]).notes[STEPS][0] for i, n in enumerate(rows.lengths)]
    means = torch.tensor([float(n.mean()) for n in alone]).double()
    seen = items.difficulties()[0]
    assert [(g.difficulty, g.items) for g in seen.groups] == [(2, 2), (5, 1), (6, 2)]
    assert [g.mean for g in seen.groups] == [pytest.approx(float(means[m].mean())) for m in ([1, 3], [2], [0, 4])]
    assert seen.correlation == pytest.approx(correlation(torch.tensor(rows.lengths).double(), means))
    assert sum(g.items * (g.accuracy or 0) for g in seen.groups) / 5 == pytest.approx(figures["accuracy"])
    assert figures["ponder_steps"] == pytest.approx(seen.mean) == pytest.approx(float(torch.cat(alone, dim=1).mean()))
    assert figures["ponder_limit"] == 5
    assert figures["ponder_saved"] == pytest.approx(1 - seen.mean / 5)
    assert seen.steps is not None
    assert seen.steps[0].running == pytest.approx(float((torch.cat(alone, dim=1) > 1).double().mean()))


def test_steps_may_have_difficulties_of_their_own() -> None:
    model, rows = tagging(), StepRows()
    items = Items(model, rows, "valid")
    evaluate(model, rows, None, size=2, ponder=items)
    seen = items.difficulties()[0]
    assert seen.unit == "tokens"
    assert [(g.difficulty, g.items) for g in seen.groups] == [(1, 5), (2, 5), (3, 3), (4, 3), (5, 3), (6, 2)]
    first = [float(model.inspect(rows.tokens[i : i + 1, :n]).notes[STEPS][0][0, 0]) for i, n in enumerate(rows.lengths)]
    assert seen.groups[0].mean == pytest.approx(sum(first) / 5)
    assert all(group.accuracy is not None and group.exact is None for group in seen.groups)


@torch.no_grad()
def test_answers_are_counted_as_the_score_of_an_exercise_counts_them() -> None:
    """The end of an answer is no symbol of it."""
    torch.manual_seed(0)
    task = prepare("universal-transformer", "task:addition,digits=3,rows=60", None, {"dim": 16, "heads": 2, "act": "graves", "steps": 3})
    model, batches = formers.build(task.spec).eval(), task.batches
    items = Items(model, batches, "valid")
    for batch in batches.eval_batches(16, "valid"):
        watch = items.watch()
        items.update(batch, model(**batch, watch=watch), watch)
    found = {group.difficulty: (group.accuracy, group.exact) for group in items.difficulties()[0].groups}
    wanted = by_difficulty(model, batches)
    assert found == {hard: (exact.accuracy, exact.exact) for hard, exact in wanted.items()}
    assert max(exact.accuracy for exact in wanted.values()) > 0


def test_what_cannot_be_seen_is_refused() -> None:
    plain = formers.create("decoder", vocab=256, dim=16, heads=2, layers=1)
    plain.tokenizer = Bytes()
    with refused("decoder", "same number of steps for every token", "act=graves"):
        ponder_of(plain, "text")
    with refused("act-rnn reads vectors of 3 numbers", "leave the text out"):
        ponder_of(formers.create("act-rnn", features=3, classes=2), "text")
    with refused("empty"):
        ponder_of(thinking(), "")
    with refused("leave the target out"):
        ponder_of(thinking(), "a", "b")
    ruined = thinking()
    with torch.no_grad():
        ruined.stack.depth.unit.weight.fill_(NAN)
    with refused("diverged"):
        ponder_of(ruined, "abc")


def show(*words: object) -> Result:
    return CliRunner().invoke(app, ["show", "ponder", *map(str, words)], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "ut"
    sizes = {name: value for name, value in SIZES.items() if name not in ("steps", "length")}
    small: dict[str, Any] = dict(batch=4, final_batches=1, eval_batches=1, sample_tokens=0, quiet=True)
    done = formers.train("universal-transformer", "task:reverse", folder, steps=1, decoder_steps=3, **sizes, **small)
    assert 1 <= done.results["encoder_ponder_steps"] <= done.results["encoder_ponder_limit"] == 6
    assert 1 <= done.results["ponder_steps"] <= done.results["ponder_limit"] == 3
    return folder


def test_the_command_over_a_text(run: Path, tmp_path: Path) -> None:
    drawn = show(run, "--text", "123", "--target", "321", "--steps")
    assert drawn.exit_code == 0, drawn.output
    assert "encoder: " in drawn.stdout
    assert "of 3 steps" in drawn.stdout
    assert "still running" in drawn.stdout
    both = show(run, "--text", "123", "--out", tmp_path / "a.png", "--json")
    facts = json.loads(both.stdout)
    assert [stack["stack"] for stack in facts["stacks"]] == ["encoder", "decoder"]
    assert facts["stacks"][0]["tokens"] == ["1", "2", "3"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_over_data(run: Path, tmp_path: Path) -> None:
    output = show(run, "--limit", 64, "--batch", 64, "--steps", "--out", tmp_path / "a.svg")
    assert output.exit_code == 0, output.output
    assert "encoder mean decoder mean length rows N spread N spread accuracy exact" in " ".join(output.stdout.split())
    assert "<svg" in (tmp_path / "a.svg").read_text()
    facts = json.loads(show(run, "--part", "test", "--limit", 8, "--json").stdout)
    assert [sum(group["items"] for group in stack["groups"]) for stack in facts["stacks"]] == [8, 8]
    assert facts["stacks"][0]["by_step"] is None


def test_the_command_refuses(run: Path) -> None:
    for words, hint in (
        (("--target", "b"), "--text"),
        (("--text", "a", "--limit", 3), "--limit 3"),
        (("--text", "a", "--out", "a.txt"), "a.txt"),
    ):
        failed = show(run, *words)
        assert isinstance(failed.exception, formers.FormersError) or failed.exit_code == 2
        assert hint in str(failed.exception) + failed.output

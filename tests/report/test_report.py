"""The report: what it says of runs and comparisons, that it holds no script, and that a damaged run hides no other."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from commands import command
from formers.compare.verdict import verdict
from formers.report import read_reports, report_page
from formers.report.read import read_run


def page_of(*paths, maps=False):
    return report_page(*read_reports(paths), maps=maps)


def test_a_run_is_told_with_curves_samples_scores_costs_and_its_command(trained):
    page = page_of(trained / "plain", trained / "hashed", maps=True)
    for words in (
        "held-out bits per byte",
        "training FLOPs",
        "seconds of training",
        "tokens",
        "step 20",
        "Protocol",
        "To repeat it",
        "torch",
    ):
        assert words in page
    assert page.count("<svg") >= 7
    assert "Attention" in page
    assert "Buckets" in page, "the reformer has them"
    assert len(page.encode()) < 1_000_000


def test_nothing_of_a_user_becomes_markup_and_nothing_is_asked_for(trained):
    page = page_of(trained / "plain")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert "\x07" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert not re.findall(r"url\(|@import|\sstyle=", page)
    assert "default-src 'none'" in page


def test_a_damaged_run_is_a_sentence_and_the_others_are_told(trained, tmp_path):
    for name in ("plain", "hashed"):
        shutil.copytree(trained / name, tmp_path / name)
    (tmp_path / "hashed" / "run.json").write_text('{"format": "formers/run/1", "mem')
    (tmp_path / "plain" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    runs, _, problems = read_reports([tmp_path / "plain", tmp_path / "hashed", tmp_path / "nothing"])
    assert [run.name for run in runs] == ["plain"]
    assert "run.json" in problems[0]
    assert "no run" in problems[1]
    assert runs[0].problems == ["1 line of metrics.jsonl cannot be read and is left out."]
    page = report_page(runs, (), problems, maps=False)
    assert "1 line of metrics.jsonl" in page
    assert "hashed" in page


def test_a_run_without_checkpoints_or_metrics_is_told(trained, tmp_path):
    shutil.copytree(trained / "plain", tmp_path / "plain")
    shutil.rmtree(tmp_path / "plain" / "ckpt")
    (tmp_path / "plain" / "metrics.jsonl").unlink()
    run = read_run(tmp_path / "plain")
    assert any("no curves" in problem for problem in run.problems)
    page = page_of(tmp_path / "plain", maps=True)
    assert "There are no curves" in page
    assert "Weights" in page


def test_a_comparison_is_told_with_its_verdict_where_its_folder_has_moved(trained, tmp_path):
    scores = {"decoder": [2.0, 2.1], "reformer": [3.0, 3.1]}
    rows = [
        {"variant": name, "parameters": 5, "bits_per_byte": scores[name][0], "spread": {"bits_per_byte": 0.07}, "diverged": 0, "seeds": 2,
         "runs": [{"run": f"gone/{folder}", "seed": 0, "bits_per_byte": scores[name][0]}]}
        for name, folder in (("decoder", "plain"), ("reformer", "hashed"))
    ]  # fmt: skip
    facts = {
        "format": "formers/comparison/1", "whole": False, "data": "my.txt", "equal": "flops", "budget": 1e9, "seeds": 2, "rows": rows,
        "verdict": verdict(scores, "bits per byte", lower=True), "machine": "a machine", "command": "formers compare decoder <b>",
    }  # fmt: skip
    shutil.copytree(trained, tmp_path / "both")
    (tmp_path / "both" / "comparison.json").write_text(json.dumps(facts))
    page = page_of(tmp_path / "both")
    assert "1e+09 FLOPs each" in page
    assert "decoder, seed 0" in page
    assert "2 ± 0.07" in page
    assert "not finished" in page
    assert "formers compare decoder &lt;b&gt;" in page
    (tmp_path / "both" / "comparison.json").write_text("{")
    _, _, problems = read_reports([tmp_path / "both"])
    assert "comparison.json cannot be read" in problems[0]


def test_the_command_writes_a_file_and_refuses_in_a_sentence(trained, tmp_path):
    done = command("report", str(trained / "plain"), "--out", "r.html", "--no-maps", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["runs"] == 1
    assert facts["bytes"] == (tmp_path / "r.html").stat().st_size
    for words in (["report", str(tmp_path)], ["report", str(trained / "plain"), "--out", "r.pdf"]):
        wrong = command(*words, cwd=tmp_path)
        assert wrong.returncode == 2
        assert len(wrong.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_images_and_episodes_are_shown(tmp_path):
    import formers

    small = dict(dim=16, heads=2, layers=1, batch=2, eval_batches=1, final_batches=1)
    formers.train("decoder", "digits", tmp_path / "images", steps=2, quiet=True, track="none", **small)
    assert "sample 8" in page_of(tmp_path / "images", maps=True)
    formers.rl.train("gtrxl", "tmaze:4", tmp_path / "agent", steps=600, quiet=True, track="none")
    page = page_of(tmp_path / "agent", maps=True)
    assert "Episode" in page
    assert "step 0: action" in page

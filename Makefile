# One environment, .venv, for the demo, the tests and the notebooks. It is made on
# first use, and again when pyproject.toml has changed. Without make: see README.md.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The PyTorch that this project was tested with; any in pyproject.toml's range works.
# Linux: the plain package is the CUDA build (gigabytes), so it is taken only where
# nvidia-smi works, and PyTorch's own CPU build (about 200 MB) elsewhere. macOS needs
# no choice. For another build:
#   make demo TORCH="torch==2.12.0" TORCH_INDEX=URL     (TORCH_INDEX= : plain package)
TORCH ?= torch==2.13.0
ifeq ($(origin TORCH_INDEX),undefined)
ifeq ($(shell uname -s),Linux)
TORCH_INDEX := $(shell nvidia-smi >/dev/null 2>&1 || \
                       echo https://download.pytorch.org/whl/cpu)
endif
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all lint types lab notebooks tiny clean clean-all

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP)  ## decode with every drafter on the shipped tiny model (CPU, offline)
	$(BIN)/python -m dsparkref demo

test: lint types  ## style, types and tests, without the long lanes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)  ## only the long lanes
	$(BIN)/python -m pytest -n 2 -m slow

test-all:  ## everything
	@$(MAKE) test
	@$(MAKE) test-slow

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(STAMP)
	$(BIN)/python -m mypy

lab: $(STAMP)  ## open the first notebook in JupyterLab
	$(BIN)/python -m jupyterlab notebooks/01_suffix_decay.ipynb

notebooks: $(STAMP)  ## run all notebooks again and keep their outputs
	$(BIN)/python notebooks/build.py

tiny: $(STAMP)  ## make the tiny model and its drafters in data/ again (about an hour)
	$(BIN)/python -m dsparkref train tiny

clean:  ## remove caches and build products
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o \
	    \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

clean-all: clean  ## remove .venv too
	rm -rf $(VENV)

# The stamp is written last, so that an interrupted set-up is taken up again.
# PyTorch goes first and alone: --no-deps asks the extra index about one package, and
# --retries 1 gives up on it within seconds where it cannot be reached (pip then takes
# what the other indexes have). The second install finds it in place and keeps it.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'Python 3.11 or newer is needed: make ... PYTHON=python3.12'; exit 1; }
	@$(BIN)/python -m pip -V >/dev/null 2>&1 || \
	    $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	    echo 'No venv module? On Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@$(BIN)/python -m pip show -q torch 2>/dev/null || $(BIN)/python -m pip install --no-deps \
	    --retries 1 --timeout 15 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    "$(TORCH)"
	@$(BIN)/python -m pip install -e ".[dev]"
	@touch $@

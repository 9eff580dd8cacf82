# One environment, .venv, for the demo, the tests and the notebooks. It is made on
# first use, and again when pyproject.toml has changed. Without make: see README.md.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two more for two targets: the oldest transformers; the codes that others wrote.
OLDEST := .venv-oldest
PEERS  := .venv-peers

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
.PHONY: help demo test test-slow test-oldest test-all peers lint types lab notebooks tiny clean clean-all

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP)  ## decode with every drafter on the shipped tiny model (CPU, offline)
	$(BIN)/python -m dsparkref demo

test: lint types  ## style, types and tests, without the long lanes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)  ## only the long lanes
	$(BIN)/python -m pytest -n 2 -m slow

test-oldest: $(OLDEST)/.installed  ## the tests again, on transformers 5.10
	$(OLDEST)/bin/python -m pytest -n 2 -m "not slow"

test-all:  ## everything
	@$(MAKE) test
	@$(MAKE) test-slow
	@$(MAKE) test-oldest

peers: $(PEERS)/.installed  ## compare with nvidia-modelopt and speculators themselves
	$(PEERS)/bin/python tests/peers/compare.py

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
	find . -path "./.venv*" -prune -o \
	    \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

clean-all: clean  ## remove .venv and its like too
	rm -rf $(VENV) $(OLDEST) $(PEERS)

# The stamp is written last, so that an interrupted set-up is taken up again.
# PyTorch goes first and alone: --no-deps asks the extra index about one package, and
# --retries 1 gives up on it within seconds where it cannot be reached (pip then takes
# what the other indexes have). The second install finds it in place and keeps it.
$(STAMP): pyproject.toml
	$(call with_torch,$(VENV))
	@$(BIN)/python -m pip install -e ".[dev]"
	@touch $@

$(OLDEST)/.installed: pyproject.toml
	$(call with_torch,$(OLDEST))
	@$(OLDEST)/bin/python -m pip install -e ".[dev]" "transformers==5.10.*"
	@touch $@

# torchvision and torchaudio come with speculators, which uses neither here; as GPU
# builds they would not load beside a CPU torch, and transformers tries to.
$(PEERS)/.installed: pyproject.toml
	$(call with_torch,$(PEERS))
	@$(PEERS)/bin/python -m pip install "$(TORCH)" "transformers==5.10.*" jaxtyping \
	    typer "nvidia-modelopt==0.47.*" requests accelerate "speculators==0.9.*" || \
	    { echo 'peers: not compared, for they could not be installed'; exit 1; }
	@$(PEERS)/bin/python -m pip uninstall -y torchvision torchaudio
	@touch $@

# $(call with_torch,FOLDER): an environment with PyTorch alone in it.
define with_torch
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'Python 3.11 or newer is needed: make ... PYTHON=python3.12'; exit 1; }
	@$(1)/bin/python -m pip -V >/dev/null 2>&1 || \
	    $(PYTHON) -m venv --clear $(1) || { rm -rf $(1); \
	    echo 'No venv module? On Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@$(1)/bin/python -m pip show -q torch 2>/dev/null || $(1)/bin/python -m pip install \
	    --no-deps --retries 1 --timeout 15 \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
endef

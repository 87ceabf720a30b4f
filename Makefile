# make setup | demo | demo-distributed | test | test-all | check | format | lock | clean. Every target sets up .venv first, once.
PYTHON ?= python3
# The CUDA builds where a GPU answers, else the CPU builds. Override: make STACK=cpu demo
STACK ?= $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)

INSTALLED := .venv/.installed-$(STACK)
REQUIREMENTS := $(if $(filter cuda,$(STACK)),requirements/cuda.txt,requirements/cpu.lock)

# Tests and workers are hundreds of processes; without bytecode each compiles torch anew, which takes half of a start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-distributed test test-all test-fast check format lock clean
.DEFAULT_GOAL := setup

setup: $(INSTALLED)

$(INSTALLED): $(REQUIREMENTS) pyproject.toml scripts/setup.sh $(wildcard scripts/site/*)
	PYTHON=$(PYTHON) bash scripts/setup.sh $(STACK)

demo: setup
	.venv/bin/evr1 demo

# The same training in two processes that Ray places, each with a shard of the policy (FSDP2) and an engine.
demo-distributed: setup
	OMP_NUM_THREADS=1 .venv/bin/evr1 demo --workers 2 --output demo-distributed

# One thread: reductions in one order, so that what has to be equal bit for bit is. Two processes, a file of tests each at a time.
PYTEST := OMP_NUM_THREADS=1 .venv/bin/python -m pytest
TWO := -n 2 --dist loadfile --durations=20

test: setup
	$(PYTEST) $(TWO) -m "not extra"

# With the variations that `make test` leaves out.
test-all: setup
	$(PYTEST) $(TWO)

test-fast: setup
	$(PYTEST) -m "not slow"

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

lock: setup
	.venv/bin/python scripts/lock.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

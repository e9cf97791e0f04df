PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help venv test test-slow test-flower lint demo bench coverage clean

help:
	@echo "make demo       set up, then cast and count private ballots"
	@echo "make test       set up, then lint, type-check and test"
	@echo "make test-slow  the long tests"
	@echo "make test-flower  Flower and Ray with real processes on loopback"
	@echo "make bench      speed beside NumPy and torch, in one run"
	@echo "make coverage   line coverage of the core"
	@echo "make venv       only make $(VENV), with all extras"

venv: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("hushbit needs Python 3.11 or newer; name one with make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-flower: $(STAMP)
	$(BIN)/python -m pytest -m flower tests

coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --cov --cov-report=
	$(BIN)/coverage report --include='src/hushbit/*.py,src/hushbit/privacy/*.py' --fail-under=95

demo: $(STAMP)
	$(BIN)/python -m hushbit demo

bench: $(STAMP)
	$(BIN)/hushbit bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CODE := src tests benchmarks examples tools .ci

.PHONY: help venv test test-slow test-flower lint demo bench coverage wheel docs reproduce clean

help:
	@echo "make demo         set up, then train 1 000 users within a privacy budget; writes ./demo"
	@echo "make test         set up, then lint, type-check and test"
	@echo "make test-slow    the long tests"
	@echo "make test-flower  Flower and Ray with real processes on loopback"
	@echo "make lint         ruff, mypy and the import layers"
	@echo "make coverage     the tests, with at least 95 % of the library's lines covered"
	@echo "make wheel        build the sdist and the wheel, then try the wheel in a clean environment"
	@echo "make docs         build the documentation site into site/, offline; every link must be valid"
	@echo "make bench        speed beside NumPy and torch, in one run"
	@echo "make reproduce    every experiment into results/, then docs/reproduction.md (hours)"
	@echo "make venv         only make $(VENV), with all extras"
	@echo "make clean        remove $(VENV), builds and caches"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("hushbit needs Python 3.11 or newer; name one with make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[all,dev]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow

test-flower: $(STAMP)
	$(BIN)/python -m pytest -m flower tests

coverage: $(STAMP)
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/smoke_wheel.py dist

docs: $(STAMP)  # not --quiet: it drops the warnings that --strict counts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

demo: $(STAMP)
	$(BIN)/python -m hushbit demo

bench: $(STAMP)
	$(BIN)/hushbit bench

reproduce: $(STAMP)
	$(BIN)/hushbit reproduce all --out results
	$(BIN)/hushbit report results --docs docs

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

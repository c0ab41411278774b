# Every target does all set-up from nothing: a virtual environment in .venv, then what it is asked for.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-gpu check clean

demo: .venv/.installed  ## denoise a sample picture at every setting with the shipped weights
	$(BIN)/recurconv demo

test: .venv/.installed-test  ## run the tests
	$(BIN)/python -m pytest

test-gpu: .venv/.installed-test  ## run the tests that need a CUDA device
	TEST_GPU=1 $(BIN)/python -m pytest -m gpu

check: .venv/.installed-test  ## lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/.installed-test: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable ".[test,dev]"
	touch $@ .venv/.installed

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache

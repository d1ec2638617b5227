# make demo   see generative retrieval work on the carried world (minutes, 2 CPU cores)
# make test   lint, types, import order, docs and all tests
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format clean

demo: .venv/.demo
	$(BIN)/siglum demo --out runs/demo

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov=siglum --cov-report=term:skip-covered --cov-fail-under=90
	$(BIN)/siglum demo --scale tiny --out runs/tiny

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/typos

format: .venv/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch first and alone, so that its pinned build is the one every later package finds.
.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $@

.venv/.test: .venv/.demo
	$(PIP) -e .[dev]
	touch $@

clean:
	rm -rf .venv runs

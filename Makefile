# make demo   see generative retrieval work on the drawn world (minutes, 2 CPU cores)
# make test   lint, types, import order, docs and all tests but the long ones
# make docs   the site in build/site, links checked
# make coverage    all tests, and how much of the code they run
# make test-long   the long tests, the site, a look for code that stands twice, a minute of kills, damage, full disks, shared runs and bad input
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-long coverage docs lint format clean

demo: .venv/.demo
	$(BIN)/siglum demo --out runs/demo
	@echo "Open it: $(BIN)/siglum serve runs/demo, and then http://127.0.0.1:8000 in a browser"

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long"
	$(BIN)/siglum demo --scale tiny --out runs/tiny

coverage: .venv/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov=siglum --cov-report=term:skip-covered --cov-fail-under=90

test-long: .venv/.test docs
	$(BIN)/pylint src
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long
	$(BIN)/python benchmarks/faults.py --seconds 60

docs: .venv/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

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
	$(PIP) -e .[serve]
	touch $@

.venv/.test: .venv/.demo
	$(PIP) -e .[dev]
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || echo "no Chromium: tests of the page skip"
	touch $@

clean:
	rm -rf .venv runs

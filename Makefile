# Two commands do all the set-up: `make serve` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
SERVER := $(VENV)/.server
READY  := $(VENV)/.ready

.PHONY: serve test test-all lint format bench eval clean

serve: $(SERVER)          ## the service on the embedded default: http://127.0.0.1:8080, docs at /docs
	$(BIN)/alcove serve

# Files are spread over two processes, which a machine with two cores has work for.
test: $(READY)            ## every test, fault and property tests in their short form
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(READY)        ## the same with the long forms: more kills, more random operations
	ALCOVE_LONG=1 $(BIN)/python -m pytest -n 2 --dist loadfile --timeout 3000

lint: $(READY)            ## style, types and SQL kept honest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench     ## ratios against the raw driver and other stores, into bench/
	$(BIN)/python bench/core.py
	$(BIN)/python bench/rest.py
	$(BIN)/python bench/peers.py --out bench

eval: $(READY)            ## how well search finds things, over REST, in one table: make eval DATA="FILE.json …"
	@test -n "$(DATA)" || { echo 'make eval DATA="FILE.json …" (layouts: bench/evaluate.py)' >&2; exit 2; }
	$(BIN)/python bench/evaluate.py $(DATA)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Each stamp says that one extra is installed; what serving needs is a part of what testing needs.
$(SERVER): pyproject.toml | $(BIN)/python
	$(PIP) '.[knowledge,llm,mcp,server,tokens]'
	touch $@

$(READY): pyproject.toml | $(BIN)/python
	$(PIP) '.[dev]'
	touch $(SERVER) $@

$(VENV)/.bench: $(READY)
	$(PIP) '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two commands do all the set-up: `make serve` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
SERVER := $(VENV)/.server
READY  := $(VENV)/.ready

.PHONY: serve test test-postgres test-all browser lint format bench eval clean

serve: $(SERVER)          ## the service on the embedded default: http://127.0.0.1:8080, docs at /docs
	$(BIN)/alcove serve

# Files are spread over three processes, since half of the tests wait: two cores have work for them. Those with the longest tests
# first, and in the end those of `unit`, so that neither has to wait for the other.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: $(READY) browser    ## every test, fault and property tests in their short form
	$(PYTEST)
	ALCOVE_TEST_ENGINE=postgres ALCOVE_TEST_BOUNDS='{user:b,user:u}' $(BIN)/python -m pytest tests/acceptance/rest/test_memories.py

test-postgres: $(READY) browser ## the acceptance tests with a PostgreSQL database under every path
	ALCOVE_TEST_ENGINE=postgres $(PYTEST) tests/acceptance

test-all: test-postgres   ## all, with the long forms: more kills, more random operations; the contract with tables split by tenant
	ALCOVE_TEST_BOUNDS='{user:alice,user:b}' $(PYTEST) tests/contract -k postgres
	ALCOVE_LONG=1 $(PYTEST) --timeout 3000

lint: $(READY)            ## style, types and SQL kept honest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
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

browser:                  ## Debian's Chromium, for tests of the panel; where it cannot be had they are skipped
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 \
		|| echo 'no Chromium, and it cannot be installed here: tests of the panel are skipped' >&2

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Each stamp says that one extra is installed; what serving needs is a part of what testing needs.
$(SERVER): pyproject.toml | $(BIN)/python
	@echo 'installing what the service needs, some two minutes the first time'
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

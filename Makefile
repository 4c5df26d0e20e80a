# Every target prepares .venv by itself; a second run does not install again.
# Needs only Python 3.11 or newer; uses `uv` if it is on the PATH, because it is faster.

PYTHON ?= python3
BIN := .venv/bin
# What .venv contains: everything, what quick tests need, what the demo needs.
READY := .venv/.ready
CORE := .venv/.core
DEMO := .venv/.demo
# Tests run on this many processes.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup setup-core demo test quick check check-fast bench torture sim chaos interop lock gen docs fmt house clean

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## Fill .venv with the package (editable), its extras and the developer tools

setup-core: $(CORE)  ## Fill .venv with what quick and check-fast need: no Spark, browser, docs

$(READY): requirements.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh full

$(CORE): requirements-core.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh core

$(DEMO): requirements-demo.lock pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh demo

demo: $(DEMO)  ## Run the whole: cluster, clients, pipelines on Spark, SQL; every result is checked
	@$(BIN)/tianzhou demo

test: $(READY)  ## All tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests

quick: $(CORE)  ## Unit and property tests and scenarios, under a minute
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit tests/property tests/scenarios

check-fast: $(CORE)  ## Lint, formatting, import contracts, generated files, tidiness
	$(BIN)/ruff check --no-cache
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/gen_wire.py --check
	$(BIN)/python tools/gen_docs.py --check
	$(BIN)/python tools/gen_compat.py --check
	$(BIN)/python -m pytest tests/tidy tests/sabotage/test_plants.py

check: $(READY)  ## Everything of check-fast, and types
	@$(MAKE) --no-print-directory check-fast
	$(BIN)/python tools/gen_api.py --check
	$(BIN)/pyright

bench: $(READY)  ## Measure: a table, and JSON lines in build/bench.jsonl
	$(BIN)/python -m bench

torture: $(READY)  ## Long tests: 1,000 kills, 500,000 crash images, 1,000,000 mutated requests (hours)
	TIANZHOU_TORTURE=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 tests/crash tests/spark/test_kills.py \
	  tests/abuse/test_abuse_grammar.py tests/abuse/test_abuse_fuzz.py tests/property/test_any_log.py

sim: $(READY)  ## Simulated Raft groups: new seeds for MINUTES (10), a ledger in build/raft-ledger.jsonl
	$(BIN)/python -m tianzhou.testing.sim.raft_run --minutes $(or $(MINUTES),10) --jobs $(JOBS)

chaos: $(READY)  ## Clusters of processes under faults; ONLY=name and SEED=n repeat one (half an hour)
	PYTHONPATH=tests $(BIN)/python -m chaos.run_chaos --jobs $(JOBS) --seed $(or $(SEED),1) --only "$(ONLY)"

interop: $(READY)  ## Tests with Java RocketMQ and the Go client (needs Maven, a JDK and Go; skipped with a message otherwise)
	TIANZHOU_INTEROP=1 $(BIN)/python -m pytest -n $(JOBS) --timeout 600 -rs tests/interop

docs: $(READY)  ## Build the documents as a site in build/site; every link and anchor is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built: open build/site/index.html, or see it with search: $(BIN)/python -m http.server -d build/site"

house: $(READY)  ## Print the structure in numbers: first build, now, target (a minute)
	@$(BIN)/python tools/house.py

fmt: $(READY)  ## Format the code and sort imports
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

gen: $(READY)  ## Write what is generated: protocol tables, pages of settings, of compatibility and of the API
	$(BIN)/python tools/gen_wire.py
	$(BIN)/python tools/gen_docs.py
	$(BIN)/python tools/gen_compat.py
	$(BIN)/python tools/gen_api.py

COMPILE := uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11
lock:  ## Resolve the dependencies again into the lock files (needs uv)
	$(COMPILE) --upgrade --extra all --extra dev pyproject.toml -o requirements.lock
	$(COMPILE) -c requirements.lock --upgrade --extra core-dev pyproject.toml -o requirements-core.lock
	$(COMPILE) -c requirements.lock --upgrade --extra spark pyproject.toml -o requirements-demo.lock

clean:  ## Remove .venv and everything built
	rm -rf .venv build dist

# Every target does its own set-up; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo dev test test-long test-release check chaos chaos-network lint types format docs bench simulate soak install install-dev constraints clean

VENV := .venv
BIN := $(VENV)/bin
# The folder of the demo and of `make dev`; the files of the demo's input; how many processes run the
# tests; arguments for pytest, for the simulation and for the soak.
HOME_DIR ?= .leasehold
INPUT ?=
TEST_PROCESSES ?= 3
# Long tests wait more than they work.
LONG_PROCESSES ?= 4
PYTEST_ARGS ?=
SIMULATION_ARGS ?=
SOAK_ARGS ?=
export PYTHON

help: ## List all targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp-run ## Consume a log of 8 shards from start to proof: make demo [INPUT="a.log b.log"]
	@exec $(BIN)/python examples/demo.py --home "$(HOME_DIR)" $(foreach file,$(INPUT),--input "$(file)")

dev: $(VENV)/.stamp-run ## Run the demo's deployment, with Dagster's pages on this machine only
	@exec $(BIN)/leasehold dev --home "$(HOME_DIR)"

test: $(VENV)/.stamp-dev ## Run the tests (installs MariaDB's server and Chromium, fetches MySQL's)
	@sh scripts/test_tools.sh
	@$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not long and not release" $(PYTEST_ARGS)

test-long: $(VENV)/.stamp-dev ## Run the long tests: whole deployments, killed processes, many seeds
	@sh scripts/test_tools.sh
	@$(BIN)/python -m pytest -q -n $(LONG_PROCESSES) --dist loadfile --no-loadscope-reorder -m "long and not release" $(PYTEST_ARGS)

test-release: $(VENV)/.stamp-dev ## Run the campaigns that a release has to pass, beside the long tests
	@sh scripts/test_tools.sh
	@$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile -m release $(PYTEST_ARGS)

check: lint types test ## Run what a change has to pass: lint, types and the tests

lint: $(VENV)/.stamp-dev ## Check style and formatting with ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev ## Check types with basedpyright, in strict mode
	@$(BIN)/basedpyright

format: $(VENV)/.stamp-dev ## Format all code and mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.stamp-dev ## Build the documentation site into site/; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir site

bench: $(VENV)/.stamp-dev ## Run all benchmarks, each of which prints a table
	@set -e; for file in benchmarks/[a-z]*.py; do \
		name=$$(basename "$$file" .py); echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; \
	done

simulate: $(VENV)/.stamp-dev ## Simulate the protocol with random faults: 20,000 seeds of 5,000 steps (hours of CPU time)
	@$(BIN)/python -m tests.simulation.release $(SIMULATION_ARGS)

soak: $(VENV)/.stamp-dev ## Play two years of each shape of deployment under a virtual clock (a quarter of an hour)
	@$(BIN)/python -m tests.simulation.soak $(SOAK_ARGS)

chaos: $(VENV)/.stamp-dev ## Kill 100 processes and freeze 100 at random; every record must be left once
	@sh scripts/test_tools.sh
	@$(BIN)/python -m tests.chaos

chaos-network: $(VENV)/.stamp-dev ## Cut hosts off from each other 100 times; every record must be left once
	@sh scripts/test_tools.sh
	@$(BIN)/python -m tests.network

install: $(VENV)/.stamp-run ## Install what the demo and the command line need, into .venv

install-dev: $(VENV)/.stamp-dev ## Install what tests and checks need as well

$(VENV)/.stamp-run: pyproject.toml constraints.txt
	@sh scripts/install.sh $(VENV) run

$(VENV)/.stamp-dev: pyproject.toml constraints.txt
	@sh scripts/install.sh $(VENV) dev

constraints: ## Write constraints.txt anew from the newest versions that pyproject.toml allows
	@sh scripts/constraints.sh

clean: ## Remove caches and the demo's folder; the virtual environment stays
	@rm -rf .pytest_cache .ruff_cache .hypothesis build dist site
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
	@if [ -e "$(HOME_DIR)/demo.json" ]; then rm -rf "$(HOME_DIR)"; fi

# The one front door. Needs python3 (3.11 or newer), make and git; everything else is set up in .venv on first use.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --quiet --disable-pip-version-check
PYTEST := $(PY) -m pytest
ARGS   ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo check test wheel oldest crash crash-report mutants bench bench-peers lint docs requirements clean FORCE

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	    printf '  make %-13s %s\n' "$$name" "$$text"; done

demo: $(VENV)/runtime.stamp  ## Kill an agent half-way and watch its run recover
	@$(VENV)/bin/runjournal demo $(ARGS)

check: $(VENV)/dev.stamp  ## Run the sample of the tests that finds most faults, in about two minutes
	@EXAMPLES=25 $(PYTEST) -n 2 --dist loadgroup -m "not crash" $(CHECK) $(ARGS)

test: $(VENV)/dev.stamp  ## Run the tests on two workers (ARGS="-k name" to choose)
	@$(PYTEST) -n 2 --dist loadgroup -m "not crash" --requirements-to=build/requirements-test.json $(ARGS)

wheel: $(VENV)/dev.stamp  ## Build the wheel and try it in an environment of its own, out of reach of the sources
	@$(PYTEST) tests/test_packaging.py $(ARGS)

oldest: build/oldest.txt  ## The sample on the oldest dependencies that pyproject.toml allows, in .venv-oldest
	@$(MAKE) --no-print-directory VENV=.venv-oldest CONSTRAINTS=$< check

crash: $(VENV)/dev.stamp  ## Run all but the mutants, with the long crash suite (up to an hour)
	@HYPOTHESIS_PROFILE=crash $(PYTEST) -n 2 --dist loadgroup --timeout 3600 -m "not mutants" \
	    --requirements-to=build/requirements-crash.json $(ARGS)

crash-report: $(VENV)/dev.stamp  ## Kills, failing disks, power cuts, tampering; writes docs/crash-report.json
	@cd tests && ../$(PY) -m layers --report ../docs/crash-report.json $(ARGS)

mutants: $(VENV)/dev.stamp  ## Replace each rule of the engine once; the tests must turn red
	@$(PYTEST) -n 2 --dist worksteal --timeout 3600 -m "" tests/test_mutants.py $(ARGS)

bench: $(VENV)/dev.stamp  ## Measure, and print a table
	@$(PY) benchmarks/run.py $(ARGS)

bench-peers: .venv-peers/peers.stamp  ## The same agent in other systems, installed in .venv-peers; writes a page and a chart
	@$(MAKE) --no-print-directory VENV=.venv-peers .venv-peers/runtime.stamp
	@.venv-peers/bin/python benchmarks/peers/run.py $(ARGS)

lint: $(VENV)/dev.stamp  ## ruff, mypy and pyright
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy -p runjournal
	@$(PY) -m mypy --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls tests
	@$(PY) -m pyright

docs: $(VENV)/dev.stamp  ## Check the documents: every snippet runs, every command is described
	@$(PY) docs/generate.py
	@$(PYTEST) tests/test_docs.py $(ARGS)

requirements: $(VENV)/dev.stamp  ## List the requirements that no test of the last run proves
	@test -f build/requirements-test.json || $(MAKE) --no-print-directory test
	@$(PY) tests/requirements_plugin.py docs/requirements.md build/requirements-*.json

# What `make check` runs: the rules of the engine, of the stores, of the log and of the command line, each once.
CHECK := $(patsubst %,tests/test_%.py,architecture ci codec folds frozen stores journal checkpoints recovery effects \
    engine_rules engine_stories async_driver cli cli_safe)
CHECK += tests/test_docs.py::test_generated_pages_are_up_to_date tests/test_docs.py::test_links_resolve

clean:  ## Remove what was built, but not the environment
	@rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@test ! -d build || find build -mindepth 1 -maxdepth 1 ! -name '__editable__*' -exec rm -rf {} +
	@find journal projections cli tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ----------------------------------------------------------------------------------------------------------
# A strict editable install is a tree of links, one a file: it must be made anew when a file comes or goes (or when this
# folder moves, or somebody has removed build/), not when one changes. sources.list holds what the tree was made from
# and gets a new time only when that differs.

INSTALL = $(PIP) install --config-settings editable_mode=strict $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

build/oldest.txt: pyproject.toml tests/oldest.py | $(PY)
	@mkdir -p build
	@$(PY) tests/oldest.py > $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "runjournal needs Python 3.11 or newer; $(PYTHON) is missing or older." >&2; \
	    echo "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) ..." >&2
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/sources.list: FORCE | $(PY)
	@ls -d build/__editable__*/runjournal >/dev/null 2>&1 || rm -f $@
	@{ pwd; find journal projections cli -type f ! -path '*/__pycache__/*' | LC_ALL=C sort; } > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(VENV)/runtime.stamp: pyproject.toml $(VENV)/sources.list
	@echo "Installing runjournal ..." >&2
	@$(INSTALL) -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/sources.list
	@echo "Installing runjournal and its development tools ..." >&2
	@$(INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/runtime.stamp

.venv-peers/peers.stamp: benchmarks/peers/requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory VENV=.venv-peers .venv-peers/runtime.stamp
	@echo "Installing the other systems in .venv-peers ..." >&2
	@.venv-peers/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

FORCE:

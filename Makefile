# setup once, then: make check while working, make test before sharing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: setup demo test check lint docs accuracy gaps bench clean page-tools page-check site serve

setup: $(READY)

# torch first and alone: what is installed after it must find this version, not bring another.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[trace,runtime,web,dev]'
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

	@if test -d page/node_modules/typescript; then $(MAKE) --no-print-directory page-check; \
	else echo "page: types and lint left out; make page-tools installs what they need"; fi

# The page's own checks: types by JSDoc, and lint.
page-check:
	page/node_modules/.bin/tsc -p page
	page/node_modules/.bin/eslint -c page/eslint.config.js src/vramcast/web/page src/vramcast/report

# The fast loop: under a minute.
check: lint
	$(PYTEST) -m "not slow"

# Everything, as CI runs it.
test: page-tools lint
	$(PYTEST)
	@test -z "$$(page/missing.sh)" || echo "LEFT OUT: the page in a browser; missing: $$(page/missing.sh)"

# What the page's tests need: npm packages, and Chromium where this machine's packages can be installed. Never fails:
# `make test` says what is missing.
page-tools:
	@page/tools.sh

# The page as a folder for any static host: make site SITE=build/site
SITE ?= build/site
site: $(READY)
	test -d page/node_modules/pyodide || (cd page && npm ci --silent)
	$(BIN)/python page/site.py $(SITE)

# The same page with the engine on this machine.
serve: $(READY)
	$(BIN)/vramcast serve

demo: $(READY)
	$(BIN)/vramcast params phi-3-mini
	$(BIN)/vramcast estimate phi-3-mini --batch 2 --seq 256 --precision bf16-mixed --gpu a100-80gb
	$(BIN)/vramcast gpus h100

# Rewrite docs/commands.md and the outputs shown in README.md and docs/.
docs: $(READY)
	$(BIN)/python docs/generate.py

# Measured rows against the formula engine (docs/accuracy.md, its plot, the ranges that predictions carry) and, where a
# script exists, against the virtual GPU (docs/accuracy-traces.md; some minutes, libraries of the time into build/).
accuracy: $(READY)
	$(BIN)/vramcast accuracy --write
	$(BIN)/vramcast accuracy --traces build/environments --write

# Random jobs through formula and trace under several transformers, sorted by mechanism: make gaps SEED=7 JOBS=40.
# ONLY=3 shows one job, VERSIONS=4.57.6,installed takes fewer, REUSE=1 keeps traces, WRITE=1 writes docs/gaps.md.
gaps: $(READY)
	$(BIN)/python benchmarks/gaps/run.py $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(VERSIONS),--versions $(VERSIONS)) $(if $(REUSE),--reuse) \
		$(if $(WORKERS),--workers $(WORKERS)) $(if $(JSON),--json) $(if $(WRITE),--write)

bench: $(READY)
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

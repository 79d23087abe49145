# Everything starts here: `make demo` and `make test` need nothing but Python 3.11+ and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# More threads than free cores make OpenMP spin: one per process, two processes.
ONE_THREAD := OMP_NUM_THREADS=1
WORKERS ?= 2
DIST ?= dist

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-nightly torture bench picture docs lock dist sums check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned versions (skipped when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + ": try make PYTHON=python3.12")'
	@echo "Setting up $(VENV): the first time this downloads PyTorch and takes a few minutes ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,deploy,privacy,ray,mlflow,wandb]'
	@touch $@

demo: $(STAMP) ## Train FedAvg, FedSpray and FedSpray 2 on PubMed (or on `banks` if PubMed cannot be downloaded)
	@$(ONE_THREAD) $(BIN)/fedspray demo

test: $(STAMP) ## Run the fast tests
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not nightly"

test-slow: $(STAMP) ## Run the slow tests; federations of real processes one at a time
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(WORKERS) -m "slow and not nightly" --ignore=tests/integration
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -m "slow and not nightly" tests/integration

test-nightly: $(STAMP) ## Run the tests that take minutes: federations whose processes are killed
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -m nightly

torture: $(STAMP) ## Feed 10,000 malformed inputs to every reader and flag: ten minutes
	@$(ONE_THREAD) $(BIN)/python tests/torture.py --count 10000

bench: $(STAMP) ## Measure what a round costs, for a few hours (`fedspray bench --quick`: a minute)
	@$(ONE_THREAD) $(BIN)/fedspray bench --threads 1 --reference benchmarks/reference.py --out results/benchmarks

picture: $(STAMP) ## Draw docs/pictures/helped.svg, and write results/helped.csv, from the finished cells in results/cells
	@$(BIN)/python -m reproduction.helped

docs: $(STAMP) ## Write the tables of docs/cli.md and docs/privacy.md, then the documentation as a site, into site/
	@$(BIN)/python -m fedspray.cli.document docs/cli.md docs/privacy.md
	@$(BIN)/python docs/site.py

lock: $(STAMP) ## Write requirements-site.txt: a site's packages with their hashes, as pip finds them here
	@$(BIN)/python release/lock.py

dist: $(STAMP) ## Build what a release hands out into dist/: wheel, source, a site's requirements, SBOM, checksums
	@rm -rf $(DIST) build
	@$(BIN)/python -m build --no-isolation --outdir $(DIST)
	@cp requirements-site.txt $(DIST)
	@$(PYTHON) -m venv build/site
	@build/site/bin/python -m pip install -q --no-deps --require-hashes -r requirements-site.txt
	@build/site/bin/python -m pip install -q --no-deps $(DIST)/*.whl
	@build/site/bin/fedspray --version
	@build/site/bin/python -m pip uninstall -q -y pip
	@$(BIN)/cyclonedx-py environment build/site --pyproject pyproject.toml --output-reproducible -o $(DIST)/sbom.cdx.json
	@$(MAKE) --no-print-directory sums

sums: ## Write checksums of dist/, signed with the Ed25519 key that SIGNING_KEY=FILE.pem names
	@cd $(DIST) && rm -f SHA256SUMS SHA256SUMS.sig && sha256sum * > ../SHA256SUMS.new && mv ../SHA256SUMS.new SHA256SUMS
	@if [ -n "$(SIGNING_KEY)" ]; then \
		openssl pkeyutl -sign -rawin -inkey $(SIGNING_KEY) -in $(DIST)/SHA256SUMS -out $(DIST)/SHA256SUMS.sig; \
	else echo "not signed: no key is given (make dist SIGNING_KEY=FILE.pem)"; fi

check: $(STAMP) ## Lint, format check, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean: ## Remove the environment and every cache
	@rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

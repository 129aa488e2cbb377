# Everything here needs python3 >= 3.11 and make. The tests also need the programs that requirements/brokers.sh names, and
# make verify Debian's Postgres 15: as root, apt-get installs what is missing; without root, install them before.
# The environment is built once into .venv from hashed pins and reused until they change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
MOVING := $(VENV)/moving/.ready
DOCS   := $(VENV)/.docs
WORKERS ?= 4
# The tests start hundreds of Python processes: without compiled modules, each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE
# What is run as a whole at full length; of all others only what is marked as long.
AT_LENGTH := tests/faults tests/postgres/jobs tests/worker/jobs

.DEFAULT_GOAL := help
.PHONY: help demo test verify verify-18 test-15 test-16 test-cron check bench faults soak screenshots format lock snapshot clean brokers dist release-check docs docs-serve

help:
	@echo "make demo      a small shop on an embedded Postgres, live, with its dashboard"
	@echo "make test      the tests of every part, in parallel, on an embedded Postgres 18"
	@echo "make verify    make test, then all other tests on Postgres 18, 15 and 16 and with pg_cron (Debian's Postgres 15)"
	@echo "make test-15   of make verify, what runs on Debian's Postgres 15 (package postgresql-15); make test-16 likewise"
	@echo "make test-cron of make verify, what needs pg_cron (packages postgresql-15, postgresql-15-cron)"
	@echo "make check     lint, types, layers, known vulnerabilities"
	@echo "make bench     measure the cursor and publish (ratios and counters); with PEERS=1 beside other systems,"
	@echo "               with BEFORE=<commit> beside another commit"
	@echo "make faults    the long torture runs; with SOAK=10m a soak of ten minutes among them"
	@echo "make soak      the soak alone, drawn to docs/soak.png (SOAK=10m)"
	@echo "make screenshots  pictures of the dashboard, into docs/images"
	@echo "make docs      the documentation as a site, into build/site; make docs-serve shows it while you write"
	@echo "make format    rewrite the code in the project's format"
	@echo "make snapshot  rewrite the schema snapshot after a deliberate change"
	@echo "make dist      build the wheel, the source distribution and their bill of materials into dist"
	@echo "make release-check  the release checklist: what is done, what is open"
	@echo "make lock      refresh the pinned requirements (needs uv)"
	@echo "make clean     remove the environment and the embedded Postgres of this project"

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Outrider needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=/path/to/python3.11."; exit 1; }
	@echo "==> setting up $(VENV) (once; later runs reuse it)"
	@PYTHON="$(PYTHON)" sh requirements/setup.sh $(VENV)
	@touch $@

$(MOVING): $(READY) requirements/moving.txt
	@echo "==> setting up $(VENV)/moving: Celery, procrastinate and PgQueuer, for the tests of docs/moving-from-*.md"
	@PYTHON="$(PYTHON)" sh requirements/setup.sh $(VENV)/moving moving.txt
	@touch $@

demo: $(READY)
	@echo "==> demo: a small shop on an embedded Postgres"
	@$(BIN)/outrider demo

# The tests start their own; this only sees to it that the programs are there.
brokers: $(READY)
	@sh requirements/brokers.sh

PYTEST = OUTRIDER_EMBEDDED_VERSION=$(1) $(BIN)/python -m pytest
PARALLEL = -n $(WORKERS) --dist loadgroup

test: brokers
	@echo "==> make test: $(WORKERS) in parallel, one embedded Postgres 18, a database per test"
	@$(call PYTEST,18) --tier test $(PARALLEL) $(ONLY) $(ARGS)

# Each test once: those of make test, the rest on Postgres 18, then what depends on the version. The tests with pg_cron mostly
# wait for the next minute, so they run beside the others.
verify: test
	@sh requirements/postgres-15.sh
	@$(MAKE) -s verify-18
	@$(MAKE) -s test-cron >.cron.log 2>&1 & waiting=$$!; \
		$(MAKE) -s test-15 || { kill $$waiting; exit 1; }; \
		wait $$waiting || { cat .cron.log; exit 1; }; tail -n 1 .cron.log
	@$(MAKE) -s test-16

verify-18: brokers $(MOVING) $(DOCS)
	@echo "==> make verify on Postgres 18: what make test leaves out"
	@$(call PYTEST,18) --tier verify $(PARALLEL) $(ONLY) $(ARGS)
	@echo "==> tests that need the machine for themselves"
	@$(call PYTEST,18) --tier verify -p no:xdist -m alone tests/faults $(ARGS)

test-15 test-16: test-%: brokers
	@echo "==> make verify on Postgres $*: what depends on its version"
	@$(call PYTEST,$*) --tier versions $(PARALLEL) $(ONLY) $(ARGS)

# pg_cron runs a job on the full minute: this waits for one of them.
test-cron: $(READY)
	@echo "==> make verify with pg_cron, on Postgres 15"
	@$(call PYTEST,15) --tier cron -p no:xdist -p no:cacheprovider tests/rollup/test_cron.py $(ARGS)

check: $(READY)
	@echo "==> lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> types"
	@$(BIN)/mypy
	@echo "==> layers"
	@$(BIN)/lint-imports
	@echo "==> advisories"
	@$(BIN)/python requirements/audit.py

bench: $(READY)
	@$(BIN)/python -m benchmarks $(if $(BEFORE),before $(BEFORE),$(if $(PEERS),peers)) $(ARGS)

# In parallel, as make test; those that measure time in the long run come last, one by one.
faults: brokers
	@echo "==> faults: long torture runs, $(WORKERS) in parallel"
	@$(BIN)/python -m pytest $(PARALLEL) $(AT_LENGTH) --long --junitxml=.faults/parallel.xml $(ARGS)
	@$(BIN)/python -m pytest $(PARALLEL) tests $(AT_LENGTH:%=--ignore %) --long -m long --junitxml=.faults/others.xml $(ARGS)
	@echo "==> faults: tests that need the machine for themselves"
	@OUTRIDER_SOAK=$(SOAK) $(BIN)/python -m pytest -p no:xdist $(AT_LENGTH) --long -m "alone or timed" \
		--junitxml=.faults/alone.xml $(ARGS)

soak: $(READY)
	@echo "==> soak: publishers, workers and retention for $(or $(SOAK),10m), drawn to docs/soak.png"
	@OUTRIDER_SOAK=$(or $(SOAK),10m) OUTRIDER_SOAK_PLOT=docs/soak.png OUTRIDER_EMBEDDED_VERSION=18 \
		$(BIN)/python -m pytest -p no:xdist tests/faults/test_soak.py --long -s $(ARGS)

screenshots: brokers
	@echo "==> screenshots: the dashboard of the demo's shop, two minutes, into docs/images"
	@OUTRIDER_EMBEDDED_VERSION=18 $(BIN)/python requirements/screenshots.py

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

snapshot: $(READY)
	@OUTRIDER_UPDATE_SNAPSHOT=1 OUTRIDER_EMBEDDED_VERSION=18 $(BIN)/python -m pytest -q tests/postgres/test_schema.py

MKDOCS = NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs

$(DOCS): $(READY) requirements/docs.txt
	@echo "    installing what the documentation needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

docs: $(DOCS)
	@echo "==> docs: the site, into build/site"
	@$(MKDOCS) build --strict

docs-serve: $(DOCS)
	@$(MKDOCS) serve

lock:
	uv pip compile pyproject.toml --group dev --extra embedded --extra otel --extra sqlalchemy --extra asyncpg --extra django --extra redis --extra nats --extra metrics --extra dashboard \
		--universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --upgrade -q -o requirements/dev.txt
	uv pip compile pyproject.toml --group docs -c requirements/dev.txt --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --upgrade -q -o requirements/docs.txt
	uv pip compile pyproject.toml --group moving --extra binary --extra asyncpg --extra django --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --upgrade -q -o requirements/moving.txt

# The same commit gives the same files: the time in them is that of the commit, which the files of a source distribution have.
dist: $(READY)
	@rm -rf dist
	@export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || stat -c %Y PKG-INFO)}; \
		$(BIN)/python -m hatchling build -d dist && \
		$(BIN)/python requirements/sbom.py >dist/outrider-$$($(BIN)/python -m hatchling version).cdx.json
	@sha256sum dist/*

release-check: dist
	@$(BIN)/python requirements/release.py

clean:
	@if [ -f .outrider/pg/location ]; then rm -rf "$$(cat .outrider/pg/location)"; fi
	rm -rf $(VENV) dist .cron.log .faults .outrider .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

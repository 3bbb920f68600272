# Everything one does here, from a fresh clone on. `make` alone lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

export LOCKSTEP_CACHE ?= $(HOME)/.cache/lockstep
export UV_CACHE_DIR ?= $(LOCKSTEP_CACHE)/uv
# pyspark's scripts look for the interpreter on PATH, so the environment's bin comes first.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# What .venv holds is compiled once, whatever the shell says: otherwise each of a run's many processes compiles it again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.lockstep
UV_VERSION = $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
# What only a release uses is fetched by `make dist`.
TWINE_VERSION := 7.0.0
CYCLONEDX_VERSION := 7.5.0
DIST ?= $(CURDIR)/dist
PYTEST_ARGS ?=
# The files of tests side by side, each process with servers of its own, the long ones first. Two processes more than
# there are processors, as each waits now and then; more than four of them want more memory than they save time.
PYTEST_SPREAD ?= -n $(shell n=$$(($$(nproc) + 2)); echo $$((n < 4 ? n : 4))) --dist loadfile --no-loadscope-reorder
BENCH_ARGS ?=
MUTANTS_ARGS ?=
FUZZ_ARGS ?=
LINTED := $(wildcard lockstep cdc_core spark_jobs plugins dags expectations examples benchmarks tests)

SPELLED := $(LINTED) docs docker .ci README.md CONTRIBUTING.md CHANGELOG.md Makefile pyproject.toml

help: ## list these targets
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r name what; do printf '  %-12s %s\n' "$$name" "$$what"; done

setup: $(STAMPS)/warm ## make .venv from requirements.lock (no-op when nothing changed)
	@:

$(STAMPS)/python:
	@examples/sandbox/check_tools.sh $(PYTHON)
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements.lock $(STAMPS)/python
	@echo "installing the packages of requirements.lock into $(VENV)" >&2
	@[ -x $(VENV)/bin/uv ] || $(PY) -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@$(VENV)/bin/uv pip sync --quiet --python $(PY) requirements.lock
	@touch $@

# Installing the project itself comes after each sync, which removes what the lock does not name.
$(STAMPS)/project: pyproject.toml $(STAMPS)/packages
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --no-deps -e .
	@touch $@

# Compiled kernels are kept on disk, so that no run waits for them.
$(STAMPS)/warm: $(STAMPS)/project $(wildcard cdc_core/binlog/*.py cdc_core/results/*.py)
	@$(PY) -m cdc_core.binlog.warm_kernels
	@$(PY) -m cdc_core.results.warm_reader
	@touch $@

servers: setup ## fetch MariaDB, PostgreSQL and the S3 server for demo, tests and benchmarks
	@$(PY) -m examples.sandbox fetch

mysql: setup ## set up a MySQL 9 beside the system (Debian, root; else put a mysqld on PATH)
	@$(PY) -m examples.sandbox.setup_mysql

mariadb: setup ## set up the newest MariaDB beside the system (Debian, root)
	@$(PY) -m examples.sandbox.setup_mariadb

browser: setup ## set up a headless Chromium beside the system (Debian, root; else put a chromium on PATH)
	@$(PY) -m examples.sandbox.setup_browser

demo: setup ## a shop's changes from MariaDB to Parquet and to shards, shown on the terminal
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.shop.demo

move: setup ## a shop moves to shards and back while it writes, shown on the terminal
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.move.demo

ui: setup ## Airflow with Lockstep's pipelines and pages on this machine
	@$(PY) -m examples.sandbox fetch mariadb postgres
	@$(PY) -m examples.shop.ui

# What the tests need beside `servers`, where this machine allows it.
trees: setup
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m examples.sandbox.setup_mariadb --if-possible
	@$(PY) -m examples.sandbox.setup_browser --if-possible

# Most of the rules: what takes longer without a server is marked `slow`.
quick: setup ## the tests that need no server, in two minutes
	@$(PY) -m pytest -n $(shell n=$$(nproc); echo $$((n < 4 ? n : 4))) --dist loadfile -m "not slow and not matrix" \
	  tests/unit tests/contract $(PYTEST_ARGS)

test-of: servers ## the tests that import a module (FILE=cdc_core/ring/ring.py)
	@module="$$(sed 's/\.py$$//; s/\/__init__$$//; s/\//./g' <<< "$(FILE)")"; \
	  files="$$(grep -rlE "(from|import) $$module( |$$)|from $${module%.*} import .*\b$${module##*.}\b" tests --include='test_*.py')"; \
	  $(PY) -m pytest $$files $(PYTEST_ARGS)

# pytest's closing line is the last output: nothing may be printed after it.
test: setup ## the tests, on real servers (PYTEST_ARGS=... for a part)
	@$(MAKE) --no-print-directory --jobs 2 servers trees
	@$(PY) -m pytest $(PYTEST_SPREAD) $(PYTEST_ARGS)

test-all: ## test, and what is marked `matrix`: every crash, and what only repeats a case elsewhere
	@$(MAKE) test PYTEST_ARGS='-m "matrix or not matrix" $(PYTEST_ARGS)'

crash-matrix: servers ## kill -9 at every durable step, then the same commands again; prints how each case ended
	@$(PY) -m pytest tests/crash tests/dags/test_scheduler.py -m "matrix or crash_sample" -v $(PYTEST_ARGS)

move-matrix: servers ## moves, DDL over shards, and kills during a cutover at every step and at random moments (LOCKSTEP_CUTOVERS=20 of these for each pair of servers)
	@$(PY) -m pytest tests/acceptance/test_cutover*.py tests/integration/test_cutover_tables.py tests/acceptance/test_ddl.py \
	  tests/acceptance/test_reshard.py tests/acceptance/test_move_document.py -m "matrix or move_sample" -v $(PYTEST_ARGS)

fuzz: servers ## random tables and histories through everything: source = state = target, as verify says (FUZZ_ARGS="--seconds 7200 --seed a")
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m tests.fuzz $(FUZZ_ARGS)

mutants: setup ## change the core's code at random places: the tests must notice (MUTANTS_ARGS="ring --sample 20")
	@$(PY) -m tests.mutation $(MUTANTS_ARGS)

bench: setup ## how fast the extractor is, beside others, on a real server (BENCH_ARGS=--quick for a short one)
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.extract $(BENCH_ARGS)

bench-line: setup ## how fast a run gets staged changes into a target, step by step (BENCH_ARGS=--quick as above)
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.line $(BENCH_ARGS)

bench-verify: setup ## how long a verification takes, beside pt-table-checksum and reladiff where they are (BENCH_ARGS="--rows 300000")
	@$(PY) -m benchmarks.verify $(BENCH_ARGS)

bench-copy: setup ## how fast a table's existing rows become files, beside others that copy it (BENCH_ARGS=--quick as above)
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.copy $(BENCH_ARGS)

bench-fill: setup ## how fast a table's existing rows fill four shards, beside myloader and LOAD DATA (BENCH_ARGS=--quick as above)
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.fill $(BENCH_ARGS)

bench-lake: setup ## how fast changes reach Iceberg tables, beside others that write them (BENCH_ARGS="--rows 1000000 --changes 100000")
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m benchmarks.lake $(BENCH_ARGS)

bench-start: setup ## a start on 5 M rows in 20 tables while an application writes, until the target is equal (BENCH_ARGS="--rows 1000000")
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.start $(BENCH_ARGS)

bench-chain: setup ## plans, status and verification over a chain of 10,000 batches: time and memory (BENCH_ARGS="--batches 1440")
	@$(PY) -m benchmarks.chain $(BENCH_ARGS)

bench-scale: setup ## what thousands of tables cost a day: a real run, with its requests and bytes counted (BENCH_ARGS="--tables 300")
	@$(PY) -m benchmarks.scale $(BENCH_ARGS)

bench-cutover: setup ## for how long an application cannot write while it is switched to shards (BENCH_ARGS="--tables 4")
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.cutover $(BENCH_ARGS)

bench-scheduler: setup ## how long a run of 1,000 changes takes under Airflow's scheduler, task by task (BENCH_ARGS="--runs 3")
	@$(PY) -m examples.sandbox fetch mariadb postgres
	@$(PY) -m benchmarks.scheduler $(BENCH_ARGS)

bench-apply: setup ## how fast changes get into a target, beside ways that guard nothing (BENCH_ARGS=--quick as above)
	@$(PY) -m examples.sandbox fetch mariadb
	@$(PY) -m examples.sandbox.setup_mysql --if-possible
	@$(PY) -m benchmarks.apply $(BENCH_ARGS)

lint: setup ## ruff: rules and format; codespell
	@$(VENV)/bin/ruff check $(LINTED)
	@$(VENV)/bin/ruff format --check $(LINTED)
	@$(VENV)/bin/codespell $(SPELLED)

format: setup ## let ruff fix what it can
	@$(VENV)/bin/ruff check --fix $(LINTED)
	@$(VENV)/bin/ruff format $(LINTED)

types: setup ## mypy, strict, on all but the tests
	@$(VENV)/bin/mypy

check-all: ## lint, types and test, as CI does
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) test

docs: setup ## a site of docs/ in dist/site; a link that leads nowhere is an error
	@uv tool run --quiet --from sphinx --with-requirements docs/requirements.txt \
	  sphinx-build -q -n -W --keep-going docs $(DIST)/site
	@echo "$(DIST)/site/index.html"

dist: setup ## wheel, source archive and the list of what they were tested with (SBOM) in dist/, checked; images, where Docker runs
	@rm -rf $(DIST)
	@uv build --quiet --out-dir $(DIST)
	@uv tool run --quiet --from twine==$(TWINE_VERSION) twine check --strict $(DIST)/*.tar.gz $(DIST)/*.whl
	@uv pip compile --quiet --no-header --no-annotate --generate-hashes --all-extras -c requirements.lock pyproject.toml | \
	  uv tool run --quiet --from cyclonedx-bom==$(CYCLONEDX_VERSION) cyclonedx-py requirements --pyproject pyproject.toml \
	    --mc-type library --output-reproducible -o "$(DIST)/$$(basename $(DIST)/*.tar.gz .tar.gz).cdx.json" -
	@ls -l $(DIST)
	@if docker info > /dev/null 2>&1; then for image in extractor airflow; do \
	    docker build --quiet -f docker/Dockerfile --target $$image \
	      -t "lockstep-$$image:$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" . || exit 1; \
	  done; else echo "no images: no Docker daemon answers"; fi

lock: setup ## resolve requirements.lock again from pyproject.toml
	@$(VENV)/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --group dev --extra all \
	  pyproject.toml -o requirements.lock

clean: ## remove what was built here (the cache of downloads stays)
	@rm -rf $(VENV) .lockstep build dist spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup servers trees mysql mariadb browser demo move ui quick test-of test test-all crash-matrix move-matrix fuzz mutants bench bench-apply bench-chain bench-copy bench-cutover bench-fill bench-lake bench-line bench-scale bench-scheduler bench-start bench-verify lint \
  format types \
  check-all docs dist lock clean

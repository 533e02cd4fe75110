# Every target prepares what it needs: uv, the environment in .venv and, where Spark runs, Java.
# Pass arguments on with ARGS, as in: make test ARGS="-k embedded"

ARGS ?=

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo:  ## Run the demonstration: a NATS server and Spark, from nothing
	@began=$$(date +%s) && scripts/setup demo java && .venv/bin/spark-nats demo $(ARGS) && \
	echo "  all is well: make demo took $$(($$(date +%s) - began)) s, with all that it installed"

# Tests start hundreds of Python processes, each of which would else compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# Sets of texts have the same order each time, as all else does that a run of the tests could differ in.
PYTEST = PYTHONHASHSEED=0 .venv/bin/pytest -n 4 --dist loadgroup --no-loadscope-reorder

test:  ## Run the tests but the long ones, in about six minutes on two cores
	@scripts/setup dev java
	$(PYTEST) --without-long $(ARGS)

test-all:  ## Run all tests, the long ones too; ARGS="-m long" for these alone
	@scripts/setup dev java
	$(PYTEST) $(ARGS)

coverage:  ## Run the same tests, which must reach 95% of protocol and of client
	@scripts/setup dev java
	$(PYTEST) --without-long --cov --cov-report= $(ARGS)
	.venv/bin/coverage report --include='spark_nats/protocol/*' --fail-under=95
	.venv/bin/coverage report --include='spark_nats/client/*' --fail-under=95

smoke:  ## Run the most important tests with the oldest and with the newest PySpark; ARGS="4.1.0" for another
	@scripts/setup dev java
	@scripts/smoke $(ARGS)

matrix:  ## Run the tests on each server, PySpark, PyArrow, NumPy and Python; ARGS="server-2.10", "--quick server", "--list"
	@scripts/setup dev java
	@.venv/bin/python -m scripts.matrix $(ARGS)

explore:  ## Look for what the tests do not show, by chance, for five minutes; ARGS="--minutes 30"
	@scripts/setup dev java
	.venv/bin/python -m tests.explore $(ARGS)

check:  ## Check format, style and types
	@scripts/setup dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format:  ## Format the code and repair what can be repaired
	@scripts/setup dev
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

pyfiles:  ## Build dist/spark_nats.zip, for spark-submit --py-files
	@scripts/setup demo
	@scripts/pyfiles

dist:  ## Build the wheel and the source distribution into dist, and check them
	@scripts/setup demo
	@scripts/dist

docs:  ## Build the documentation into build/site
	@scripts/setup docs
	@.venv/bin/python -m scripts.options_page
	@.venv/bin/python -m scripts.conditions_page
	@.venv/bin/python -m scripts.promises_page
	@.venv/bin/python -m scripts.matrix_page
	@.venv/bin/python -m scripts.pictures
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

notebooks:  ## Execute the notebooks and store what they show; ARGS="04_service" for one
	@scripts/setup dev java
	.venv/bin/python -m tests.notebooks $(ARGS)

bench:  ## Run the benchmarks
	@scripts/setup dev java
	.venv/bin/python -m benchmarks $(ARGS)

fuzz:  ## Search for bytes that break the decoder and its kin; ARGS="--seconds 600"
	@scripts/setup fuzz
	.venv/bin/python -m tests.fuzz $(ARGS)

chaos:  ## Hit a streaming query with faults; ARGS="--seed 7 --faults 20", --list lists them
	@scripts/setup dev java
	.venv/bin/python -m tests.chaos $(ARGS)

findings:  ## Run the scripts in findings/, two at a time: which see something else now? ARGS="nest queue" for some
	@scripts/findings $(ARGS)

simulate:  ## Play 500 simulated histories; ARGS="--seeds 20000 --jobs 2", "--seed 4711", "--mutants"
	@scripts/setup dev
	.venv/bin/python -m tests.simulation $(ARGS)

clean:  ## Remove what tools and tests left behind; .venv and .tools stay
	rm -rf dist build artifacts spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +

.PHONY: help demo test test-all coverage smoke matrix explore check format pyfiles dist docs notebooks bench fuzz chaos findings simulate clean

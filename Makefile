# The two commands of a newcomer are `make demo` and `make test`; each sets everything up by itself.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check format fuzz fuzz-client fuzz-servers power-cuts simulate simulate-spark world coverage test-cluster soak lake-kills lake-day bench bench-cores docs test-pythons release try-image clean
BIN := .venv/bin
SEED ?= 1
STEPS ?= 20000
HISTORIES ?= 1000
SEEDS ?= 100
SECONDS ?= 60
KILLS ?= 20
CUTS ?= 200
FILE_SYSTEM ?= ext4

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## make the environment in .venv (and install Java when there is none)
	@tools/setup.sh

demo: setup ## run the whole system once: server, workers, Spark pipelines, and a table that proves the counts (ARGS=--keep, ARGS=--cluster)
	@PYTHONPATH=examples $(BIN)/python -m demo $(ARGS)

check: setup ## lint, format, types (strict), import layers and known vulnerabilities
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo --no-cache >.import-linter.log 2>&1 || { cat .import-linter.log; exit 1; }
	@sh tools/audit.sh
	@echo "check: ok"

test: ## set up, check, and run every test
	@tools/setup.sh --browser
	@$(MAKE) --no-print-directory check
	@tools/run_tests.sh

fuzz: setup ## throw garbage at every input from outside, a minute a target (SECONDS=60)
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/pip install --quiet "atheris>=3" \
		|| echo "fuzz: atheris can't be installed here; going on without the guidance of coverage"
	@$(BIN)/python -m tests.fuzz.run_fuzz --seconds $(SECONDS)

fuzz-client: setup ## drive both clients at random against a model, on both servers (SECONDS=60 SEED=1)
	@$(BIN)/python -m tests.fuzz.run_client --seconds $(SECONDS) --seed $(SEED)

fuzz-servers: setup ## ask the embedded server and nats-server the same at random, and compare every answer (SECONDS=60 SEED=1)
	@$(BIN)/python -m tests.fuzz.run_servers --seconds $(SECONDS) --seed $(SEED)

power-cuts: setup ## cut the power below the server's file system, anywhere in what it wrote; as root (CUTS=200 SEED=1 FILE_SYSTEM=ext4)
	@$(BIN)/python -m tests.power_cuts.run_power_cuts --cuts $(CUTS) --seed $(SEED) --file-system $(FILE_SYSTEM)

simulate: setup ## run random histories of the whole engine (SEED=1 STEPS=20000)
	@$(BIN)/python -m tests.simulation.run_simulation --seed $(SEED) --steps $(STEPS)

simulate-spark: setup ## run random histories of the Spark source and sink (SEED=1 HISTORIES=1000)
	@$(BIN)/python -m tests.spark.model.run_spark --seed $(SEED) --histories $(HISTORIES)

world: setup ## run whole worlds from seeds: servers, clients, network, disks and faults (SEEDS=100 SEED=1, or SECONDS=600; LOG=FILE to continue later)
	@$(BIN)/python -m tests.world.run_world --seed $(SEED) $(if $(filter command line,$(origin LOG)),--log $(LOG)) $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS),--seeds $(SEEDS))

coverage: setup ## measure the branches of store, engine and client under the tests without sockets and some worlds (SEEDS=10)
	@$(BIN)/python -c "import coverage" 2>/dev/null || $(BIN)/pip install --quiet "coverage>=7.6"
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q tests/unit tests/store tests/simulation
	@$(BIN)/python -m tests.world.run_world --seed $(SEED) --seeds $(if $(filter command line,$(origin SEEDS)),$(SEEDS),10) --coverage
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --sort=miss

test-cluster: setup ## kill, freeze and cut off the servers of a nats-server cluster under load (KILLS=20, under 15 min)
	@CLUSTER_KILLS=$(KILLS) tools/test_cluster.sh

soak: SECONDS = 600
soak: setup ## ten minutes of mixed load with crashes, looking for leaks (SECONDS=600)
	@$(BIN)/python -m tests.faults.soak --seconds $(SECONDS)

lake-kills: KILLS = 50
lake-kills: FORMAT = iceberg
lake-kills: setup ## kill an archive again and again, and count every message (KILLS=50 SEED=1 FORMAT=iceberg)
	@$(BIN)/python tests/faults/lake_kills.py --kills $(KILLS) --seed $(SEED) --format $(FORMAT)

lake-day: setup ## commit a day of ten-second batches to an Iceberg table, and tell what its files become
	@$(BIN)/python tests/faults/lake_day.py

format: setup ## put the sources into the one format
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

bench: setup ## run every benchmark in its quick form, under 25 minutes, and log to build/bench.log (ONLY="publish deliver")
	@$(BIN)/python tools/run_benchmarks.py $(ONLY)

bench-cores: setup ## measure publishing and delivery with the servers on one core and on all (ARGS="--load 8")
	@$(BIN)/python benchmarks/cores.py $(ARGS)

test-pythons: setup ## build wheel and sdist and try them with every Python from 3.11 to 3.15 that is here
	@tools/test_pythons.sh

release: setup ## build wheel and sdist into build/release, the same bytes twice, and use every extra as installed
	@$(BIN)/python tools/release.py

docs: setup ## build the site with search into build/site
	@$(BIN)/python -c "import material" 2>/dev/null || $(BIN)/pip install --quiet -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "docs: build/site/index.html, and as plain text build/site/llms.txt and llms-full.txt"

pages: setup ## run each page's programs in an environment of its own install line alone (PAGES=docs/start.md)
	@$(BIN)/python -m tests.docs.run_pages $(PAGES)

try-image: setup ## run the Dockerfile's instructions, and the image, without a container engine; as root on Linux
	@$(BIN)/python tools/try_image.py

clean: ## remove what was built, keeping .venv
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log .import-linter.log

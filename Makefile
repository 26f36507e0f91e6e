# What a developer runs; `make help` lists it. Every target first sets up all it needs in .venv:
# nothing but make and a Python from 3.11 on has to be there, and nothing outside this folder is touched.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo up docs page screenshots test system test-busy lowest chaos lint bench-overhead bench-celery bench-turns bench-stop bench-pools bench-preload bench-page bench-agents bench-queue bench-memory bench-discover bench-gangs bench-sensors bench-checkpoint bench-loader bench-data bench-resume bench-batch-size bench-compile bench-store bench-slices bench-clusters bench-decide bench-schedule dist install lock clean moved

VENV := .venv
UI := ui
RUN := $(VENV)/bin/python
HOME_OF_TESTS := $(CURDIR)/.airflow/home

# The caller's settings must not reach into the environment that is made here. PYTHONDONTWRITEBYTECODE
# alone makes Airflow start four times slower.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONWARNINGS VIRTUAL_ENV
unexport PIP_PREFIX PIP_TARGET PIP_USER PIP_NO_COMPILE PIP_CONSTRAINT PIP_REQUIREMENT HETERO_AIRFLOW_LEASE
unexport $(filter AIRFLOW%,$(.VARIABLES))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24
	@echo
	@echo '  PYTHON=/path/to/python make …   choose the Python that .venv is made with'
	@echo '  On Linux, torch comes with CUDA; PIP_EXTRA_INDEX_URL=… make … with the address of'
	@echo '  PyTorch'"'"'s index of CPU builds takes the small one.'

# What needs only a part of the packages installs only these, unless all are there.
DEMO := $(VENV)/$(if $(wildcard $(VENV)/.installed),.installed,.installed-demo)
DOCS := $(VENV)/$(if $(wildcard $(VENV)/.installed),.installed,.installed-docs)

demo: $(DEMO)  ## boot Airflow, retrain a model on the best device here, say why it ran where
	@$(RUN) tools/demo.py

up: $(DEMO)  ## leave an Airflow with the example DAGs running until Ctrl-C
	@$(RUN) tools/up.py

docs: $(DOCS)  ## write docs/reference, build the documentation into build/docs, and check its links
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' COLUMNS=100 $(RUN) tools/docs_site.py
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo 'Open build/docs/index.html'

# The built page is committed, so that users need no node. A test builds it again and compares.
page: $(VENV)/.installed  ## build the page in Airflow's UI from its TypeScript
	@mkdir -p $(UI)/build
	@cd $(UI) && { [ node_modules -nt package-lock.json ] || { npm ci --no-audit --no-fund --loglevel=error && touch node_modules; }; }
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' $(RUN) tools/page_schema.py $(UI)/build/openapi.json
	@cd $(UI) && npm run --silent types > build/types.log && npm run --silent check && npm run --silent build

screenshots: $(VENV)/.installed  ## write each view of the page into build/screenshots: light and dark, wide and narrow
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/web/screenshots.py build/screenshots

PYTEST = AIRFLOW_HOME='$(HOME_OF_TESTS)' HETERO_AIRFLOW_SIMULATED_DEVICES= $(RUN) -m pytest -n auto
# Tests that need an accelerator run where the kernel shows one.
HERE := not bench and not chaos$(if $(wildcard /dev/nvidia0 /dev/kfd /dev/davinci0),, and not gpu)

test: $(VENV)/.installed  ## lint, all tests that compute in their short form, and the main paths in one real Airflow
	@$(PYTEST) -m '(main or not system) and $(HERE)'

system: $(VENV)/.installed  ## the tests that boot Airflows, browsers and workers, and the long forms; MINUTES=45 begins no group later
	@LONG_TESTS=yes $(PYTEST) $(if $(MINUTES),--minutes=$(MINUTES)) -m '(long or system and not main) and $(HERE)'

test-busy: $(VENV)/.installed  ## `make test` with a busy process on each core
	@$(RUN) tools/busy.py $(MAKE) --no-print-directory test

# As on the day of Airflow 3.3.2, but for two providers. The tools of the tests stay as they are pinned.
NEWER := $(foreach name,cncf-kubernetes edge3,--exclude-newer-package apache-airflow-providers-$(name)=2026-10-25T00:00:00Z)
AS_OF := --exclude-newer 2026-09-17T08:38:00Z $(NEWER)
EXTRAS := $(addprefix --extra ,celery edge kubernetes postgres report s3)

lowest: $(VENV)/.installed  ## `make test` with the oldest versions that pyproject.toml allows, installed into build/lowest
	@$(MAKE) --silent VENV=build/lowest install
	@$(RUN) -m uv pip compile pyproject.toml $(EXTRAS) --resolution lowest-direct $(AS_OF) --python build/lowest/bin/python \
	  --no-annotate --no-header --quiet -o build/lowest.txt
	@$(RUN) -m uv pip install -qq --python build/lowest/bin/python --no-deps --requirement build/lowest.txt
	@$(MAKE) --silent VENV=build/lowest test

chaos: $(VENV)/.installed  ## break a running Airflow; SEEDS="0 1 2" ENGINE=local|celery|edge BACKEND=postgres|sqlite SCHEDULERS=3 FAULTS="task sequence" TABLE=file REPLAY=file|seed
	@CHAOS_SEEDS='$(SEEDS)' CHAOS_ENGINE='$(ENGINE)' CHAOS_BACKEND='$(BACKEND)' CHAOS_FAULTS='$(FAULTS)' CHAOS_TABLE='$(abspath $(TABLE))' \
	  CHAOS_SCHEDULERS='$(SCHEDULERS)' CHAOS_STEPS='$(STEPS)' CHAOS_REPLAY='$(REPLAY)' \
	  AIRFLOW_HOME='$(HOME_OF_TESTS)' HETERO_AIRFLOW_SIMULATED_DEVICES= $(RUN) -m pytest -s tests/chaos

lint: $(VENV)/.installed  ## ruff, mypy, basedpyright, and the layers of the house (import-linter)
	@echo '== ruff check'
	@$(RUN) -m ruff check .
	@echo '== ruff format --check'
	@$(RUN) -m ruff format --check .
	@echo '== mypy'
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' $(RUN) -m mypy
	@echo '== basedpyright'
	@$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python
	@echo '== import-linter'
	@$(VENV)/bin/lint-imports

bench-overhead: $(VENV)/.installed  ## measure what a device task costs more than a plain one
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools $(RUN) tests/benchmarks/bench_overhead.py

bench-turns: $(VENV)/.installed  ## measure how long a device is idle between two short tasks while others wait
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_turns.py

bench-stop: $(VENV)/.installed  ## stop a scheduler with running tasks; ROUNDS=20 signals in turns, and what each cost
	@STOP_ROUNDS='$(or $(ROUNDS),20)' AIRFLOW_HOME='$(HOME_OF_TESTS)' HETERO_AIRFLOW_SIMULATED_DEVICES= $(RUN) -m pytest -s -m system tests/system/test_stopping.py

bench-pools: $(VENV)/.installed  ## measure 60 jobs under Airflow's pools with GPUs picked by hand, and under leases
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_pools.py

bench-preload: $(VENV)/.installed  ## measure eight small torch tasks with and without preload, in turns
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_preload.py

bench-page: $(VENV)/.installed  ## measure what the page's routes cost: 1,000 workers with 8 devices, 10,000 waiting
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' $(RUN) tests/benchmarks/bench_page.py

bench-celery: $(VENV)/.installed  ## measure the same over Celery, Redis and PostgreSQL
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_celery.py

bench-agents: $(VENV)/.installed  ## measure what a thousand agents cost an API server; AGENTS=1000 SECONDS=60
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_agents.py $(AGENTS) $(SECONDS)

bench-queue: $(VENV)/.installed  ## measure a scheduler while 2,000 device tasks wait; DATABASE=sqlite WAITING=2000
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_queue.py $(DATABASE) $(WAITING)

bench-memory: $(VENV)/.installed  ## measure what HeteroExecutor adds to the scheduler's memory
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools $(RUN) tests/benchmarks/bench_memory.py

bench-discover: $(VENV)/.installed  ## measure a probe of 8 GPUs, in this checkout and in a commit; COMMIT=HEAD~
	@$(RUN) tests/benchmarks/bench_discover.py $(or $(COMMIT),HEAD~)

bench-slices: $(VENV)/.installed  ## measure what a cluster costs whose 1,000 nodes publish their GPUs as ResourceSlices
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_slices.py

bench-clusters: $(VENV)/.installed  ## measure two schedulers while one of two clusters is away; KUBEBUILDER_ASSETS=folder SECONDS=300
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_clusters.py $(SECONDS)

bench-gangs: $(VENV)/.installed  ## measure what a gang of two workers takes to its first collective, beside torchrun
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools:. $(RUN) tests/benchmarks/bench_gangs.py

bench-sensors: $(VENV)/.installed  ## measure what a thousand waiting CheckpointSensors cost a triggerer and a store
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tools $(RUN) tests/benchmarks/bench_sensors.py

bench-checkpoint: $(VENV)/.installed  ## measure what an asynchronous save costs the steps of a training
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_checkpoint.py

bench-loader: $(VENV)/.installed  ## measure how much of the loading is hidden behind the steps
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_loader.py

bench-data: $(VENV)/.installed  ## measure what the cache of objects saves, and how busy it keeps an accelerator
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_data.py

bench-resume: $(VENV)/.installed  ## measure what a task reads, and for how long, until it goes on from its checkpoint
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_resume.py

bench-batch-size: $(VENV)/.installed  ## measure the size of a batch that is found, and whether later steps fit
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_batch_size.py

bench-compile: $(VENV)/.installed  ## measure what compiling a model costs and saves on a CPU
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_compile.py

bench-store: $(VENV)/.installed  ## measure leases a second in memory, SQLite and PostgreSQL, and of three that race
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tests $(RUN) tests/benchmarks/bench_store.py
	@AIRFLOW_HOME='$(HOME_OF_TESTS)' PYTHONPATH=tests $(RUN) tests/benchmarks/bench_store_race.py

bench-decide: $(VENV)/.installed  ## measure decisions a second, whole cycles, and memory, from 10 to 10,000 workers
	@PYTHONPATH= $(RUN) tests/benchmarks/bench_decide.py

bench-schedule: $(VENV)/.installed  ## measure every policy on the public traces (HETERO_AIRFLOW_TRACES); SECTIONS="jct openb"
	@PYTHONPATH=tests/benchmarks:tests/simulator:. $(RUN) tests/benchmarks/bench_schedule.py $(SECTIONS)

# setuptools gives the files of a source archive the time of the build: it is packed again, with the time of the commit.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: $(VENV)/.installed  ## build the source archive and the wheel into dist/: the same commit gives the same bytes
	@rm -rf dist build/dist && mkdir -p build/dist
	@$(RUN) -m build --no-isolation --outdir dist . > build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@tar -xzf dist/*.tar.gz -C build/dist
	@tar -C build/dist --sort=name --mtime=@$(SOURCE_DATE_EPOCH) --owner=0 --group=0 --numeric-owner --mode=go=rX,u+w \
	  --format=gnu -cf - $$(ls build/dist) | gzip -n9 > "$$(echo dist/*.tar.gz)"
	@sha256sum dist/*

install: $(VENV)/.installed  ## set up .venv and nothing else

# pip installs torch, whose build its settings choose, and uv the rest, in seconds. uv does not read pip's settings:
# where it reaches no package index, pip goes on. Neither compiles: Python does that to what it imports.
FIRST := $(shell sed -n 's/^\(setuptools\|torch\|uv\)==.*/\1/p' requirements.lock)
define install
	@$(if $(2),$(RUN) -m pip install -qq --no-compile --constraint requirements.lock $(2))
	@$(RUN) -m uv pip install -qq --python $(RUN) $(1) || \
	  { echo '== Going on with pip, which takes minutes'; $(RUN) -m pip install -qq --no-compile $(1); }
endef

$(VENV)/.installed: $(VENV)/bin/python requirements.lock pyproject.toml
	@echo '== Installing the versions of requirements.lock into $(VENV) (the first time takes a minute)'
	$(call install,--no-deps --requirement requirements.lock,$(FIRST))
	@echo '== Installing hetero-airflow itself, editable'
	$(call install,--no-deps --no-build-isolation --editable .)
	@printf '%s\n' '$(CURDIR)' > $@

$(VENV)/.installed-%: $(VENV)/bin/python requirements.lock pyproject.toml
	@echo '== Installing hetero-airflow with its extra $*, in the versions of requirements.lock (the first time takes a minute)'
	$(call install,--constraint requirements.lock --no-build-isolation --editable '.[$*]',$(filter-out $(if $(filter docs,$*),torch),$(FIRST)))
	@printf '%s\n' '$(CURDIR)' > $@

$(VENV)/bin/python:
	@for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  found=$$python; \
	  $$python -c 'import ensurepip, venv' >/dev/null 2>&1 || continue; \
	  echo "== Making $(VENV) with $$($$python --version)"; \
	  rm -rf $(VENV) && exec $$python -m venv $(VENV); \
	done; \
	if [ -n "$$found" ]; then \
	  echo "Asked for a Python that can make virtual environments; $$found lacks the modules venv or ensurepip." \
	    "On Debian and Ubuntu: apt install python3-venv." >&2; \
	else \
	  echo "Asked for Python 3.11 or newer; found none as $(or $(PYTHON),python3.11 python3.12 python3.13 python3)." \
	    "Install one, or give its path: PYTHON=/path/to/python make …" >&2; \
	fi; exit 1

# A virtual environment does not survive a move: it is made anew where its stamps name another folder. All rules get the
# phony target, since the new .venv/bin/python is a link to a file that is as old as before.
STAMPS := $(wildcard $(VENV)/.installed $(VENV)/.installed-*)
ifneq ($(STAMPS),)
ifneq ($(shell sort -u $(STAMPS)),$(CURDIR))
$(VENV)/bin/python $(STAMPS): moved
endif
endif

# One resolution for all Pythons, systems and extras. The CUDA libraries are left out: torch pins its own exactly,
# so that pip takes them with torch's CUDA build and leaves them with its CPU build.
lock:  ## write requirements.lock anew, pins kept where they still fit; UPGRADE=1 takes the newest
	@$(MAKE) --silent $(VENV)/bin/python
	@echo '== Resolving'
	@$(RUN) -m venv build/lock && build/lock/bin/python -m pip install -qq uv
	@$(if $(UPGRADE),rm -f build/pins,cp requirements.lock build/pins)
	@printf 'setuptools>=80\ntorch==2.13.0\nuv>=0.9\n' | build/lock/bin/uv pip compile pyproject.toml - --all-extras --universal \
	  --python-version 3.11 --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet -o build/pins
	@{ echo '# Every package, pinned. Written by `make lock`; do not edit.'; \
	  sed -e '/^nvidia-ml-py=/b' -e '/^cuda-/d' -e '/^nvidia-/d' -e '/^triton=/d' build/pins; } > build/requirements.lock
	@mv build/requirements.lock requirements.lock
	@echo "== requirements.lock pins $$(grep -c == requirements.lock) packages"

clean:  ## remove what the other targets made: .venv, .airflow, caches
	rm -rf $(VENV) .airflow build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

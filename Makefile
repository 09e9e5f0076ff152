# Every target sets up its own virtual environment on first use; only Python 3.11+, git and make
# are needed beforehand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
READY  := $(VENV)/.ready
PIP    := -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2
# Each worker takes a run of neighbouring tests, which share what they compute, and at the end part of
# what others have left.
SHARED := -n $(WORKERS) --dist worksteal

# Byte code is kept: without it, each process that a test starts compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
SECONDS ?= 3600
.PHONY: help setup develop demo man sbom test test-slow check fuzz mutants lock audit as-user record golden size golden-record docs docs-rerun gallery bench clean

help:
	@echo "make setup      what cluster-sim needs to run, and the machine code of the demo"
	@echo "make develop    the tools of tests, docs, sweeps with dask and the explorer as well"
	@echo "make demo       set up, then simulate one Llama-3.1-405B iteration on 1,024 Trn2 chips"
	@echo "make test       set up, then run the tests"
	@echo "make test-slow  the long tests as well"
	@echo "make check      lint, types, import contracts, tests, doctests, notebooks"
	@echo "make fuzz       mutate inputs and options for an hour, or SECONDS=600; what fails is saved in out/fuzz"
	@echo "make mutants    break 200 places of core rooms one by one; the tests beside must notice 85 %"
	@echo "make lock       pin the newest releases of all dependencies with their digests (needs the network)"
	@echo "make audit      look the pinned releases up in a database of vulnerabilities (needs the network)"
	@echo "make man        manual pages of all commands in out/man, which a wheel built after them installs"
	@echo "make sbom       a wheel in out/dist, and beside it the list of all releases that it runs with"
	@echo "make as-user    compare the errors that a user of train gets with the recorded ones"
	@echo "make record     predict all validation tables once and record what comes of it (a quarter of an hour)"
	@echo "make golden     compare the recorded answers of all commands"
	@echo "make size       lines of source in each room beside its budget"
	@echo "make docs       the documentation as a site in out/docs; warnings are errors"
	@echo "make docs-rerun run the code of the documents and draw their pictures again; say what moved"
	@echo "make gallery    draw every experiment into docs/figures/gallery and write docs/gallery.md"
	@echo "make bench      speed, as ratios measured in one run"

# Byte code of libraries is compiled at first use: most modules of most libraries are never loaded.
$(RUNS): setup.cfg pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cluster-sim needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --no-compile --require-hashes -r requirements.txt
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m tools.precompile demo || true
	@touch $(RUNS)

$(READY): $(RUNS) constraints.txt
	$(BIN)/python $(PIP) --no-compile --require-hashes -r constraints.txt
	$(BIN)/python -m tools.precompile || true
	@touch $(READY)

setup: $(RUNS)

develop: $(READY)

demo: $(RUNS)
	$(BIN)/cluster-sim train --model llama-3.1-405b --cluster trn2-ultraserver:16 --tp 32 --pp 2 \
		--vpp 1 --zero 1 --recompute selective --global-batch 256 --seq 8192 --overlap all \
		--microbatch 1 --sequence-parallel --framework neuronx --out out/demo

test: $(READY)
	$(BIN)/python -m pytest $(SHARED) -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest $(SHARED)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(SHARED) -m "not slow"

fuzz: $(READY)
	$(BIN)/python -m tests.laws --seconds $$(( $(SECONDS) / 4 )); broken=$$?; \
		$(BIN)/python -m tests.fuzz --seconds $$(( $(SECONDS) * 3 / 4 )) && exit $$broken

mutants: $(READY)
	$(BIN)/python -m tests.mutants

# Both need the network: the first asks the package index for the files of every release, the second
# a database of known vulnerabilities, of which there is no copy to carry along.
LOCK := out/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-annotate --no-emit-options
lock:
	$(PYTHON) -m venv out/lock
	out/lock/bin/python -m pip install --quiet pip-tools
	$(LOCK) --upgrade --extra=dev --extra=dask --extra=docs --extra=explore --extra=editable \
		--output-file=constraints.txt setup.cfg
	$(LOCK) --extra=editable --constraint=constraints.txt --output-file=requirements.txt setup.cfg

audit:
	@$(PYTHON) -m venv out/audit
	@out/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit 2>/dev/null || \
		{ echo "make audit: pip-audit cannot be fetched without a network, so nothing was looked up" >&2; exit 1; }
	out/audit/bin/pip-audit --strict --disable-pip --require-hashes -r constraints.txt || \
		{ echo "make audit: some releases are vulnerable, or could not be looked up; see above" >&2; exit 1; }

man: $(RUNS)
	$(BIN)/python -m tools.man_pages

# A CycloneDX list of names, releases and digests, read from the pins, so that it needs no network.
sbom: $(READY)
	rm -rf out/dist
	$(BIN)/python -m tools.man_pages
	$(BIN)/python -m build --wheel --no-isolation --outdir out/dist
	$(BIN)/python tools/sbom.py requirements.txt out/dist

as-user: $(READY)
	$(BIN)/python -m tools.as_user

record: $(READY)
	$(BIN)/python -m tools.record

size: $(READY)
	$(BIN)/python -m tests.size

golden: $(READY)
	$(BIN)/python -m tests.golden.record

golden-record: $(READY)
	$(BIN)/python -m tests.golden.record --write

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-rerun: $(READY)
	$(BIN)/python -m tests.docs.rerun; moved=$$?; \
		$(BIN)/python -m tests.docs.pictures && exit $$moved

gallery: $(READY)
	$(BIN)/python -m tools.gallery

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) out build *.egg-info

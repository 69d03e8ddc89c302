# From a fresh clone, with Python 3.11 or newer:
#   make demo     install, train on generated data, translate unseen input, draw the attention
#   make test     install, run the tests but the slow ones (MARKED= runs all)
#   make check    install, check lint, format, types and spelling (CI runs this and the tests)
#   make format   install, format the code and fix what lint can fix
#   make clean    remove the environment and everything that was built
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
DEMO_ARGS ?=
MARKED ?= not slow
PYTEST_ARGS ?=
PIP_ARGS ?=

BIN := $(VENV)/bin

.PHONY: demo test check format clean
.DEFAULT_GOAL := demo
.NOTPARALLEL:
# An installation that stops halfway must not look finished to the next make.
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(BIN)/vanilla-transformer demo $(DEMO_ARGS)

# One thread a worker: two workers with two threads each take longer than two with one. Each has whole files of tests until
# the other has nothing left, so that what a file's tests share is made once.
test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKED)" $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $$(git ls-files)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' here: install Python 3.11 or newer, or say which one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "'$(PYTHON)' is $$($(PYTHON) --version): this project needs Python 3.11 or newer; say which one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras (demo < test < dev), made again only when what is to be installed has changed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): this takes some minutes the first time."
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[$*]'
	@touch $@

# The stamps are kept although only a pattern rule makes them.
.PRECIOUS: $(VENV)/.installed-%

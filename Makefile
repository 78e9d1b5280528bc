# One word per task. `make` alone prints this list. Works with GNU make 3.81 and newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := server,demo,otel,dev
TORCH := 2.13.0
PYTORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check
PACKAGES := lorry lorry_kernels lorry_admin lorry_migrations
# Bytecode is kept whatever the shell says: the tests start a hundred processes, each of which would compile all again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest
PROTO_OUT ?= $(CURDIR)/platform
# Test processes at once: one has all whole platforms. 0 is one in the foreground, for a debugger.
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv model demo serve fmt lint types contracts test soak mutants bench kernels-report gpu-check proto docs migrate ci clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(STAMP) ## make .venv with everything for development (the CPU build of torch where there is no NVIDIA GPU)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@if [ "$$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then \
	  echo "torch $(TORCH), CPU build"; \
	  $(PIP) install -q -c constraints.txt "torch==$(TORCH)+cpu" 2>$(VENV)/torch.log || \
	  $(PIP) install -q -c constraints.txt "torch==$(TORCH)+cpu" --extra-index-url $(PYTORCH_CPU_INDEX) || \
	  { cat $(VENV)/torch.log; exit 1; }; \
	else \
	  echo "torch $(TORCH)"; \
	  $(PIP) install -q -c constraints.txt "torch==$(TORCH)"; \
	fi
	@echo "lorry[$(EXTRAS)]; downloads take a few minutes the first time"
	@{ $(PIP) install -c constraints.txt -e ".[$(EXTRAS)]" 2>$(VENV)/pip.log || touch $(VENV)/.failed; } | \
	  awk '/^Collecting/ { printf "\r  %d packages ", ++n; fflush() } /^Installing collected/ { printf "installing" } END { print "" }'
	@if [ -e $(VENV)/.failed ]; then rm $(VENV)/.failed; cat $(VENV)/pip.log; exit 1; fi
	@touch $@

model: venv ## prepare the demo's base model under LORRY_HOME (once, about 93 MB to download)
	@$(BIN)/python -m lorry.cli.model

demo: venv ## the main job on a real model: many tenants, many adapters, one base
	@$(BIN)/lorry demo $(ARGS)

serve: venv ## run the platform here and keep it running
	@$(BIN)/lorry serve $(ARGS)

fmt: venv ## format and sort imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: venv ## ruff, formatting, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: venv ## mypy, strict
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	MYPYPATH=examples:benchmarks:docs $(BIN)/mypy examples benchmarks docs tests

contracts: venv ## the one way down of imports
	$(BIN)/lint-imports --no-cache

test: model ## run the tests (ARGS="tests/unit -k name" for some of them)
	$(PYTEST) -m "not soak" -n $(WORKERS) --dist loadscope --no-loadscope-reorder --durations=10 $(ARGS)

soak: model ## run the full size of the tests that have a small one
	$(PYTEST) -m soak --durations=0 $(ARGS)

mutants: venv ## take named guards out of copies of the sources and expect red tests
	$(BIN)/python -m tests.mutants $(ARGS)

bench: model ## tokens/s, TTFT and inter-token latency beside transformers + peft
	@$(BIN)/python benchmarks/bench_serving.py $(ARGS)

kernels-report: venv ## compile every kernel for sm_80, sm_90 and gfx942 and judge the code (no GPU; minutes)
	@$(BIN)/python -m lorry_kernels.aot $(ARGS)

gpu-check: ## prove and measure kernels and engine on the GPU that is here (torch and Triton will do; eight minutes)
	@$(PYTHON) benchmarks/gpu_check.py $(ARGS)

proto: venv ## regenerate the protobuf modules
	@cd proto && PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I. --python_out="$(PROTO_OUT)" \
	  --grpc_python_out="$(PROTO_OUT)" --mypy_out=quiet:"$(PROTO_OUT)" --mypy_grpc_out=quiet:"$(PROTO_OUT)" \
	  $$(find lorry -name '*.proto' | sort)

docs: venv ## regenerate what the documentation takes from code
	@$(BIN)/python docs/generate.py

migrate: venv ## bring the registry's database to the newest schema
	@$(BIN)/lorry migrate $(ARGS)

ci: ## what CI runs, in its order
	@.ci/run

clean: ## remove caches and build output, not .venv and not LORRY_HOME
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find platform kernels admin migrations tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

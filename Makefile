# Every target makes .venv itself when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU_PYTHON ?= $(BIN)/python
INSTALLED := $(VENV)/installed
TBB := "tbb; sys_platform == 'linux' and platform_machine == 'x86_64'"
TESTS := tests/house tests/unit tests/contract
# what stays in one process, in several at a time; whole clusters want all cores
PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: serve demo check test test-gpu soak chaos machines fmt protos bench clean

serve: $(INSTALLED)  ## a cluster with the bundled model on this machine, until Ctrl-C
	$(BIN)/pdserve up $(ARGS)

demo: $(INSTALLED)  ## one question through a cluster of its own, with every stage's time
	$(BIN)/python -m deploy.demo.ask

check: $(INSTALLED)  ## linters, types, layers, and the fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) $(TESTS)

test: check  ## check, then whole clusters: in one process, and of real processes
	$(PYTEST) tests/kernels tests/integration
	$(BIN)/pytest tests/e2e

# torch, triton, pytest, hypothesis and msgspec are enough: any Python that has them will do
test-gpu:  ## kernels on the GPU of this machine, at real shapes too
	$(GPU_PYTHON) -m pytest -c /dev/null --rootdir . -q tests/kernels $(ARGS)

soak: $(INSTALLED)  ## a thousand requests in five minutes, while nodes and links are hurt
	$(BIN)/python -m tests.soak $(ARGS)

chaos: $(INSTALLED)  ## three minutes in which nodes and proxy workers die, and clients come at a rate
	$(BIN)/python -m tests.chaos $(ARGS)

machines: $(INSTALLED)  ## two minutes in which cables between machines are pulled, and clients come at a rate
	$(BIN)/python -m tests.machines $(ARGS)

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(INSTALLED)  ## compile the gRPC messages anew, after a .proto file was changed
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. api/grpc/protos/*.proto

bench: $(INSTALLED)  ## requests per second and time to first token, split over two nodes
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV)

# nixl wants the CUDA 12 and 13 builds of its library; one is enough, and nothing else is needed.
# Of tbb only the allocator is used, which needs nothing.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --constraint constraints.txt --editable . --group dev
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps nixl nixl-cu12 $(TBB)
	$(BIN)/python -m engine.kernels.cpu.build
	touch $@

# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# Bytecode is kept whatever the machine says: the many processes that the tests start then need not compile again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo benchmark test portable fuzz docs lint playground screenshots
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade -c constraints.txt pip setuptools wheel
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,hf,data,cluster,docs,onnx,text,skops,lens]'
	touch $@

demo: .venv/installed
	$(BIN)/emulon run

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# The tables of results/benchmark: fifty models of either architecture in ten variants, minutes on two cores.
benchmark: .venv/installed
	$(BIN)/emulon benchmark --models 50 --json results/benchmark/methods.json
	$(BIN)/emulon benchmark --models 50 --architecture llama --json results/benchmark/methods-llama.json

# Proofs, hashes and files as other processors compute them: a minute or two.
portable: .venv/installed
	EMULON_PROCESSORS=all $(BIN)/python -m pytest -n 0 tests/processors

# Random cases with Arb as the judge: make fuzz MINUTES=30 SEED=1
# In CI the cases are a number, not a time, so that they are the same ones on every machine.
MINUTES ?= 10
SEED ?= 0
fuzz: .venv/installed
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) $(if $(ROUNDS),--rounds $(ROUNDS))

# The site, into site/: every page and figure in it, so that it reads without a network.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --quiet

lint: .venv/installed
	$(BIN)/ruff check src reproduce benchmarks tests docs examples playground
	$(BIN)/ruff format --check src reproduce benchmarks tests docs examples playground
	$(BIN)/mypy

# Needs node; what it writes is committed, so that nobody else does.
playground: .venv/installed
	cd playground && npm ci --no-audit --no-fund && npm run build
	$(BIN)/python -m playground.data playground/programs playground/learner src/emulon/playground/static

screenshots: .venv/installed
	$(BIN)/python playground/screenshots.py

# Two commands for a newcomer: `make demo` and `make test`. Everything else is a part of them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMALL := $(VENV)/.installed-demo
DEPLOY := $(VENV)/.installed-deploy
PIP = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: help install demo test test-deploy test-oldest mutants dist lint types unit bench docs clean
help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: $(STAMP)  ## make .venv with everything the tests need

# A stamp is written last, so an interrupted installation is started again. The tests' packages
# include those of the demo: after `make test`, `make demo` installs nothing.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $(SMALL) $(STAMP)

$(SMALL): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[train,plot]'
	@touch $(SMALL)

$(DEPLOY): $(STAMP)
	$(PIP) -e '.[deploy]'
	@touch $(DEPLOY)

demo: $(SMALL)   ## training, search and questions against what people use today, half a minute
	$(BIN)/accelerando demo

test: lint types unit  ## everything CI checks

lint: $(STAMP)   ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

# Three files at a time on two cores: tests of clusters and browsers wait for a third of their time.
unit: $(STAMP)   ## the test suite, three files at a time
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Installs what no other target needs. Needs root; a test installs Debian's packages that it needs
# (slurm-wlm, munge, openssh-server, iptables, faketime). What is missing is skipped with a reason.
# The files run side by side: half of the time they wait.
test-deploy: $(DEPLOY)  ## fits on real deployments: SLURM, SSH, TLS, firewalls; under ten minutes
	$(BIN)/python -m pytest -c deployments/pytest.ini -n 5 --dist loadfile deployments

# Takes hours. The options of tests/mutants.py go into MUTANTS, such as MUTANTS="--only policies/".
mutants: $(STAMP)  ## plant 300 bugs, one at a time, and count those that a test catches
	$(BIN)/python -m tests.mutants --resume $(MUTANTS)

# The oldest versions that pyproject.toml allows, in a separate environment. The names of the checks of
# scikit-learn's interface differ between its versions.
OLDEST := .venv-oldest
test-oldest:     ## a representative part of the tests with the oldest allowed versions
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check -c constraints-oldest.txt -e '.[all]' \
	  pytest pytest-timeout pytest-xdist pytest-rerunfailures hypothesis httpx schemathesis playwright
	$(OLDEST)/bin/python -m pytest -n 2 --dist loadfile -W default $$(cat tests/oldest.txt) \
	  --deselect tests/crowd/test_embedding.py::test_scikit_learns_checks_of_its_interface_hold

dist: $(STAMP)   ## build wheel and sdist, check them, install them into clean environments, try them
	$(BIN)/python packaging/dist.py

bench: $(STAMP)  ## every benchmark, short version
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script --quick || exit 1; done

docs: $(STAMP)   ## build the documentation, warnings are errors
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:           ## remove what the other targets made
	rm -rf $(VENV) $(OLDEST) dist docs/_build docs/api .mypy_cache .ruff_cache .pytest_cache .hypothesis

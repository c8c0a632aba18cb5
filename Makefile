PYTHON := .venv/bin/python
SEED := 0

.PHONY: help setup setup-test quickstart quickstart-coding quickstart-reasoning quickstart-osworld osworld-desktop docs test lint clean

help:
	@echo "make quickstart            train policy, reward model and tasks together on this machine's CPU"
	@echo "make quickstart-coding     the same for programs and their unit tests"
	@echo "make quickstart-reasoning  the same for arithmetic with a code tool"
	@echo "make quickstart-osworld    the same for an agent that sees a drawn desktop"
	@echo "make osworld-desktop       install what real desktops need, and play a task of OSWorld on one"
	@echo "make docs                  build the pages of docs/ as a site, in site/"
	@echo "make test                  set-up and the quick tests (pytest -m slow: the others)"
	@echo "make setup                 only make .venv"
	@echo "make lint                  formatter, linter and type checker"

setup:
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh test

quickstart: setup
	@$(PYTHON) scripts/quickstart.py --seed $(SEED)

quickstart-coding: setup
	@$(PYTHON) scripts/quickstart.py --domain coding --seed $(SEED)

quickstart-reasoning: setup
	@$(PYTHON) scripts/quickstart.py --domain reasoning --seed $(SEED)

quickstart-osworld: setup
	@$(PYTHON) scripts/quickstart.py --domain osworld --seed $(SEED)

osworld-desktop: setup
	@$(PYTHON) -m pip --disable-pip-version-check install -q -c constraints/cpu.txt -e ".[desktops]"
	@scripts/osworld_desktop.sh
	@$(PYTHON) -m rlanything eval config=configs/quickstart/osworld/desktop_eval.yaml policy=script

docs: setup
	@$(PYTHON) -m pip --disable-pip-version-check install -q -c constraints/cpu.txt -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "site/index.html"

test: setup-test
	@$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: setup-test
	@$(PYTHON) -m ruff format --check . && $(PYTHON) -m ruff check . && $(PYTHON) -m mypy

clean:
	rm -rf cache runs/quickstart*

# All targets run in .venv, which `setup` creates or reuses. Paths are relative: the name of the folder may have spaces.
.PHONY: help setup test lint torture audit demo docs clean

help:
	@echo "make setup   install into .venv (reused when nothing has changed)"
	@echo "make test    lint, format, types and tests"
	@echo "make lint    lint, format and types"
	@echo "make torture fault injection: kills, full disks, damaged files, attacks, load on the service; 15 minutes"
	@echo "make audit   licences of the pinned packages, and known vulnerabilities with pip-audit"
	@echo "make demo    rdlm demo"
	@echo "make docs    the documentation site, in build/site; its own environment is build/docs-venv"
	@echo "make clean   delete .venv, caches and builds; runs/ stays"

setup:
	@sh scripts/setup.sh

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

test: lint
	.venv/bin/python -m pytest -n 2

torture: setup
	OMP_NUM_THREADS=1 .venv/bin/python torture/campaign.py

audit: setup
	.venv/bin/python scripts/audit.py

demo: setup
	.venv/bin/rdlm demo

docs:
	@cmp -s docs/requirements.txt build/docs-venv/requirements.txt || { rm -rf build/docs-venv && \
		$(or $(PYTHON),python3) -m venv build/docs-venv && build/docs-venv/bin/pip install -q -r docs/requirements.txt && \
		cp docs/requirements.txt build/docs-venv/requirements.txt; }
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html; with a search field: python3 -m http.server -d build/site"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

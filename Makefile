# All targets run in .venv, which `setup` creates or reuses. Paths are relative: the name of the folder may have spaces.
.PHONY: help setup test lint torture audit demo clean

help:
	@echo "make setup   install into .venv (reused when nothing has changed)"
	@echo "make test    lint, format, types and tests"
	@echo "make lint    lint, format and types"
	@echo "make torture fault injection: kills, full disks, damaged files, attacks, load on the service; 15 minutes"
	@echo "make audit   licences of the pinned packages, and known vulnerabilities with pip-audit"
	@echo "make demo    rdlm demo"
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

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

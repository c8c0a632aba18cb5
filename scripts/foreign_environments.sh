#!/usr/bin/env bash
# Make cache/openenv and cache/verifiers: interpreters with the packages of other projects, which their tests and examples
# start as processes of their own. Their dependencies differ from those of a training (0.5 GB and 0.3 GB).
set -euo pipefail
cd "$(dirname "$0")/.."
for package in openenv:openenv-core==0.3.0 "verifiers:verifiers[ta]==0.4.0"; do
  folder=cache/${package%%:*}
  if [ ! -f "$folder/.complete" ]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" --disable-pip-version-check install -q "${package#*:}"
    touch "$folder/.complete"
  fi
done

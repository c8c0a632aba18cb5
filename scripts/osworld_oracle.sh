#!/usr/bin/env bash
# Install OSWorld's own evaluators in an environment of their own: desktop-env without the old pins that it asks for.
# usage: scripts/osworld_oracle.sh [FOLDER]    (by default data/osworld/oracle). About two minutes, 1.5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-data/osworld/oracle}
key=$(sha256sum constraints/oracle.txt | cut -d' ' -f1)
[ "$(cat "$folder/.installed" 2> /dev/null)" = "$key" ] && { echo "oracle: ready in $folder"; exit; }
[ -x "$folder/bin/python" ] || .venv/bin/python -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check install -q"
echo "oracle: installing OSWorld's evaluators"
$pip --no-deps desktop-env==1.0.2
$pip -r constraints/oracle.txt
echo "$key" > "$folder/.installed"
echo "oracle: ready in $folder"

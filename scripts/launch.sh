#!/usr/bin/env bash
# Submit this same line to every node of a job: scripts/launch.sh alfworld_rl.py config=... [key=value ...]
# Which node is the head comes from MLP_ROLE_INDEX / MLP_WORKER_0_HOST / MLP_WORKER_0_PORT, SLURM, or torchrun's variables.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python
[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python # an activated one goes first
exec "$python" -m rlanything.cluster.launch "$@"

#!/usr/bin/env bash
# Submit this same line to every node of a job: scripts/launch.sh train|eval|SCRIPT.py config=... [key=value ...]
# Which node is the head comes from MLP_ROLE_INDEX / MLP_WORKER_0_HOST / MLP_WORKER_0_PORT, SLURM, or torchrun's variables.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python
# An activated environment goes first, but for conda's own, which many shells activate by themselves.
[ -z "${VIRTUAL_ENV:-}" ] && [ "${CONDA_DEFAULT_ENV:-base}" = base ] && [ -x .venv/bin/python ] && python=.venv/bin/python
exec "$python" -m rlanything.launch "$@"

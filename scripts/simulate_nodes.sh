#!/usr/bin/env bash
# A job of several nodes on this machine alone: scripts/simulate_nodes.sh NUMBER alfworld_rl.py config=... [key=value ...]
# Starts scripts/launch.sh as every node, as a scheduler would; PORT (7700) and the next must be free. Ends with the job's exit status.
set -euo pipefail
cd "$(dirname "$0")/.."
num=${1:?usage: scripts/simulate_nodes.sh NUMBER SCRIPT.py config=FILE.yaml [key=value ...]}
shift
export MLP_WORKER_NUM=$num MLP_WORKER_0_HOST=127.0.0.1 MLP_WORKER_0_PORT=${PORT:-7700}
for ((node = 1; node < num; node++)); do
  MLP_ROLE_INDEX=$node scripts/launch.sh "$@" &
done
status=0
MLP_ROLE_INDEX=0 scripts/launch.sh "$@" || status=$?
wait
exit $status

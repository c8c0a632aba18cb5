#!/usr/bin/env bash
# A job of several nodes on this machine alone: scripts/simulate_nodes.sh NUMBER train|eval|SCRIPT.py config=... [key=value ...]
# Starts scripts/launch.sh as every node, as a scheduler would; PORT (7700) and the next two must be free. Ends with the job's exit status.
set -uo pipefail
cd "$(dirname "$0")/.."
usage="usage: scripts/simulate_nodes.sh NUMBER train|eval|SCRIPT.py config=FILE.yaml [key=value ...]"
[[ ${1:-} =~ ^(-h|--help)$ ]] && echo "$usage" && exit 0
[[ ${1:-} =~ ^[1-9][0-9]*$ && ${2:-} =~ ^(train|eval|.*\.py)$ ]] || { echo "$usage" >&2; exit 1; }
num=$1
shift
export MLP_WORKER_NUM=$num MLP_WORKER_0_HOST=127.0.0.1 MLP_WORKER_0_PORT=${PORT:-7700}
nodes=()
trap 'kill -TERM "${nodes[0]:-$!}"' TERM # which stops the job
trap : INT                              # Ctrl-C reaches every node by itself
for ((node = 0; node < num; node++)); do
  MLP_ROLE_INDEX=$node scripts/launch.sh "$@" &
  nodes+=($!)
done
for node in "${nodes[@]:1}" "${nodes[0]}"; do
  while wait "$node"; kill -0 "$node" 2>/dev/null; do :; done # a signal ends a wait
  wait "$node"
  status=$?
done
exit $status

#!/usr/bin/env bash
# Two hosts of two ranks each on one machine: two network namespaces with a virtual cable. Runs
# `ullage train` (the words after the report's path) under torchrun on both, with a rendezvous.
# With CUT=1 the cable is cut once training runs; every rank must then end with an error.
# Usage: two_hosts.sh PYTHON ULLAGE WORK_FOLDER WORDS...
set -euo pipefail
if [[ -z ${TWO_HOSTS_INSIDE:-} ]]; then
  flags=-n
  [[ $(id -u) == 0 ]] || flags=-Urn
  exec env TWO_HOSTS_INSIDE=1 unshare "$flags" "$0" "$@"
fi
python=$1 ullage=$2 work=$3
shift 3

unshare -n sleep 600 &
far=$!
trap 'kill "$far" 2>/dev/null || true' EXIT
while [[ $(readlink "/proc/$far/ns/net") == "$(readlink /proc/$$/ns/net)" ]]; do sleep 0.05; done
ip link set lo up
ip link add near type veth peer name far netns "$far"
ip addr add 10.77.0.1/24 dev near
ip link set near up
nsenter -t "$far" -n sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev far; ip link set far up'

# host NUMBER: two ranks under torchrun.
host() {
  exec "$python" -m torch.distributed.run --nnodes 2 --node-rank "$1" --nproc-per-node 2 \
    --master-addr 10.77.0.1 --master-port 29517 --no-python "$ullage" "${words[@]}"
}
words=("$@")
export OMP_NUM_THREADS=1
(host 0) >"$work/host0.log" 2>&1 &
first=$!
nsenter -t "$far" -n "$python" -m torch.distributed.run --nnodes 2 --node-rank 1 \
  --nproc-per-node 2 --master-addr 10.77.0.1 --master-port 29517 --no-python "$ullage" \
  "${words[@]}" >"$work/host1.log" 2>&1 &
second=$!
if [[ -n ${CUT:-} ]]; then
  until grep -q '^step ' "$work/host0.log"; do
    kill -0 "$first"
    sleep 0.1
  done
  ip link set near down
fi
status=0
wait "$first" || status=$?
wait "$second" || status=$?
exit "$status"

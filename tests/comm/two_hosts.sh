#!/bin/sh
# Two hosts of two ranks on one machine: two network namespaces with a virtual cable between them.
# Usage: two_hosts.sh PATH/TO/two_hosts. Needs iproute2 and util-linux; root, or user namespaces.
# The four ranks must agree with four ranks of one host, and end when the cable is cut.
set -eu
program=$1
if [ -z "${TWO_HOSTS_INSIDE:-}" ]; then
  flags=-n
  [ "$(id -u)" = 0 ] || flags=-Urn
  exec env TWO_HOSTS_INSIDE=1 unshare $flags "$0" "$@"
fi

logs=$(mktemp -d)
unshare -n sleep 600 &
far=$!
trap 'kill $far 2>/dev/null; rm -rf "$logs"' EXIT
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link set lo up
ip link add near type veth peer name far netns $far
ip addr add 10.77.0.1/24 dev near
ip link set near up
nsenter -t $far -n sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev far; ip link set far up'

# start MODE STORE ENTER: ranks 0 and 1 here, ranks 2 and 3 behind the command ENTER.
start() {
  mode=$1 store=$2 second=$3 pids=
  for rank in 0 1 2 3; do
    enter=
    [ $rank -lt 2 ] || enter=$second
    ULLAGE_RANK=$rank ULLAGE_WORLD_SIZE=4 ULLAGE_STORE=$store OMP_NUM_THREADS=1 \
      $enter "$program" "$mode" >"$logs/$mode.$rank" 2>&1 &
    pids="$pids $!"
  done
}
finish() {
  failed=0
  for pid in $pids; do wait "$pid" || failed=1; done
  cat "$logs/$1".*
  [ $failed = 0 ] || { echo "two_hosts: a rank failed in '$1'" >&2; exit 1; }
}
hashes() { cat "$logs"/agree.* | grep '^agreed' | cut -d, -f1 | sort -u; }

start agree "file:$logs/store" ""
finish agree
one_host=$(hashes)
start agree tcp:10.77.0.1:29511 "nsenter -t $far -n"
finish agree
two_hosts=$(hashes)
[ "$one_host" = "$two_hosts" ] || { echo "two_hosts: $one_host, but $two_hosts" >&2; exit 1; }
[ "$(cat "$logs"/agree.* | grep -c '2 of 4 ranks local')" = 4 ] ||
  { echo "two_hosts: the ranks did not see two hosts" >&2; exit 1; }

start cut tcp:10.77.0.1:29512 "nsenter -t $far -n"
until grep -q running "$logs/cut.0" && grep -q running "$logs/cut.3"; do
  kill -0 "${pids##* }" || { cat "$logs"/cut.*; exit 1; }
  sleep 0.1
done
ip link set near down
began=$(date +%s)
finish cut
took=$(($(date +%s) - began))
[ $took -le 12 ] || { echo "two_hosts: ended only $took s after the cut" >&2; exit 1; }
echo "two_hosts: agreed, and ended $took s after the cut"

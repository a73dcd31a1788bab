#!/usr/bin/env bash
# Runs what needs a GPU: the kernels' tests, and steps whose parameters must have the same bits
# wherever weights and optimizer state lie. Prints one line for each.
#
#   scripts/gpu_check.sh [BIN_DIR]    (default: build/device, made by
#                                      cmake --preset device -DULLAGE_BENCHMARKS=ON)
#
# State on disk goes to $ULLAGE_DISK (default: /tmp).
# BIN_DIR may also be a folder that holds kernels_device_test and step_benchmark, carried here from
# the machine that built them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
bin=${1:-$root/build/device}
models=$root/benchmarks/engine/models
settings=$root/benchmarks/engine/settings
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

program() {
  find "$bin" -name "$1" -type f -perm -u+x | head -n 1
}

line() {
  local verdict=$1
  shift
  printf '%-6s %s\n' "$verdict" "$*"
  [[ $verdict == ok ]] || failed=1
}

# on_ranks COUNT COMMAND...: one process for each rank; what they print, and whether all succeeded.
on_ranks() {
  local count=$1 rank store processes=() status=0
  shift
  if ((count == 1)); then
    "$@"
    return
  fi
  store=$(mktemp -u)
  for ((rank = 0; rank < count; ++rank)); do
    ULLAGE_RANK=$rank ULLAGE_WORLD_SIZE=$count ULLAGE_STORE=file:$store "$@" &
    processes+=($!)
  done
  for rank in "${processes[@]}"; do
    wait "$rank" || status=1
  done
  rm -f "$store"
  return "$status"
}

# same_bits NAME MODEL ARGUMENT... -- SETTING...: one hash for all settings. SETTING@2 runs on two
# ranks.
same_bits() {
  local name=$1 model=$2 arguments=() setting output hash first=''
  shift 2
  while [[ $1 != -- ]]; do
    arguments+=("$1")
    shift
  done
  shift
  for setting in "$@"; do
    local ranks=1
    [[ $setting != *@* ]] || ranks=${setting#*@}
    sed "s|\"nvme_path\": \"/tmp\"|\"nvme_path\": \"${ULLAGE_DISK:-/tmp}\"|" \
      "$settings/${setting%@*}.json" >"$scratch/setting.json"
    if ! output=$(on_ranks "$ranks" "$step" "$models/$model.json" "$scratch/setting.json" \
      --cuda --hash "${arguments[@]}" 2>&1); then
      line FAILED "$name, $setting: $(head -n 1 <<<"$output")"
      return
    fi
    hash=$(sed -n 's/.*parameters_sha256 //p' <<<"$output")
    first=${first:-$hash}
    if [[ $hash != "$first" ]]; then
      line FAILED "$name, $setting: ${hash:0:12} where $1 gave ${first:0:12}"
      return
    fi
  done
  line ok "$name: ${first:0:12} for $*"
}

# within_budget NAME MODEL SETTING ARGUMENT...: batches of many lengths leave no holes.
within_budget() {
  local name=$1 model=$2 setting=$3 output
  shift 3
  if output=$("$step" "$models/$model.json" "$settings/$setting.json" --cuda --random "$@" 2>&1); then
    line ok "$name, $setting: $(grep '^MEMORY' <<<"$output" | tail -n 1)"
  else
    line FAILED "$name, $setting: $(grep -e '^MEMORY FAILED' -e '^step_benchmark' <<<"$output" | head -n 1)"
  fi
}

kernels=$(program kernels_device_test)
step=$(program step_benchmark)
if [[ -z $kernels || -z $step ]]; then
  echo "gpu_check: kernels_device_test or step_benchmark is not in $bin" >&2
  exit 2
fi

if output=$("$kernels" 2>&1); then
  line ok "kernels: $(grep -o '[0-9]* tests\.' <<<"$output" | tail -n 1)"
else
  line FAILED "kernels: $(grep 'FAILED' <<<"$output" | tail -n 1)"
fi
same_bits 'tiny decoder, 20 steps' llama-tiny --batch 4 --seq 128 --steps 20 --warmup 0 -- \
  resident optimizer_on_host_30 optimizer_on_host_70 optimizer_on_host parameters_on_host \
  all_on_host all_on_host_no_prefetch optimizer_on_disk_50 optimizer_on_disk \
  all_on_host_optimizer_on_disk
same_bits 'tiny decoder, four micro-steps' llama-tiny --batch 4 --seq 128 --steps 20 --warmup 0 -- \
  resident_x4 optimizer_on_host_30_x4 optimizer_on_host_x4 all_on_host_x4 \
  optimizer_on_disk_x4
same_bits 'BERT with dropout' bert-base --batch 16 --seq 128 --steps 10 --warmup 0 -- \
  resident resident_kept optimizer_on_host all_on_host optimizer_on_disk
same_bits 'BERT with dropout, recorded or not' bert-base --batch 16 --seq 128 --steps 10 --warmup 0 -- \
  stage_0_kept stage_0_kept_no_graphs
same_bits 'BERT with dropout, recorded or not, four micro-steps' bert-base --batch 16 --seq 128 \
  --steps 6 --warmup 0 -- stage_0_kept_x4 stage_0_kept_x4_no_graphs
same_bits '1B decoder, 20 steps' llama-1b --batch 8 --seq 512 --steps 20 --warmup 0 -- \
  resident resident_kept optimizer_on_host_30 optimizer_on_host all_on_host budget_12g budget_5g \
  optimizer_on_disk
# Two ranks with a micro-step each do what one does in two; they share a device where there is one.
same_bits 'tiny decoder, two ranks' llama-tiny --batch 4 --seq 128 --steps 20 --warmup 0 -- \
  resident_x2 stage_0@2 resident@2 stage_2@2 stage_3@2 stage_2_optimizer_on_host@2 \
  stage_3_optimizer_on_host_30@2 stage_3_optimizer_on_host@2 all_on_host@2
within_budget '1B decoder, 200 steps of 16 to 512 tokens' llama-1b budget_12g --batch 8 --seq 512 \
  --steps 200 --warmup 0
within_budget '1B decoder, 200 steps of 16 to 512 tokens' llama-1b budget_5g --batch 8 --seq 512 \
  --steps 200 --warmup 0
exit "$failed"

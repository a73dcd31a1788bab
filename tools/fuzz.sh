#!/usr/bin/env bash
# Builds a fuzz target of tests/fuzz with clang's libFuzzer and the address and undefined-behaviour
# sanitizers, and runs it.
#
#   tools/fuzz.sh NAME SECONDS [libFuzzer option...]
#
# NAME is deepspeed, manifest, safetensors, token_file, torch_file or zip_archive. What was found
# is in build/fuzz/NAME.found, the corpus in build/fuzz/NAME.corpus; run one input again with
# build/fuzz/NAME FILE. Not a part of the tests: clang is not among the packages of setup.sh
# (apt-get install clang).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
[[ $# -ge 2 ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
name=$1 seconds=$2
shift 2
source=$root/tests/fuzz/${name}_fuzz.cc
[[ -f $source ]] || { echo "fuzz: no target $name" >&2; exit 2; }
command -v clang++ >/dev/null || { echo 'fuzz: clang++ is missing: apt-get install clang' >&2; exit 2; }

cd "$root"
out=build/fuzz
mkdir -p "$out/$name.corpus" "$out/$name.found" "$out/objects"
flags=(-std=c++20 -O1 -gline-tables-only "-fsanitize=fuzzer-no-link,address,undefined" -fno-sanitize-recover=all
       -Isrc -Iinclude -Itests/files -DFMT_HEADER_ONLY=1)
objects=()
for file in src/base/*.cc src/files/*.cc src/checkpoint/*.cc src/kernels/{cast,cast_reference,targets}.cc; do
  object=$out/objects/$(basename "${file%.cc}").o
  objects+=("$object")
  newer=(-newer "$object" -print -quit)
  if [[ ! -f $object || -n $(find "$file" "${newer[@]}") ||
        -n $(find src/base src/files src/checkpoint src/kernels include -name '*.h' "${newer[@]}") ]]; then
    clang++ "${flags[@]}" -c "$file" -o "$object"
  fi
done
clang++ "${flags[@]}" "-fsanitize=fuzzer" "$source" "${objects[@]}" -lcrypto -lhwy -lpthread \
  -o "$out/$name"
exec "$out/$name" -max_total_time="$seconds" -rss_limit_mb=2048 -max_len=65536 \
  -artifact_prefix="$out/$name.found/" "$@" "$out/$name.corpus" "tests/fuzz/seeds/$name"

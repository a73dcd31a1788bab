#!/usr/bin/env bash
# Sets up, builds everything with warnings as errors, then runs every test and check: mechanical
# checks, the tests of each room (ctest), those of the commands as a user types them and of the
# checks themselves (pytest). The last line counts them all.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
results=$root/build/ci/results
export PATH=$root/.venv/bin:$PATH

if ! bash "$root/scripts/setup.sh" --tests --demo; then
  echo 'The set-up or the build failed.' >&2
  echo '0 passed, 1 failed'
  exit 1
fi
rm -rf "$results"
mkdir -p "$results"
cd "$root"

# Runs the command after the name; its output appears only when it fails.
check() {
  local name=$1
  shift
  if "$@" >"$results/$name.log" 2>&1; then
    echo "check $name: passed"
    touch "$results/$name.passed"
  else
    cat "$results/$name.log"
    echo "check $name: failed"
    touch "$results/$name.failed"
  fi
}

echo '== checks'
check layers python tools/check_layers.py
check style python tools/check_style.py
check shell shellcheck scripts/*.sh tools/*.sh tests/e2e/*.sh .ci/run

echo '== tests of the rooms'
# Two at once at most: many tests start several ranks of their own.
jobs=$(($(nproc) < 2 ? 1 : 2))
ctest --test-dir build/ci --output-on-failure -j "$jobs" --no-tests=error --label-exclude gpu \
  --test-output-size-passed 10000000 --output-junit "$results/ctest.xml" ||
  touch "$results/ctest.failed"

echo '== tests of the commands and of the checks'
python_tests=(tests/tools)
[[ ! -d tests/e2e ]] || python_tests+=(tests/e2e)
python -m pytest -q -p no:cacheprovider --junit-xml "$results/pytest.xml" "${python_tests[@]}" ||
  touch "$results/pytest.failed"

echo '== tests of the Python package'
PYTHONPATH=$root/build/ci/python OMP_NUM_THREADS=1 python -m pytest -q -p no:cacheprovider \
  --junit-xml "$results/python.xml" tests/python || touch "$results/python.failed"

python scripts/test_summary.py "$results"

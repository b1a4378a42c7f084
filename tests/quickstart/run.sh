#!/usr/bin/env bash
# The main job: a cluster on loopback, the checkpoint's placement, load, feed-forward block and gathers, then the check.
#
#   tests/quickstart/run.sh BIN_FOLDER CHECKPOINT
#
# Leaves no process and no file behind, however it ends.
set -euo pipefail

bin=$1
checkpoint=$2
rules=docs/examples/bert.yaml
gathered=(
  embeddings.word_embeddings.weight
  encoder.layer.0.intermediate.dense.weight
  encoder.layer.0.output.dense.bias
)

results=$(mktemp -d)
cluster=''
clean_up() {
  # The command line's own group holds all processes that it started.
  if [[ -n $cluster ]]; then kill -TERM -- "-$cluster" 2>/dev/null || true; fi
  rm -rf "$results"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

printf '\033[1m== Running the main job on a cluster of four workers, mesh fsdp=2,tp=2\033[0m\n' >&2
setsid "$bin/shardmesh" quickstart --checkpoint "$checkpoint" --rules "$rules" --out "$results" \
  "${gathered[@]/#/--gather=}" &
cluster=$!
wait "$cluster"

printf '\033[1m== Checking the results against plain loops in double, and the file\033[0m\n' >&2
comparisons=()
for name in "${gathered[@]}"; do comparisons+=(--compare "$name" "$results/$name.npy"); done
"$bin/quickstart-check" "$checkpoint" --input "$results/input.npy" --result "$results/result.npy" "${comparisons[@]}"

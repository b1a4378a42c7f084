#!/usr/bin/env bash
# The main job: a cluster on loopback, a checkpoint's placement, load, feed-forward block and gathers, then the check.
#
#   tests/quickstart/run.sh BIN_FOLDER CHECKPOINT
#
# Leaves no process and no file behind, however it ends.
set -euo pipefail

bin=$1
checkpoint=$2
rules=docs/examples/bert.yaml
layer=encoder.layer.0
gathered=(embeddings.word_embeddings.weight "$layer.intermediate.dense.weight" "$layer.output.dense.bias")
# "Hello world" and "How are you?", as the model's tokenizer has them.
sentences=("101,7592,2088,102" "101,2129,2024,2017,1029,102")

folder=$(mktemp -d)
# The cluster is recorded there, and does not meet one that the user has up.
export XDG_RUNTIME_DIR=$folder
clean_up() {
  "$bin/shardmesh" down 2>/dev/null || true
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() { printf '\033[1m[%s/7] %s\033[0m\n' "$1" "$2" >&2; }
# Shows a command of the program, shardmesh, and runs it.
run() {
  printf '\033[2m$ shardmesh %s\033[0m\n' "$*" >&2
  "$bin/shardmesh" "$@"
}

step 1 "The checkpoint: $checkpoint, $(stat -Lc %s "$checkpoint") bytes"

step 2 'A coordinator and four workers on a mesh fsdp=2,tp=2'
run up --mesh fsdp=2,tp=2 --detach
run status

step 3 'Where each tensor is to lie'
run plan "$checkpoint" --rules "$rules"

step 4 'The checkpoint onto the workers, to each its tiles alone'
run load "$checkpoint" --rules "$rules" --quiet

step 5 'The feed-forward block of layer 0 for 128 rows: column-parallel with GELU, then row-parallel'
run make-tensor --shape 128,384 --seed 7 --out "$folder/input.npy"
run linear --input "$folder/input.npy" --weight "$layer.intermediate.dense.weight" \
  --bias "$layer.intermediate.dense.bias" --activation gelu --as hidden
run linear --input hidden --weight "$layer.output.dense.weight" --bias "$layer.output.dense.bias" \
  --out "$folder/result.npy"

step 6 'The whole model: embeddings of two sentences, given as tokens, with the heads over tp'
mkdir "$folder/minilm"
ln -s "$(realpath "$checkpoint")" "$folder/minilm/model.safetensors"
cat >"$folder/minilm/config.json" <<'JSON'
{
  "model_type": "bert",
  "hidden_size": 384,
  "num_hidden_layers": 6,
  "num_attention_heads": 12,
  "intermediate_size": 1536,
  "vocab_size": 30522,
  "max_position_embeddings": 512,
  "type_vocab_size": 2,
  "layer_norm_eps": 1e-12,
  "hidden_act": "gelu"
}
JSON
run embed --model "$folder/minilm" --tokens "${sentences[0]}" --tokens "${sentences[1]}" --out "$folder/embeddings.npy"

step 7 'The results against plain loops in double, and three tensors gathered back against the file'
comparisons=()
for name in "${gathered[@]}"; do
  run get "$name" --out "$folder/$name.npy"
  comparisons+=(--compare "$name" "$folder/$name.npy")
done
"$bin/quickstart-check" "$checkpoint" --input "$folder/input.npy" --result "$folder/result.npy" \
  --embeddings "$folder/embeddings.npy" --tokens "${sentences[0]}" --tokens "${sentences[1]}" "${comparisons[@]}"
run down

printf '\033[1mSuccess: the cluster computed what the checkpoint says, and every process is stopped.\033[0m\n'

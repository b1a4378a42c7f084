#!/usr/bin/env bash
# Runs the session of README.md, word by word, as in a fresh clone: in an empty folder that has docs/ and build/release/bin.
#
#   tests/quickstart/readme.sh BIN_FOLDER
#
# Leaves no process and no file behind, however it ends.
set -euo pipefail

root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../..
bin=$(readlink -f "$1")

folder=$(mktemp -d)
# The cluster is recorded there, and does not meet one that the user has up.
export XDG_RUNTIME_DIR=$folder/run
unset SHARDMESH_ADDRESS
clean_up() {
  "$bin/shardmesh" down 2>/dev/null || true
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$folder/run" "$folder/clone/build/release"
ln -s "$bin" "$folder/clone/build/release/bin"
ln -s "$(readlink -f "$root")/docs" "$folder/clone/docs"

# The block of commands below the title: lines with a prompt, and those that a backslash carries on.
session=$(sed -n '/^## A session$/,/^## Read on$/p' "$root/README.md" | sed -n 's/^    //p' | sed 's/^\$ //')
[[ $session == *'shardmesh down'* ]] || { echo 'README.md has no session' >&2; exit 1; }
cd "$folder/clone"
bash -euo pipefail -x -c "$session" >"$folder/out" 2>&1 || { cat "$folder/out" >&2; exit 1; }
[[ -s y.npy && -s w.npy && -s plan.html ]] || { echo 'the session left no y.npy, w.npy or plan.html' >&2; exit 1; }
echo "the session of README.md: $(wc -l <<<"$session") lines, all well"

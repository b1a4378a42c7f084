#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile with buildah and runs the quickstart inside it, as Kubernetes would under Pod
# Security "restricted": a read-only root, a number for a user, no capabilities, nothing writable but /tmp. Then runs the
# pods of the overlays, as tests/kubernetes/render.sh renders them (tests/kubernetes/pods.py).
#
#   tests/image/run.sh BIN_FOLDER
#
# BIN_FOLDER has quickstart-check, which the image has not. The base is made by debootstrap, so that no registry is needed;
# SHARDMESH_BASE_IMAGE names another one. What is kept, for the next time, is below build/image (about 3 GB).
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
kept=$root/build/image
# Outside of registries' namespaces: an image that was made here cannot be taken for one that was fetched.
made_base=localhost/shardmesh-base:bookworm
tag=localhost/shardmesh:latest

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
# Layers as plain folders and a chroot for a container: that works inside containers too.
in_store() { buildah --root "$kept/store" --runroot "$kept/run" --storage-driver vfs "$@"; }

make_base() {
  in_store inspect --type image "$made_base" >/dev/null 2>&1 && return
  say 'Making a minimal Debian 12 for a base'
  rm -rf --one-file-system "$kept/base"
  mkdir -p "$kept/base"
  debootstrap --variant=minbase bookworm "$kept/base" "${SHARDMESH_FRESH_MIRROR:-http://deb.debian.org/debian}" \
    >"$kept/base.log" 2>&1 || { tail -20 "$kept/base.log" >&2; return 1; }
  printf 'deb %s bookworm-%s main\n' http://deb.debian.org/debian updates http://deb.debian.org/debian-security security \
    >"$kept/base/etc/apt/sources.list.d/updates.list"
  rm -rf "$kept"/base/var/cache/apt/archives/*.deb "$kept"/base/var/lib/apt/lists/*
  local container
  container=$(in_store from scratch)
  in_store add --quiet "$container" "$kept/base" / >/dev/null
  in_store config --cmd bash "$container"
  in_store commit --quiet --rm "$container" "$made_base" >/dev/null
  rm -rf --one-file-system "$kept/base"
}

build_image() {
  local base=${SHARDMESH_BASE_IMAGE:-$made_base} cache version
  version=$(sed -n 's/^project(shardmesh VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
  cache=$(ccache --get-config cache_dir 2>/dev/null || echo "$kept/ccache")
  mkdir -p "$cache"
  say "Building $tag from $base"
  in_store bud --isolation chroot --pull-never --quiet --volume "$cache:/ccache" \
    --build-arg CCACHE_DIR=/ccache --build-arg BASE="$base" --build-arg VERSION="$version" \
    --build-arg REVISION="$(git -C "$root" describe --always --dirty)" \
    --file "$root/deploy/Dockerfile" --tag "$tag" "$root" >"$kept/build.log" 2>&1 ||
    { tail -40 "$kept/build.log" >&2; return 1; }
}

# run_inside IMAGE_ROOT BIN_FOLDER: the quickstart, in namespaces of its own that end with it.
run_inside() {
  local machine=$kept/machine device program
  mkdir -p "$machine"
  mount --bind "$1" "$machine"
  mount -t tmpfs -o nodev,size=2g tmpfs "$machine/mnt"
  mkdir "$machine/mnt/bin"
  for program in "$machine"/usr/local/bin/*; do
    ln -s "/usr/local/bin/$(basename "$program")" "$machine/mnt/bin/"
  done
  cp "$2/quickstart-check" "$machine/mnt/bin/"
  cp -r --parents -t "$machine/mnt" tests/quickstart docs/examples
  mount -o remount,ro "$machine/mnt"
  mount -t tmpfs -o nodev,nosuid,noexec,size=4g,mode=1777 tmpfs "$machine/tmp"
  mount -t proc proc "$machine/proc"
  mount -t tmpfs -o nosuid,noexec,size=1m,mode=755 tmpfs "$machine/dev"
  for device in null zero urandom; do
    : >"$machine/dev/$device"
    mount --bind "/dev/$device" "$machine/dev/$device"
  done
  ln -s /proc/self/fd "$machine/dev/fd"
  mount -o remount,bind,ro "$machine"
  # The network is its own, with a loopback interface and nothing else.
  ip link set lo up
  # shellcheck disable=SC2016  # for the shell in there
  exec chroot "$machine" setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/nonexistent bash -ec '
      ! touch /usr/local/bin/x 2>/dev/null || { echo "the root is writable" >&2; exit 1; }
      [[ $(id -u) == 65532 && ! -e /usr/bin/g++ ]]
      cd /mnt
      shardmesh make-checkpoint --out /tmp/model.safetensors
      tests/quickstart/run.sh /mnt/bin /tmp/model.safetensors'
}

# run_pods IMAGE_ROOT RENDERED
run_pods() {
  local folder
  folder=$(mktemp -d "$kept/pods.XXXX")
  build/python/bin/python tests/kubernetes/pods.py "$1" "$folder" <"$2"
  rm -rf --one-file-system "$folder"
}

cd "$root"
mkdir -p "$kept"
case ${1:-} in
  --inside) run_inside "$2" "$3" ;;
  --pods)
    run_pods "$2" "$3"
    exit
    ;;
esac

bin=$(realpath "$1")
[[ -n ${SHARDMESH_BASE_IMAGE:-} ]] || make_base
build_image
container=$(in_store from --pull-never "$tag")
trap 'in_store rm "$container" >/dev/null' EXIT
image_root=$(in_store mount "$container")
say "The image: $(du -sm "$image_root" | cut -f1) MB unpacked; running the quickstart in it"
apart() { unshare --mount --net --propagation private --pid --mount-proc --fork --kill-child "$0" "$@"; }
apart --inside "$image_root" "$bin" >"$kept/quickstart.log" 2>&1 || { tail -60 "$kept/quickstart.log" >&2; exit 1; }
status=0
tests/kubernetes/render.sh || status=$?
case $status in
  0)
    for overlay in local tls; do
      say "The pods of overlays/$overlay"
      apart --pods "$image_root" "build/manifests/$overlay.yaml"
    done
    ;;
  # In CI that is an error.
  77) say 'NO PODS WERE RUN, for that reason' ;;
  *) exit "$status" ;;
esac
say "Passed: $tag, in the storage $kept/store"

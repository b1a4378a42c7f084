#!/usr/bin/env bash
# Runs the README's two commands, or COMMAND, on a new minimal Debian 12 in a folder, so that a missing install step shows.
#
#   tests/fresh/run.sh [COMMAND]
#
# The machine is made by debootstrap in build/fresh (or $SHARDMESH_FRESH_DIR; about 5 GB), anew each time, and gets a clone
# of what is committed here. It reaches the package registries as this machine does. Mounts and processes live in
# namespaces of their own, and end with the script however that ends.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
machine=${SHARDMESH_FRESH_DIR:-$root/build/fresh}

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

# Environment variables by which this machine reaches the registries: proxies, indexes, certificates.
registry_environment() {
  env -0 | grep -zEi '^(http|https|ftp|no|all)_proxy=|^(PIP|NPM_CONFIG|UV)_|^(SSL_CERT|CURL_CA|REQUESTS_CA|GIT_SSL|NODE_EXTRA_CA)' ||
    true
}

# Copies FILE... to the same paths of the new machine, those that are there.
carry() {
  local file
  for file in "$@"; do
    [[ -e $file ]] || continue
    mkdir -p "$machine$(dirname "$file")"
    cp -rL "$file" "$machine$(dirname "$file")/"
  done
}

make_machine() {
  local file
  say "Making a minimal Debian 12 in $machine"
  if [[ -e $machine && ! -e $machine/debootstrap && ! -e $machine/srv/shardmesh.bundle ]]; then
    echo "$machine is there and was not made by me; name a new folder in SHARDMESH_FRESH_DIR" >&2
    return 1
  fi
  rm -rf --one-file-system "$machine"
  mkdir -p "$machine"
  debootstrap --variant=minbase --include=ca-certificates,git bookworm "$machine" \
    "${SHARDMESH_FRESH_MIRROR:-http://deb.debian.org/debian}" >"$machine.log" 2>&1 ||
    { tail -20 "$machine.log" >&2; return 1; }
  carry /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates
  carry /etc/apt/auth.conf /etc/apt/auth.conf.d /etc/apt/sources.list.d/debian.sources
  [[ ! -e $machine/etc/apt/sources.list.d/debian.sources ]] || rm -f "$machine/etc/apt/sources.list"
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    ! grep -qsE '^[^#/]*Acquire::' "$file" || carry "$file"
  done
  mkdir -p "$machine$HOME"
  carry /etc/pip.conf /etc/npmrc "$HOME/.npmrc" "$HOME/.config/pip" "$HOME/.pip"
  git -C "$root" bundle create --quiet "$machine/srv/shardmesh.bundle" HEAD
  git -c advice.detachedHead=false clone --quiet "$machine/srv/shardmesh.bundle" "$machine/srv/shardmesh"
}

# Runs in the new machine's namespaces.
enter_machine() {
  local -a environment
  mapfile -d '' environment < <(registry_environment)
  mount -t proc proc "$machine/proc"
  mount -t sysfs sysfs "$machine/sys"
  mount --rbind /dev "$machine/dev"
  exec chroot "$machine" /usr/bin/env -i HOME="$HOME" LANG=C.UTF-8 CI="${CI:-}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${environment[@]}" \
    bash -ec "cd /srv/shardmesh; $1"
}

if ((EUID != 0)); then exec sudo --preserve-env "$0" "$@"; fi
if [[ ${1:-} == --inside ]]; then enter_machine "$2"; fi

# Root may read the clone of another user.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
[[ -z $(git -C "$root" status --porcelain) ]] || say 'What is not committed does not take part'
make_machine
command=${*:-./dev quickstart && ./dev test}
say "Running on it: $command"
unshare --mount --propagation private --pid --fork --kill-child "$0" --inside "$command"
say 'Passed on a new machine'

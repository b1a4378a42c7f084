#!/usr/bin/env bash
# Renders every overlay with kustomize, to build/manifests/NAME.yaml, and gets what reads them: a Python with PyYAML, in
# build/python.
#
#   tests/kubernetes/render.sh
#
# The tools come from PyPI and the Go module proxy, into build/. Exit code 77 where one cannot be had, unless CI=true.
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
kustomize_version=v5.6.0

cannot_render() {
  if [[ ${CI:-} == true ]]; then
    echo "$1" >&2
    exit 1
  fi
  printf '\033[1m== THE OVERLAYS WERE NOT RENDERED: %s\033[0m\n' "$1" >&2
  exit 77
}

[[ -x build/python/bin/python ]] || python3 -m venv build/python
build/python/bin/python -m pip install -q --disable-pip-version-check PyYAML ||
  cannot_render 'PyYAML cannot be had from the package index'
kustomize=$PWD/build/tools/kustomize
if [[ ! -x $kustomize ]]; then
  command -v go >/dev/null || cannot_render 'kustomize v5 comes from the Go module proxy, and there is no go'
  GOBIN=$PWD/build/tools go install "sigs.k8s.io/kustomize/kustomize/v5@$kustomize_version" ||
    cannot_render "kustomize $kustomize_version cannot be had from the Go module proxy"
fi
# What is there from before may be of an overlay that is gone.
rm -rf build/manifests
mkdir -p build/manifests
for overlay in deploy/kubernetes/overlays/*/; do
  "$kustomize" build "$overlay" >build/manifests/rendering
  mv build/manifests/rendering "build/manifests/$(basename "$overlay").yaml"
done

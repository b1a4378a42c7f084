#!/usr/bin/env bash
# Fails where the conformance runner does, and where what it calls unsupported differs from a list:
# compare_unsupported.sh PROGRAM LIST ARGUMENT...
# The list is made anew by: build/release/bin/conformance tests/data/goldens --list-unsupported
set -euo pipefail

program=$1
list=$2
shift 2
"$program" "$@" --list-unsupported | diff -u "$list" -

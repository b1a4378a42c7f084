"""Prints the rules of this folder as a PrometheusRule of the Prometheus operator.

    python3 deploy/prometheus/prometheusrule.py > deploy/kubernetes/overlays/monitoring/prometheusrule.yaml

The rule files are the source; a test keeps the manifest equal to what this prints.
"""

import pathlib
import textwrap

FOLDER = pathlib.Path(__file__).resolve().parent
HEADER = """\
# Made by deploy/prometheus/prometheusrule.py of the rules beside it: change those, and run it again.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: shardmesh
  labels:
    app.kubernetes.io/name: shardmesh
spec:
  groups:
"""


def groups(name):
    """The groups of a rule file, as text without the comments before them."""
    _, rest = (FOLDER / name).read_text(encoding="utf-8").split("\ngroups:\n")
    return textwrap.indent(rest, "  ")


def main():
    print(HEADER + groups("recording.rules.yml") + "\n" + groups("alerts.rules.yml"), end="")


if __name__ == "__main__":
    main()

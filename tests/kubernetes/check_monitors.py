"""Checks the kinds of the Prometheus operator in rendered manifests, for which validators of Kubernetes have no schema.

    kustomize build ... | check_monitors.py [--expect KIND ...]
    check_monitors.py --self-test

Reads YAML documents from standard input. Every ServiceMonitor, PodMonitor and PrometheusRule must keep to our schema of
it; and where the documents have Services, each ServiceMonitor must select one, with all ports that it names; likewise
a PodMonitor and the pods of Deployments, StatefulSets and DaemonSets. A kind of that API that has no schema here is an
error, and so is an expected kind that is missing. Exit code 1 with a line for each fault; needs PyYAML and jsonschema.
"""

import argparse
import json
import pathlib
import sys

import jsonschema
import yaml

FOLDER = pathlib.Path(__file__).resolve().parent
GROUP = "monitoring.coreos.com/"
SCHEMAS = {
    "ServiceMonitor": "servicemonitor.schema.json",
    "PodMonitor": "servicemonitor.schema.json",
    "PrometheusRule": "prometheusrule.schema.json",
}
CONTROLLERS = ("Deployment", "StatefulSet", "DaemonSet")


def name_of(document):
    return f"{document.get('kind')} {document.get('metadata', {}).get('name')}"


def selects(selector, labels):
    """Whether a label selector takes an object with these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for wanted in selector.get("matchExpressions", []):
        value, values = labels.get(wanted["key"]), wanted.get("values", [])
        taken = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[wanted["operator"]]
        if not taken:
            return False
    return True


def schema_faults(document):
    kind = document["kind"]
    if kind not in SCHEMAS:
        return [f"{name_of(document)}: there is no schema of this kind; add one to {FOLDER.name}/"]
    schema = json.loads((FOLDER / SCHEMAS[kind]).read_text(encoding="utf-8"))
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{name_of(document)}: {'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def pods_of(documents):
    """Labels and names of ports of the pods that controllers make."""
    for document in documents:
        if document.get("kind") in CONTROLLERS:
            template = document["spec"]["template"]
            ports = {
                port.get("name")
                for container in template["spec"]["containers"]
                for port in container.get("ports", [])
            }
            yield name_of(document), template["metadata"].get("labels", {}), ports


def services_of(documents):
    for document in documents:
        if document.get("kind") == "Service":
            ports = {port.get("name") for port in document["spec"].get("ports", [])}
            yield name_of(document), document["metadata"].get("labels", {}), ports


def target_faults(monitor, documents):
    """What keeps a monitor from its targets, if the documents have any."""
    is_service = monitor["kind"] == "ServiceMonitor"
    targets = list(services_of(documents) if is_service else pods_of(documents))
    if not targets:
        return []
    spec = monitor["spec"]
    selected = [target for target in targets if selects(spec["selector"], target[1])]
    if not selected:
        return [f"{name_of(monitor)}: selects none of {', '.join(name for name, _, _ in targets)}"]
    endpoints = spec["endpoints" if is_service else "podMetricsEndpoints"]
    return [
        f"{name_of(monitor)}: {name} has no port named {endpoint['port']}"
        for name, _, ports in selected
        for endpoint in endpoints
        if endpoint["port"] not in ports
    ]


def faults(documents, expected):
    found = [f"no {kind} is among the documents" for kind in expected if kind not in {d.get("kind") for d in documents}]
    for document in documents:
        if not str(document.get("apiVersion", "")).startswith(GROUP):
            continue
        wrong = schema_faults(document)
        if not wrong and document["kind"] in ("ServiceMonitor", "PodMonitor"):
            wrong = target_faults(document, documents)
        found += wrong
    return found


def self_test():
    monitor = yaml.safe_load("""
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: m}
spec:
  selector: {matchLabels: {app: a}, matchExpressions: [{key: component, operator: In, values: [x, y]}]}
  endpoints: [{port: metrics, interval: 15s}]
""")
    service = yaml.safe_load("""
apiVersion: v1
kind: Service
metadata: {name: s, labels: {app: a, component: x}}
spec: {ports: [{name: metrics, port: 1}]}
""")
    workload = yaml.safe_load("""
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: w}
spec: {template: {metadata: {labels: {app: a, component: y}}, spec: {containers: [{ports: [{name: grpc}]}]}}}
""")

    def changed(document, **change):
        copy = json.loads(json.dumps(document))
        for path, value in change.items():
            *parents, last = path.split("__")
            at = copy
            for parent in parents:
                at = at[int(parent) if parent.isdigit() else parent]
            at[last] = value
        return copy

    pod_monitor = changed(monitor, kind="PodMonitor")
    pod_monitor["spec"]["podMetricsEndpoints"] = pod_monitor["spec"].pop("endpoints")
    cases = [
        ([monitor, service], [], None),
        ([monitor], ["ServiceMonitor"], None),
        ([service], ["ServiceMonitor"], "no ServiceMonitor"),
        ([changed(monitor, spec__endpoints=[])], [], "spec.endpoints"),
        ([changed(monitor, spec__endpoints__0__interval="15 s")], [], "does not match"),
        ([changed(monitor, spec__endpoints__0__intervall="15s")], [], "Additional properties"),
        ([changed(monitor, spec__selector={})], [], "spec.selector"),
        ([changed(monitor, kind="Probe")], [], "no schema"),
        ([monitor, changed(service, metadata__labels__component="z")], [], "selects none of Service s"),
        ([monitor, changed(service, spec__ports=[{"name": "grpc"}])], [], "no port named metrics"),
        ([pod_monitor, workload], [], "no port named metrics"),
        ([changed(pod_monitor, spec__podMetricsEndpoints=[{"port": "grpc"}]), workload], [], None),
    ]
    for documents, expected, wanted in cases:
        found = faults(documents, expected)
        right = found == [] if wanted is None else len(found) == 1 and wanted in found[0]
        if not right:
            sys.exit(f"check_monitors.py: {found} instead of {wanted!r} for {documents}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expect", action="append", default=[], metavar="KIND", help="a kind that must be there")
    parser.add_argument("--self-test", action="store_true", help="show that planted faults are found")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return
    documents = [document for document in yaml.safe_load_all(sys.stdin) if document]
    found = faults(documents, arguments.expect)
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

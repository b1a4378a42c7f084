"""Holds rendered manifests against what schemas do not say: that they fit each other and the programs.

    check_manifests.py BIN_FOLDER [--self-test] <RENDERED

Reads YAML documents from standard input. BIN_FOLDER has the programs, whose --help knows their flags. Prints what is
wrong, a line each; exit code 1 if there is anything. With --self-test plants faults in manifests that are right, and
fails if one of them is not found.
"""

import copy
import pathlib
import re
import subprocess
import sys

import yaml

SECONDS = {"s": 1, "m": 60, "h": 3600}
BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1}
# Of a worker's memory, what is not for tiles: messages on their way, scratch of kernels, the program.
WORKER_REST_BYTES = 1 << 30


def quantity(text, units):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * units[unit]


def selects(selector, labels):
    """Whether a selector chooses a pod with these labels; one of no words chooses all."""
    return selector.get("matchLabels", {}).items() <= labels.items()


def known_flags(folder, program, *command):
    text = subprocess.run([folder / program, *command, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))


class Checker:
    def __init__(self, documents, folder):
        self.documents = [document for document in documents if document]
        self.folder = folder
        self.problems = []

    def of_kind(self, *kinds):
        return [document for document in self.documents if document["kind"] in kinds]

    def workloads(self, component):
        return [document for document in self.of_kind("Deployment", "StatefulSet") if document["metadata"]["name"] == f"shardmesh-{component}"]

    def problem(self, document, text):
        self.problems.append(f"{document['kind']} {document['metadata']['name']}: {text}")

    def require(self, document, condition, text):
        if not condition:
            self.problem(document, text)

    def check(self):
        for workload in self.of_kind("Deployment", "StatefulSet"):
            self.check_pod(workload, workload["spec"]["template"])
        for job in self.of_kind("Job"):
            self.check_client(job, job["spec"]["template"])
        self.check_replacement()
        self.check_selectors()
        self.check_policy_ports()
        self.check_peers()
        self.check_addresses()
        self.check_mesh()
        return self.problems

    def check_security(self, workload, spec, container):
        """Pod Security "restricted", and a root that nobody writes to."""
        pod_context, context = spec["securityContext"], container["securityContext"]
        self.require(workload, pod_context.get("runAsNonRoot") is True and pod_context.get("runAsUser", 0) > 0, "may run as root")
        self.require(workload, pod_context["seccompProfile"] == {"type": "RuntimeDefault"}, "has no seccomp profile")
        self.require(workload, context.get("allowPrivilegeEscalation") is False, "may escalate privileges")
        self.require(workload, context.get("readOnlyRootFilesystem") is True, "has a writable root")
        self.require(workload, context["capabilities"] == {"drop": ["ALL"]}, "keeps capabilities")
        self.require(workload, spec.get("automountServiceAccountToken") is False, "gets a token that it does not need")

    def check_client(self, job, template):
        """A client passes the policies by its label, and gives a command that there is."""
        spec = template["spec"]
        (container,) = spec["containers"]
        self.check_security(job, spec, container)
        self.require(job, template["metadata"]["labels"].get("shardmesh.dev/client") == "true", "is no client to the network policies")
        program, *command = container["command"]
        flags = {argument[2:].split("=", 1)[0] for argument in container["args"] if argument.startswith("--")}
        unknown = flags - known_flags(self.folder, program, *command)
        self.require(job, not unknown, f"{' '.join(container['command'])} has no flag {', '.join(sorted(unknown))}")
        services = {f"--address={service['metadata']['name']}:{port['port']}" for service in self.of_kind("Service") for port in service["spec"]["ports"]}
        self.require(job, not services or services & set(container["args"]), "calls a coordinator that no service stands for")

    def check_pod(self, workload, template):
        spec = template["spec"]
        (container,) = spec["containers"]
        flags = dict((argument[2:].split("=", 1) + [""])[:2] for argument in container["args"])
        unknown = set(flags) - known_flags(self.folder, container["command"][0])
        self.require(workload, not unknown, f"{container['command'][0]} has no flag {', '.join(sorted(unknown))}")

        self.check_security(workload, spec, container)

        # Ports: what is served is named, what is asked is served.
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        self.require(workload, flags["listen"].endswith(f":{ports['grpc']}"), f"listens at {flags['listen']}, not on port grpc")
        self.require(workload, flags["http-listen"].endswith(f":{ports['metrics']}"), f"serves metrics at {flags['http-listen']}, not on port metrics")
        if "exchange" in ports or "advertise" in flags:
            self.require(workload, flags.get("exchange-port") == str(ports.get("exchange")), f"serves peers at {flags.get('exchange-port')}, not on port exchange")
        is_secure = "tls-cert" in flags
        self.require(workload, is_secure != ("insecure" in flags), "says neither --tls-cert nor --insecure, or both")
        for name, service in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
            probe = container.get(name, {})
            if is_secure:
                command = probe.get("exec", {}).get("command", [])
                good = command[:3] == ["shardmesh", "health", service] and f"--address=unix-abstract:shardmesh-health-{ports['grpc']}" in command
            else:
                good = probe.get("grpc") == {"port": ports["grpc"], "service": service}
            self.require(workload, good, f"{name} does not ask for {service} on port grpc")

        # Time to drain, and memory.
        drain = flags["grace" if "grace" in flags else "drain-timeout"]
        self.require(workload, spec["terminationGracePeriodSeconds"] > quantity(drain, SECONDS), f"is killed before its drain of {drain} is over")
        if "memory" in flags:
            limit = quantity(container["resources"]["limits"]["memory"], BYTES)
            self.require(workload, limit >= quantity(flags["memory"], BYTES) + WORKER_REST_BYTES, f"its limit leaves less than 1 GiB beside --memory={flags['memory']}")

        # Volumes: what is mounted is there, what is used is mounted; secrets whole, so that new certificates arrive.
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | set(claims)
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        self.require(workload, {mount["name"] for mount in mounts.values()} == volumes, "mounts other volumes than it has")
        self.require(workload, not any("subPath" in mount for mount in mounts.values()), "mounts a file of a volume, which never changes then")
        for flag in ("data-dir", "tls-cert", "tls-key", "tls-ca"):
            path = flags.get(flag)
            self.require(workload, path is None or any(path.startswith(mount + "/") for mount in mounts), f"--{flag}={path} is on no volume")

    def check_replacement(self):
        """One coordinator at a time; workers that start together, and are replaced and evicted one by one."""
        for coordinator in self.workloads("coordinator"):
            self.require(coordinator, coordinator["spec"].get("replicas") == 1, "has not one replica, and its state is for one")
            self.require(coordinator, coordinator["kind"] == "StatefulSet", "starts a new pod while the old one has the volume: it is no StatefulSet")
        for workers in self.workloads("worker"):
            spec = workers["spec"]
            self.require(workers, spec.get("podManagementPolicy") == "Parallel", "starts one pod after another: podManagementPolicy is not Parallel")
            self.require(workers, spec.get("updateStrategy") == {"type": "OnDelete"}, "replaces pods by itself: updateStrategy is not OnDelete")
            labels = spec["template"]["metadata"]["labels"]
            budgets = [budget["spec"] for budget in self.of_kind("PodDisruptionBudget") if selects(budget["spec"]["selector"], labels)]
            self.require(workers, len(budgets) == 1 and budgets[0].get("maxUnavailable") == 1, "has no disruption budget of one pod at a time")

    def check_policy_ports(self):
        """What a policy opens of our pods is ports that they have, by name."""
        pods = [(workload["spec"]["template"]["metadata"]["labels"],
                 {port["name"] for port in workload["spec"]["template"]["spec"]["containers"][0]["ports"]})
                for workload in self.of_kind("Deployment", "StatefulSet")]
        for policy in self.of_kind("NetworkPolicy"):
            spec = policy["spec"]
            rules = [(rule, [spec["podSelector"]]) for rule in spec.get("ingress", [])]
            # Pods of other namespaces are not ours.
            rules += [(rule, [peer["podSelector"] for peer in rule.get("to", []) if "podSelector" in peer and "namespaceSelector" not in peer])
                      for rule in spec.get("egress", [])]
            for rule, selectors in rules:
                opened = {port.get("port") for port in rule.get("ports", [])}
                for labels, names in pods:
                    if any(selects(selector, labels) for selector in selectors):
                        self.require(policy, opened, f"opens every port of the pods {labels}")
                        self.require(policy, opened <= names, f"opens ports {sorted(map(str, opened - names))}, which the pods {labels} do not have by these names")

    def check_peers(self):
        """Workers reach one another where they exchange data."""
        for workers in self.workloads("worker"):
            labels = workers["spec"]["template"]["metadata"]["labels"]
            policies = [policy["spec"] for policy in self.of_kind("NetworkPolicy") if policy["spec"]["podSelector"] and selects(policy["spec"]["podSelector"], labels)]
            for direction, side in (("ingress", "from"), ("egress", "to")):
                opened = {port.get("port") for policy in policies for rule in policy.get(direction, [])
                          if any("podSelector" in peer and selects(peer["podSelector"], labels) for peer in rule.get(side, []))
                          for port in rule.get("ports", [])}
                self.require(workers, "exchange" in opened, f"has no policy that opens port exchange {side} other workers")

    def check_addresses(self):
        """A worker's address comes before its name, which caches lead to the address of the pod before."""
        for workers in self.workloads("worker"):
            container = workers["spec"]["template"]["spec"]["containers"][0]
            fields = {variable["name"]: variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for variable in container.get("env", [])}
            advertised = [argument.split("=", 1)[1] for argument in container["args"] if argument.startswith("--advertise=")]
            first = re.match(r"\[?\$\((\w+)\)\]?:", advertised[0]) if advertised else None
            self.require(workers, first is not None and fields.get(first[1]) == "status.podIP", "advertises its name first, not its address")

    def check_selectors(self):
        """Services and budgets choose pods that there are, and one policy denies what no other allows."""
        pods = [workload["spec"]["template"]["metadata"]["labels"] for workload in self.of_kind("Deployment", "StatefulSet")]
        for document in self.of_kind("Service", "PodDisruptionBudget"):
            labels = document["spec"]["selector"]
            labels = labels.get("matchLabels", labels)
            self.require(document, any(labels.items() <= pod.items() for pod in pods), f"selects no pod by {labels}")
        denied = [policy for policy in self.of_kind("NetworkPolicy")
                  if policy["spec"]["podSelector"] == {} and "ingress" not in policy["spec"] and "egress" not in policy["spec"]]
        if self.of_kind("NetworkPolicy"):
            self.require(self.of_kind("NetworkPolicy")[0], len(denied) == 1, "there is no policy that denies all")

    def check_mesh(self):
        """As many workers as the mesh has devices, who call the coordinator by a name that there is."""
        workers, coordinators = self.workloads("worker"), self.workloads("coordinator")
        if not workers or not coordinators:
            return
        mesh = next(argument for argument in coordinators[0]["spec"]["template"]["spec"]["containers"][0]["args"] if argument.startswith("--mesh="))
        devices = 1
        for axis in mesh.removeprefix("--mesh=").split(","):
            devices *= int(axis.split("=")[1])
        replicas = workers[0]["spec"]["replicas"]
        self.require(workers[0], replicas == devices, f"has {replicas} replicas for {devices} devices of {mesh}")
        services = {f"--coordinator={service['metadata']['name']}:{port['port']}" for service in self.of_kind("Service") for port in service["spec"]["ports"]}
        arguments = workers[0]["spec"]["template"]["spec"]["containers"][0]["args"]
        self.require(workers[0], services & set(arguments), "calls a coordinator that no service stands for")
        headless = [service for service in self.of_kind("Service") if service["metadata"]["name"] == workers[0]["spec"]["serviceName"]]
        self.require(workers[0], headless and headless[0]["spec"].get("clusterIP") == "None" and headless[0]["spec"].get("publishNotReadyAddresses") is True,
                     "has no headless service that gives names to pods that are not ready")


# What is planted, where, and what is to be said of it: kind, or kind and name; the way to the value; the value; part of
# the problem.
COORDINATOR_LABELS = {"app.kubernetes.io/name": "shardmesh", "app.kubernetes.io/component": "coordinator"}
POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
FAULTS = [
    ("StatefulSet/shardmesh-coordinator", (*POD, "securityContext", "runAsNonRoot"), False, "may run as root"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "securityContext", "readOnlyRootFilesystem"), False, "writable root"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "securityContext", "capabilities"), {}, "keeps capabilities"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "args", 0), "--cordinator=shardmesh-coordinator:7070", "no flag cordinator"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "args", 0), "--coordinator=coordinator:7070", "no service stands for"),
    ("StatefulSet/shardmesh-coordinator", (*CONTAINER, "ports", 0, "containerPort"), 7071, "not on port grpc"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "ports", 2, "containerPort"), 7075, "not on port exchange"),
    ("StatefulSet/shardmesh-coordinator", (*CONTAINER, "readinessProbe"), {}, "readinessProbe does not ask for ready"),
    ("StatefulSet/shardmesh-coordinator", (*POD, "terminationGracePeriodSeconds"), 30, "killed before its drain"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "resources", "limits", "memory"), "2Gi", "leaves less than 1 GiB"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "volumeMounts", 0, "subPath"), "x", "never changes"),
    ("StatefulSet/shardmesh-coordinator", (*CONTAINER, "volumeMounts", 0, "mountPath"), "/other", "is on no volume"),
    ("StatefulSet/shardmesh-worker", ("spec", "replicas"), 3, "3 replicas for 4 devices"),
    ("StatefulSet/shardmesh-worker", ("spec", "serviceName"), "shardmesh", "no headless service"),
    ("StatefulSet/shardmesh-worker", (*CONTAINER, "args", 4), "--advertise=$(POD_NAME).shardmesh-worker.$(POD_NAMESPACE).svc:7072", "advertises its name first"),
    ("PodDisruptionBudget", ("spec", "selector", "matchLabels"), {"a": "b"}, "selects no pod"),
    ("Service/shardmesh-worker", ("spec", "publishNotReadyAddresses"), False, "no headless service"),
    ("StatefulSet/shardmesh-coordinator", ("spec", "replicas"), 2, "has not one replica"),
    ("StatefulSet/shardmesh-coordinator", ("kind",), "Deployment", "is no StatefulSet"),
    ("StatefulSet/shardmesh-worker", ("spec", "podManagementPolicy"), "OrderedReady", "is not Parallel"),
    ("StatefulSet/shardmesh-worker", ("spec", "updateStrategy"), {"type": "RollingUpdate"}, "is not OnDelete"),
    ("PodDisruptionBudget/shardmesh-worker", ("spec", "maxUnavailable"), 2, "no disruption budget of one pod"),
    ("PodDisruptionBudget/shardmesh-worker", ("spec", "selector", "matchLabels"), COORDINATOR_LABELS, "no disruption budget of one pod"),
    ("NetworkPolicy/shardmesh-worker", ("spec", "ingress", 2, "ports", 0, "port"), "metric", "opens ports ['metric']"),
    ("NetworkPolicy/shardmesh-worker", ("spec", "ingress", 1, "ports", 0, "port"), "grpc", "no policy that opens port exchange from"),
    ("NetworkPolicy/shardmesh-worker", ("spec", "egress", 1, "ports", 0, "port"), "grpc", "no policy that opens port exchange to"),
    ("NetworkPolicy/shardmesh-coordinator", ("spec", "egress", 0, "ports", 0, "port"), 7072, "opens ports ['7072']"),
    ("Job", (*POD, "securityContext", "runAsUser"), 0, "may run as root"),
    ("Job", ("spec", "template", "metadata", "labels"), {}, "is no client"),
    ("Job", (*CONTAINER, "args", 1), "--dedline=2m", "no flag dedline"),
    ("Job", (*CONTAINER, "args", 0), "--address=coordinator:7070", "no service stands for"),
    ("NetworkPolicy/shardmesh-client", ("spec", "egress", 0, "ports"), [], "opens every port"),
]


def self_test(documents, folder):
    missed = []
    for kind, (*way, last), value, expected in FAULTS:
        planted = copy.deepcopy(documents)
        where = next(document for document in planted if document and kind in (document["kind"], f"{document['kind']}/{document['metadata']['name']}"))
        for step in way:
            where = where[step]
        where[last] = value
        problems = Checker(planted, folder).check()
        if not any(expected in problem for problem in problems):
            missed.append(f"planted {value!r} in {kind}, expected \"{expected}\", got {problems}")
    return missed


def main():
    documents, folder = list(yaml.safe_load_all(sys.stdin)), pathlib.Path(sys.argv[1])
    problems = Checker(documents, folder).check()
    if not problems and "--self-test" in sys.argv[2:]:
        problems = self_test(documents, folder)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Clusters whose coordinator goes away in every way that a network knows: does each worker come back in time?

    network_test.py FOLDER_OF_PROGRAMS [SCENARIO...]

Runs two clusters side by side, one over plaintext and one over TLS, each with its processes in network namespaces of their
own, joined by a bridge. The congestion control is Reno. The coordinators are known by a name; a resolver of this program
answers for it and keeps its answers for a while, as those of real clusters do. Each scenario takes the coordinators away,
brings them back, and measures the time from the moment at which a coordinator serves and can be reached until each worker
is attached to it. That may take LIMIT seconds at most.

Needs root. Exit code 77, and a line that says so, where this user or kernel has no network namespaces.
"""

import datetime
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from resolver import Resolver

WORKERS = 2
# From a coordinator that serves to a worker that is attached to it.
LIMIT = 2.0
# Beyond that for the time that this program and a loaded machine take to look.
SLACK = 0.5
# No host has this one: what is sent there is swallowed.
NOBODY = "02:00:00:00:00:99"
PORT = 7070
STARTED = "SHARDMESH_NETWORK_TEST"


def sh(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def say(text):
    print(text, flush=True)


def wait_until(what, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s: not {what}")
        time.sleep(0.01)


class Host:
    """A network namespace with one interface on the bridge."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        veth = f"v{address.replace('.', '')[-9:]}"
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "link", "set", veth, "master", "bridge0", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("addr", "add", f"{address}/16", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        self.run("sysctl", "-q", "net.ipv4.tcp_congestion_control=reno")

    def ip(self, *words):
        return sh("ip", "-n", self.name, *words)

    def inside(self, *command):
        return ["nsenter", f"--net=/run/netns/{self.name}", *[str(word) for word in command]]

    def run(self, *command):
        return sh(*self.inside(*command))

    def swallow(self, address):
        """Everything that this host sends there is lost."""
        self.ip("neigh", "replace", address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def hear(self, address):
        self.ip("neigh", "del", address, "dev", "eth0")

    def reject(self, address):
        """Connections from this host to there fail at once, as by the firewall of a service that has no endpoint."""
        self.ip("route", "add", "unreachable", f"{address}/32")

    def allow(self, address):
        self.ip("route", "del", "unreachable", f"{address}/32")


class Process:
    def __init__(self, host, log, *command):
        self.log = log
        self.offset = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self.process = subprocess.Popen(host.inside(*command), stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def text(self):
        with open(self.log, "rb") as log:
            log.seek(self.offset)
            return log.read().decode(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)  # nsenter has become the program

    def end(self, number):
        self.signal(number)
        self.process.wait(timeout=30)


def time_of(line):
    return datetime.datetime.fromisoformat(line.split(" ", 1)[0].replace("Z", "+00:00")).timestamp()


class Cluster:
    def __init__(self, programs, folder, number, secure, resolver):
        self.kind = "TLS" if secure else "plaintext"
        self.programs, self.folder, self.number, self.resolver = programs, folder / self.kind, number, resolver
        self.folder.mkdir()
        self.name = f"coordinator-{number}.test"
        self.certificates = self.folder / "certificates" if secure else None
        if secure:
            sh(programs / "shardmesh", "certs", "--dir", self.certificates, "--workers", WORKERS)
        self.hosts = [Host(f"net-c{number}-{i}", f"10.77.{number}.{10 + i}") for i in range(2)]
        self.at = 0  # which of the hosts has the coordinator
        self.worker_hosts = [Host(f"net-w{number}-{i}", f"10.77.{number}.{20 + i}") for i in range(WORKERS)]
        self.resolver.set(self.name, self.address)
        self.workers = []
        self.start_coordinator()
        for i, host in enumerate(self.worker_hosts):
            self.workers.append(Process(host, self.folder / f"worker-{i}.log", programs / "shardmesh-worker",
                                        f"--coordinator={self.name}:{PORT}", f"--identity=shardmesh-worker-{i}", f"--listen={host.address}:{PORT}",
                                        "--memory=64MiB", "--transport=stream", *self.credentials(f"shardmesh-worker-{i}")))

    def credentials(self, name):
        if self.certificates is None:
            return ["--insecure"]
        return [f"--tls-cert={self.certificates}/{name}.crt", f"--tls-key={self.certificates}/{name}.key",
                f"--tls-ca={self.certificates}/ca.crt"]

    @property
    def host(self):
        return self.hosts[self.at]

    @property
    def address(self):
        return self.host.address

    def start_coordinator(self):
        """Returns the time at which it serves, and its term."""
        log = self.folder / "coordinator.log"
        self.coordinator = Process(self.host, log, self.programs / "shardmesh-coordinator", f"--listen={self.address}:{PORT}",
                                   f"--data-dir={self.folder / 'data'}", f"--mesh=fsdp={WORKERS}", *self.credentials("coordinator"))
        wait_until(f"{self.kind} coordinator listening", lambda: "listening on" in self.coordinator.text())
        return time.time()

    def terms(self, worker):
        """When a worker was attached, and to which term, each time."""
        found = []
        for line in self.workers[worker].text().splitlines():
            match = re.search(r" INFO attached .*term=(\d+)", line)
            if match:
                found.append((time_of(line), int(match[1])))
        return found

    def attached(self):
        return [len(self.terms(worker)) for worker in range(WORKERS)]

    def expect_attached(self, before, reachable):
        """Each worker attaches once more than `before`, within LIMIT of `reachable`; returns how long each took."""
        delays = []
        for worker in range(WORKERS):
            times = wait_until(f"{self.kind} worker {worker} attached within 15 s of a coordinator that serves",
                               lambda w=worker: self.terms(w)[before[w]:], reachable + 15 - time.time())
            delays.append(times[-1][0] - reachable)
        assert max(delays) <= LIMIT + SLACK, f"{self.kind} workers attached {[round(delay, 1) for delay in delays]} s after the coordinator served"
        return delays

    def is_ready(self):
        """Whether each worker is a member and reaches its peers."""
        command = [self.programs / "shardmesh", "health", "ready", "--deadline=3s"]
        if self.certificates is not None:
            command += self.credentials("client")
        return all(subprocess.run(host.inside(*command, f"--address={host.address}:{PORT}"), capture_output=True).returncode == 0
                   for host in self.worker_hosts)

    def status(self, *flags):
        """`shardmesh status` by the coordinator's name, on a worker's host."""
        command = [self.programs / "shardmesh", "status", f"--address={self.name}:{PORT}", *flags]
        if self.certificates is not None:
            command += self.credentials("client")
        return subprocess.run(self.worker_hosts[0].inside(*command), capture_output=True, text=True)

    def each_worker(self, what):
        for host in self.worker_hosts:
            what(host)


class Network:
    def __init__(self, programs, folder):
        sh("ip", "link", "set", "lo", "up")
        # With an address of its own, or it takes that of a port, and another one when ports are added.
        sh("ip", "link", "add", "bridge0", "address", "02:00:00:00:00:01", "type", "bridge")
        sh("ip", "addr", "add", "10.77.0.1/16", "dev", "bridge0")
        sh("ip", "link", "set", "bridge0", "up")
        (folder / "resolv.conf").write_text("nameserver 10.77.0.1\n", encoding="ascii")
        sh("mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf")
        self.resolver = Resolver("10.77.0.1")
        self.clusters = [Cluster(programs, folder, 1, False, self.resolver), Cluster(programs, folder, 2, True, self.resolver)]

    def each(self, what):
        for cluster in self.clusters:
            what(cluster)

    def comes_back(self, scenario):
        before = [cluster.attached() for cluster in self.clusters]
        # By cluster: when its coordinator served and could be reached.
        reachable = scenario(self)
        failures = []
        for cluster, attached, since in zip(self.clusters, before, reachable):
            try:
                delays = cluster.expect_attached(attached, since)
                say(f"  {cluster.kind}: {', '.join(f'{delay:.2f}' for delay in delays)} s")
            except AssertionError as failure:
                say(f"  {cluster.kind}: FAILED: {failure}")
                failures.append(cluster.kind)
        return failures

    # The scenarios. Each returns, by cluster, when the coordinator could be reached again.

    def starts(self):
        """both started for the first time"""
        return [time.time()] * 2

    def killed_and_address_refuses(self):
        """killed, and its address refuses connections for 7 s"""
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGKILL))
        time.sleep(7)
        return [cluster.start_coordinator() for cluster in self.clusters]

    def drained(self):
        """drained, and started anew at once"""
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGTERM))
        return [cluster.start_coordinator() for cluster in self.clusters]

    def service_rejects(self):
        """drained, and its service rejects for 6 s, since it has no endpoint"""
        self.each(lambda cluster: cluster.each_worker(lambda host: host.reject(cluster.address)))
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGTERM))
        time.sleep(6)
        self.each(lambda cluster: cluster.start_coordinator())
        self.each(lambda cluster: cluster.each_worker(lambda host: host.allow(cluster.address)))
        return [time.time()] * 2

    def service_swallows(self):
        """killed, and its address swallows what is sent to it for 6 s"""
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGKILL))
        self.each(lambda cluster: cluster.each_worker(lambda host: host.swallow(cluster.address)))
        time.sleep(6)
        self.each(lambda cluster: cluster.start_coordinator())
        self.each(lambda cluster: cluster.each_worker(lambda host: host.hear(cluster.address)))
        return [time.time()] * 2

    def unreachable(self):
        """unreachable for 8 s, in both directions, while it runs"""
        for cluster in self.clusters:
            for host in cluster.worker_hosts:
                host.swallow(cluster.address)
                cluster.host.swallow(host.address)
        time.sleep(8)
        for cluster in self.clusters:
            for host in cluster.worker_hosts:
                host.hear(cluster.address)
                cluster.host.hear(host.address)
        return [time.time()] * 2

    def slow(self):
        """stopped for 7 s, while its kernel takes connections in"""
        self.each(lambda cluster: cluster.coordinator.signal(signal.SIGSTOP))
        time.sleep(7)
        self.each(lambda cluster: cluster.coordinator.signal(signal.SIGCONT))
        return [time.time()] * 2

    def moved(self):
        """killed, and started at another address, which its name leads to 3 s later"""
        self.resolver.keeps = 3
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGKILL))
        # The workers have asked, and the resolver keeps the old address.
        wait_until("the resolver keeping both names", lambda: all(
            self.resolver.known_until(cluster.name) - time.monotonic() > 2 for cluster in self.clusters))
        reachable = []
        for cluster in self.clusters:
            cluster.at = 1 - cluster.at
            self.resolver.set(cluster.name, cluster.address)
            serves = cluster.start_coordinator()
            left = self.resolver.known_until(cluster.name) - time.monotonic()
            reachable.append(max(serves, time.time() + left))
        wait_until("the resolver forgetting", lambda: time.time() > max(reachable))
        self.resolver.keeps = 0
        return reachable

    def moved_from_silent_host(self):
        """its host vanished, and it was started on another one at once"""
        for cluster in self.clusters:
            cluster.each_worker(lambda host, c=cluster: host.swallow(c.address))
            # Nothing of its end reaches a worker.
            for host in cluster.worker_hosts:
                cluster.host.swallow(host.address)
            cluster.coordinator.end(signal.SIGKILL)
        # What a worker has to notice first: nothing comes any more (its keepalive, 5 s).
        old = [cluster.host for cluster in self.clusters]
        serves = []
        for cluster in self.clusters:
            cluster.at = 1 - cluster.at
            self.resolver.set(cluster.name, cluster.address)
            serves.append(cluster.start_coordinator())
        time.sleep(5)
        for cluster, host in zip(self.clusters, old):
            cluster.each_worker(lambda worker, h=host: worker.hear(h.address))
            for worker in cluster.worker_hosts:
                host.hear(worker.address)
        return [since + 5 for since in serves]

    def names_are_silent(self):
        """drained, and for 6 s no name server answers"""
        self.resolver.silent = True
        self.each(lambda cluster: cluster.coordinator.end(signal.SIGTERM))
        time.sleep(6)
        self.each(lambda cluster: cluster.start_coordinator())
        self.resolver.silent = False
        return [time.time()] * 2

    def first_address_is_silent(self):
        """killed, and started anew at the second of its name's addresses, of which the first swallows what is sent to it"""
        for cluster in self.clusters:
            # No host has it; as it is nearer to the workers' own than the coordinator's, it is tried first.
            silent = f"10.77.{cluster.number}.{20 + WORKERS}"
            cluster.each_worker(lambda host, address=silent: host.swallow(address))
            self.resolver.set(cluster.name, silent, cluster.address)
            cluster.coordinator.end(signal.SIGKILL)
        serves = [cluster.start_coordinator() for cluster in self.clusters]
        for cluster in self.clusters:
            silent = f"10.77.{cluster.number}.{20 + WORKERS}:{PORT}"
            for flags in [], ["--deadline=40s"]:
                status = cluster.status(*flags)
                assert status.returncode == 0, f"{cluster.kind} client {flags}: {status.stderr}"
                assert f"{silent} does not answer" in status.stderr, f"{cluster.kind} client {flags}: {status.stderr}"
            self.resolver.set(cluster.name, cluster.address)
        # A worker gives up an address that answers nothing after the timeout of its keepalive.
        return [since + 3 for since in serves]

    SCENARIOS = (starts, killed_and_address_refuses, drained, service_rejects, service_swallows, unreachable, slow, moved,
                 moved_from_silent_host, names_are_silent, first_address_is_silent)


def skip(why):
    say(f"SKIPPED: {why}, so nothing is tested of coordinators that come back")
    sys.exit(77)


def enter_namespaces():
    """Starts this program anew in namespaces of its own, with which all of it ends."""
    if os.geteuid() != 0:
        skip("this user is not root")
    for tool in ("ip", "nsenter", "unshare", "sysctl"):
        if shutil.which(tool) is None:
            skip(f"there is no {tool}")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    if subprocess.run([*command, "ip", "link", "add", "bridge0", "type", "bridge"], capture_output=True).returncode != 0:
        skip("this kernel or user has no network namespaces with bridges")
    os.environ[STARTED] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def main():
    if STARTED not in os.environ:
        enter_namespaces()
    sh("mkdir", "-p", "/run/netns")
    sh("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    programs = pathlib.Path(sys.argv[1]).absolute()
    wanted = sys.argv[2:] or [scenario.__name__ for scenario in Network.SCENARIOS]
    failed = []
    with tempfile.TemporaryDirectory(prefix="shardmesh-network-") as folder:
        folder = pathlib.Path(folder)
        try:
            network = Network(programs, folder)
            for scenario in Network.SCENARIOS:
                if scenario.__name__ not in wanted and scenario is not Network.starts:
                    continue
                say(f"{scenario.__name__}: {scenario.__doc__}")
                if scenario is Network.starts:
                    network.each(lambda cluster: cluster.expect_attached([0] * WORKERS, time.time() + 5))
                else:
                    failed += [f"{scenario.__name__} ({kind})" for kind in network.comes_back(scenario)]
                for cluster in network.clusters:
                    wait_until(f"{cluster.kind}: a mesh that is ready", cluster.is_ready)
        except BaseException:
            traceback.print_exc()
            failed.append("the test itself")
        if failed:
            for log in sorted(folder.glob("*/*.log")):
                print(f"--- {log.parent.name} {log.name}\n{log.read_text(errors='replace')[-20000:]}")
    if failed:
        say(f"FAILED: {', '.join(failed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()

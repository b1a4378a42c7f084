"""Runs rendered manifests as Kubernetes would: each pod from the image, with what its manifest says and nothing else.

    pods.py IMAGE_ROOT FOLDER <RENDERED

Every pod has its own network interface, its own process and mount namespaces, a read-only root, the user, the volumes, the
environment and the arguments of its manifest, and no capabilities. The coordinator's service has an address that stays, and
rejects connections while no pod is behind it; workers' names lead to the pods' own addresses. A name server answers for
both, and keeps what it answered for longer than a pod may take to be ready. Probes are asked as the kubelet does: gRPC from outside, commands inside. FOLDER is for volumes and logs. Needs root, and namespaces of
its own for mounts and network (tests/image/run.sh makes them).

What is tried: volumes that are read-only; volumes that are full, from the start or in the end; workers that start before the coordinator and before any name resolves; a mesh that comes up and computes; a
worker that is deleted and comes back under another address, with its tiles; a new coordinator; with TLS, a client without a
certificate, and certificates that are renewed under running pods; an end in which every process exits with 0.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "network"))
from resolver import Resolver  # noqa: E402: beside the tests that need it most

READY_SECONDS = 60
# Room for a worker's part of the checkpoint twice, as it was and as it is loaded again.
LIMITED_VOLUME = "64m"
COORDINATOR = "shardmesh-coordinator"
SERVICE_ADDRESS = "10.78.0.1"
# Clusters' keep them for half a minute. Here whoever waits for a name's new address is not ready in time.
NAMES_KEPT_SECONDS = READY_SECONDS + 30
ABSENCE_KEPT_SECONDS = 5


def sh(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def say(text):
    print(f"   {text}", flush=True)


def wait_until(what, condition, seconds=READY_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s: not {what}")
        time.sleep(0.05)


class Network:
    """One bridge, the names that pods know, and the coordinator's service."""

    def __init__(self, folder):
        self.hosts_file, self.resolver_file = folder / "hosts", folder / "resolv.conf"
        self.hosts_file.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self.resolver_file.write_text("nameserver 10.77.0.1\n", encoding="utf-8")
        self.last = 1
        sh("ip", "link", "set", "lo", "up")
        sh("ip", "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
        sh("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        sh("ip", "link", "set", "br0", "up")
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        # The service's address routes to a pod of the same network, so the router would send ICMP redirects. A pod
        # caches such a route, and keeps it for minutes after the service has moved. Kubernetes sends none.
        for name in ("all", "default", "br0"):
            pathlib.Path(f"/proc/sys/net/ipv4/conf/{name}/send_redirects").write_text("0", encoding="ascii")
        self.serve_from(None)
        self.resolver = Resolver("10.77.0.1")
        self.resolver.keeps, self.resolver.keeps_absence = NAMES_KEPT_SECONDS, ABSENCE_KEPT_SECONDS

    def add(self, namespace):
        """Gives a network namespace an interface; returns its address."""
        self.last += 1
        address, veth = f"10.77.0.{self.last}", f"veth{self.last}"
        sh("ip", "netns", "add", namespace)
        sh("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        sh("ip", "link", "set", veth, "master", "br0", "up")
        sh("ip", "-n", namespace, "link", "set", "lo", "up")
        sh("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        sh("ip", "-n", namespace, "link", "set", "eth0", "up")
        sh("ip", "-n", namespace, "route", "add", "default", "via", "10.77.0.1")
        return address

    def remove(self, namespace):
        sh("ip", "netns", "del", namespace)

    def name(self, name, address):
        self.resolver.set(name, address)

    @staticmethod
    def serve_from(pod):
        """Has the service lead to a pod, or reject."""
        if pod is None:
            sh("ip", "route", "replace", "unreachable", SERVICE_ADDRESS)
        else:
            sh("ip", "-n", pod.name, "addr", "replace", f"{SERVICE_ADDRESS}/32", "dev", "lo")
            sh("ip", "route", "replace", SERVICE_ADDRESS, "via", pod.address)


class Secret:
    """A secret's volume as the kubelet keeps it: links into a folder that is exchanged at once."""

    def __init__(self, folder, group):
        self.folder, self.group, self.version = folder, group, 0
        folder.mkdir()

    def fill(self, source):
        self.version += 1
        data = self.folder / f"..{self.version}"
        data.mkdir()
        for file in source.iterdir():
            if file.is_file():
                shutil.copyfile(file, data / file.name)
                os.chown(data / file.name, 0, self.group)
                (data / file.name).chmod(0o440)
                link = self.folder / file.name
                if not link.is_symlink():
                    link.symlink_to(f"..data/{file.name}")
        new = self.folder / "..new"
        new.symlink_to(data.name)
        new.rename(self.folder / "..data")


class Pod:
    def __init__(self, world, name, workload, claims):
        self.world, self.name, self.workload = world, name, workload
        self.spec = workload["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.claims = claims  # folders by volume's name
        self.process = None
        self.log = world.folder / f"{name}.log"

    def environment(self):
        known = {}
        for variable in self.container.get("env", []):
            if "valueFrom" in variable:
                field = variable["valueFrom"]["fieldRef"]["fieldPath"]
                known[variable["name"]] = {"metadata.name": self.name,
                                           "metadata.namespace": self.workload["metadata"]["namespace"],
                                           "status.podIP": self.address}[field]
            else:
                known[variable["name"]] = self.expand(variable["value"], known)
        return known

    @staticmethod
    def expand(text, known):
        return re.sub(r"\$\(([A-Z_]+)\)", lambda match: known.get(match[1], match[0]), text)

    def start(self):
        self.address = self.world.network.add(self.name)
        environment = self.environment()
        command = self.container["command"] + [self.expand(argument, environment) for argument in self.container["args"]]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.inside(command, environment), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def inside(self, command, environment):
        """The words that run a command as this pod does."""
        context = self.spec["securityContext"]
        mounts = "".join(f'mount -o bind{",ro" if mount.get("readOnly") else ""} {self.claims[mount["name"]]} $root{mount["mountPath"]}\n'
                         for mount in self.container.get("volumeMounts", []))
        # The root is bound read-only last, under what is mounted on it.
        script = f"""
            root={self.world.machine}
            mount --bind {self.world.image} $root
            mount -o remount,bind,ro $root
            {mounts}
            mount --bind {self.world.network.hosts_file} $root/etc/hosts
            mount --bind {self.world.network.resolver_file} $root/etc/resolv.conf
            mount -t proc proc $root/proc
            mount -t tmpfs -o size=64k,mode=755 tmpfs $root/dev
            for device in null zero urandom; do : >$root/dev/$device; mount --bind /dev/$device $root/dev/$device; done
            exec chroot $root setpriv --reuid {context['runAsUser']} --regid {context['runAsGroup']} --groups {context['fsGroup']} \\
              --no-new-privs --inh-caps=-all --bounding-set=-all env -i PATH=/usr/local/bin:/usr/bin:/bin "$@"
            """
        variables = [f"{name}={value}" for name, value in environment.items()]
        return ["ip", "netns", "exec", self.name, "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                "bash", "-ec", script, "pod", *variables, *command]

    def run(self, *command):
        """Runs a further command in the pod: its exit code, and what it printed."""
        result = subprocess.run(self.inside(list(command), self.environment()), capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout + result.stderr

    def probe(self, name):
        probe = self.container[f"{name}Probe"]
        if "exec" in probe:
            return self.run(*probe["exec"]["command"])[0] == 0
        service = probe["grpc"]["service"]
        return subprocess.run(["chroot", self.world.image, "shardmesh", "health", service, "--deadline=2s",
                               f"--address={self.address}:{probe['grpc']['port']}"], capture_output=True).returncode == 0

    def log_text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def pid(self):
        """Of the program itself, below unshare."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    def delete(self):
        """SIGTERM, and the grace of its manifest; returns the exit code."""
        started = time.monotonic()
        if self is self.world.coordinator:
            self.world.network.serve_from(None)  # before it ends, as an endpoint is taken away
        os.kill(self.pid(), signal.SIGTERM)
        code = self.process.wait(timeout=self.spec["terminationGracePeriodSeconds"])
        self.world.network.remove(self.name)
        say(f"{self.name} exited with {code} after {time.monotonic() - started:.1f} s")
        return code

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class World:
    """The objects of the manifests."""

    def __init__(self, image, folder, documents):
        self.image, self.folder = image, folder
        self.machine = folder / "machine"
        self.machine.mkdir()
        sh("mkdir", "-p", "/run/netns")
        sh("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        self.network = Network(folder)
        sets = {document["metadata"]["name"]: document for document in documents if document["kind"] == "StatefulSet"}
        coordinator, workers = sets[COORDINATOR], sets["shardmesh-worker"]
        self.group = coordinator["spec"]["template"]["spec"]["securityContext"]["fsGroup"]
        self.namespace, self.service = workers["metadata"]["namespace"], workers["spec"]["serviceName"]
        secrets = {volume["secret"]["secretName"] for volume in workers["spec"]["template"]["spec"].get("volumes", []) if "secret" in volume}
        self.secret = Secret(folder / secrets.pop(), self.group) if secrets else None
        resolver_file = image / "etc/resolv.conf"  # to mount ours on
        if resolver_file.is_symlink():
            resolver_file.unlink()
        resolver_file.touch()
        for mount in self.mounts(coordinator) | self.mounts(workers):
            (image / mount.lstrip("/")).mkdir(exist_ok=True)
        self.coordinator = Pod(self, f"{COORDINATOR}-0", coordinator, self.volumes(coordinator, COORDINATOR))
        names = [f"{workers['metadata']['name']}-{ordinal}" for ordinal in range(workers["spec"]["replicas"])]
        self.workers = [Pod(self, name, workers, self.volumes(workers, name)) for name in names]
        self.pods = [self.coordinator, *self.workers]

    @staticmethod
    def mounts(workload):
        return {mount["mountPath"] for mount in workload["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]}

    def volumes(self, workload, pod):
        """The folders that stand for a pod's volumes, by the volumes' names; those of claims are the pod's own."""
        folders = {volume["name"]: self.secret.folder for volume in workload["spec"]["template"]["spec"].get("volumes", []) if "secret" in volume}
        claims = [volume["name"] for volume in workload["spec"]["template"]["spec"].get("volumes", []) if "persistentVolumeClaim" in volume]
        claims += [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        for claim in claims:
            folders[claim] = self.folder / f"{pod}-{claim}"
            folders[claim].mkdir()
            os.chown(folders[claim], 0, self.group)
            folders[claim].chmod(0o2770)
        return folders

    def announce(self, pod):
        if pod is self.coordinator:
            self.network.name(COORDINATOR, SERVICE_ADDRESS)
            self.network.serve_from(pod)
        else:
            self.network.name(self.name_of(pod), pod.address)

    def name_of(self, worker):
        return f"{worker.name}.{self.service}.{self.namespace}.svc"

    def look_up(self, pod):
        """Has the name server keep the address that a pod has now."""
        with self.network.resolver.lock:
            self.network.resolver.lookup(COORDINATOR if pod is self.coordinator else self.name_of(pod))

    def shardmesh(self, *arguments, certificates=True):
        """A command of a client, in a network of its own; with the client's certificate, where there are any."""
        environment = {}
        if self.secret is not None and certificates:
            environment = {f"SHARDMESH_TLS_{key}": f"/tls/{file}" for key, file in
                           (("CERT", "client.crt"), ("KEY", "client.key"), ("CA", "ca.crt"))}
        client = Pod(self, "client", self.coordinator.workload, dict(self.coordinator.claims, data=self.folder / "client-data"))
        client.environment = lambda: environment
        return client.run("shardmesh", *arguments, f"--address={COORDINATOR}:7070")

    def expect(self, *arguments, **options):
        code, printed = self.shardmesh(*arguments, **options)
        if code != 0:
            raise AssertionError(f"shardmesh {' '.join(arguments)} ended with {code}: {printed}")
        return printed

    def await_ready(self):
        for pod in self.pods:
            wait_until(f"{pod.name} ready", lambda pod=pod: pod.probe("readiness"))


def make_certificates(world, folder):
    sh("chroot", world.image, "true")
    shutil.rmtree(world.image / "tmp/certs", ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, world.image / "tmp/certs")
    sh("chroot", world.image, "shardmesh", "certs", "--dir", "/tmp/certs", "--workers", len(world.workers))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.image / "tmp/certs", folder)
    shutil.rmtree(world.image / "tmp/certs")
    world.secret.fill(folder)


def fill(volume):
    subprocess.run(["dd", "if=/dev/zero", f"of={volume}/filler", "bs=4k"], capture_output=True)


def refuse_bad_volumes(world):
    """What cannot write its volume at the start says so and ends: nothing it could wait for would help. Only a worker waits
    for room on one that is full (see live_with_a_full_volume)."""
    refused = {"read-only": ("ro", [world.coordinator, world.workers[0]]), "full": ("size=64k", [world.coordinator])}
    for kind, (options, pods) in refused.items():
        volume = world.folder / f"{kind}-volume"
        volume.mkdir()
        sh("mount", "-t", "tmpfs", "-o", f"{options},mode=2770,gid={world.group}", "tmpfs", volume)
        if kind == "full":
            fill(volume)
        for original in pods:
            pod = Pod(world, original.name, original.workload, dict(original.claims, data=volume))
            pod.log = world.folder / f"{kind}-{original.name}.log"
            pod.start()
            code = pod.process.wait(timeout=30)
            world.network.remove(pod.name)
            said = [line for line in pod.log_text().splitlines() if "/data/" in line]
            assert code == 1 and said, f"{original.name} on a volume that is {kind}: {code}, {pod.log_text()}"
            say(f"on a volume that is {kind}: {said[-1]}")
        sh("umount", volume)


def limit_volume(world, pod):
    """Gives a pod a volume that can be filled."""
    sh("mount", "-t", "tmpfs", "-o", f"size={LIMITED_VOLUME},mode=2770,gid={world.group}", "tmpfs", pod.claims["data"])


def live_with_a_full_volume(world, worker, load, expect_same):
    """A worker serves what it has on a volume that is full, also after a new start, and refuses what does not fit, which
    changes nothing. One that has nothing there yet waits for room."""
    volume = worker.claims["data"]
    fill(volume)
    code, printed = world.shardmesh(*load)
    assert code == 1 and "the disk is full" in printed and worker.name in printed, f"a load onto a full volume: {code}, {printed}"
    say(f"a load onto a full volume hears: {printed.strip()}")
    expect_same()
    fill(volume)
    assert worker.delete() == 0

    empty = world.folder / "full-and-empty-volume"
    empty.mkdir()
    sh("mount", "-t", "tmpfs", "-o", f"size=64k,mode=2770,gid={world.group}", "tmpfs", empty)
    fill(empty)
    new = Pod(world, worker.name, worker.workload, dict(worker.claims, data=empty))
    new.log = world.folder / f"full-{worker.name}.log"
    new.start()
    world.announce(new)
    wait_until(f"{new.name} saying that it waits for room", lambda: re.search(r"cannot attach, will retry.*/data/.*the disk is full", new.log_text()))
    assert new.probe("liveness") and not new.probe("readiness"), f"{new.name} is dead or ready on a full volume"
    assert new.delete() == 0
    sh("umount", empty)

    worker.start()
    world.announce(worker)
    world.await_ready()
    expect_same()
    (volume / "filler").unlink()
    world.expect(*load)
    expect_same()
    say(f"{worker.name} served from a full volume, and takes in a checkpoint when there is room again")


def survive_wrong_certificates(world, certificates):
    """Nobody is killed for files that cannot be used: what runs goes on with those before."""
    wrong = world.folder / "wrong"
    shutil.copytree(certificates, wrong)
    for key in wrong.glob("*.key"):
        shutil.copyfile(certificates / "client.key", key)
    world.secret.fill(wrong)
    for pod in world.pods:
        wait_until(f"{pod.name} saying that it cannot use its files",
                   lambda pod=pod: "certificate files cannot be used" in pod.log_text())
        assert pod.probe("liveness") and pod.probe("readiness"), f"{pod.name} would be killed for its secret"
    world.secret.fill(certificates)
    say("with keys of others in the secret all go on, and say so")


def scenario(world):
    certificates = world.folder / "certificates"
    if world.secret is not None:
        make_certificates(world, certificates)
    refuse_bad_volumes(world)
    limited = world.workers[1]
    limit_volume(world, limited)
    data = world.folder / "client-data"
    data.mkdir()
    data.chmod(0o777)

    # In any order, and before anything has a name.
    for worker in reversed(world.workers):
        worker.start()
    for worker in world.workers:
        wait_until(f"{worker.name} alive", lambda worker=worker: worker.probe("liveness"))
        wait_until(f"{worker.name} saying what it waits for",
                   lambda worker=worker: re.search(rf"cannot attach, will retry.*{COORDINATOR}:7070", worker.log_text()))
        assert not worker.probe("readiness"), f"{worker.name} is ready without a coordinator"
    say("workers without a coordinator are alive, not ready, and say what they wait for")
    world.coordinator.start()
    wait_until("coordinator alive", lambda: world.coordinator.probe("startup"))
    for pod in world.pods:
        world.announce(pod)
    started = time.monotonic()
    world.await_ready()
    say(f"ready {time.monotonic() - started:.1f} s after the last name was there")

    world.network.add("client")
    world.expect("make-tensor", "--shape=128,128", "--seed=1", "--out=/data/x.npy")
    world.expect("make-checkpoint", "--out=/data/m.safetensors")
    (data / "rules.yaml").write_text("rules:\n- {pattern: '.*', spec: [fsdp, tp]}\n", encoding="utf-8")
    # Each load sends all of its tiles, whatever the workers hold of it.
    load = ("load", "/data/m.safetensors", "--rules=/data/rules.yaml", "--no-reuse", "--quiet")
    world.expect(*load)
    weight = "encoder.layer.0.attention.self.query.weight"
    world.expect("get", weight, "--out=/data/before.npy")

    def expect_same():
        world.expect("get", weight, "--out=/data/after.npy")
        assert (data / "before.npy").read_bytes() == (data / "after.npy").read_bytes(), "other bytes than before"

    world.expect("matmul", weight, weight, "--as=product")
    say("a client loads a checkpoint and multiplies")

    if world.secret is not None:
        code, printed = world.shardmesh("status", certificates=False)
        assert code == 3 and "TLS" in printed, f"a client without a certificate: {code}, {printed}"
        say(f"a client without a certificate hears: {printed.strip()}")

    if world.secret is not None:
        survive_wrong_certificates(world, certificates)

    live_with_a_full_volume(world, limited, load, expect_same)

    # A worker and then the coordinator are deleted, and come back elsewhere, while the name server keeps the address that
    # the worker had.
    for pod in (world.workers[2], world.coordinator):
        world.look_up(pod)
        assert pod.delete() == 0
        if world.secret is not None:
            make_certificates(world, certificates)
        pod.start()
        world.announce(pod)
        world.await_ready()
        expect_same()
        say(f"{pod.name} is back at {pod.address}, and with it what it held")

    world.network.remove("client")
    for pod in world.pods:
        assert pod.delete() == 0, f"{pod.name} did not end well: {pod.log_text()[-2000:]}"
    sh("umount", limited.claims["data"])


def main():
    world = World(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), [document for document in yaml.safe_load_all(sys.stdin) if document])
    try:
        scenario(world)
    except BaseException:
        for pod in world.pods:
            if pod.log.exists():
                print(f"--- {pod.name}\n{pod.log_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        for pod in world.pods:
            pod.kill()


if __name__ == "__main__":
    main()

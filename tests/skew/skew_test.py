"""Clusters whose processes are of two versions: does a version work with the one before it, as docs/howto/upgrade.md says?

    skew_test.py OLD_BIN NEW_BIN    the folders of the older and of the newer programs
    skew_test.py --self-test BIN    the same programs on both sides, then planted faults, each of which has to be found

Starts real clusters, each with one data folder, and stops them. Each check prints a line that says what it proved. Exit code
77, and a line that says so, if there are no older programs.
"""

import ast
import collections
import contextlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time

WORKERS = 4
MESH = "fsdp=2,tp=2"
SECONDS = 60  # for whatever has to happen
ALL_SECONDS = 450  # below the limit of ctest, which would leave clusters behind
LOG_BYTES = 4000  # of each log of a check that failed

# side: "old" or "new".
Programs = collections.namedtuple("Programs", "side folder")


class Failed(Exception):
    """What is wrong, in words."""


class TooLate(Exception):
    """The whole test has taken too long."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def say(text):
    print(text, flush=True)


def wait_until(what, condition):
    deadline = time.monotonic() + SECONDS
    while True:
        found = condition()
        if found:
            return found
        expect(time.monotonic() < deadline, f"after {SECONDS} s: not {what}")
        time.sleep(0.02)


# Tensors.

Tensor = collections.namedtuple("Tensor", "shape values")


def random_tensor(seed, *shape):
    dice = random.Random(seed)
    values = struct.pack(f"<{math.prod(shape)}f", *(dice.uniform(-1, 1) for _ in range(math.prod(shape))))
    return Tensor(shape, struct.unpack(f"<{math.prod(shape)}f", values))


def write_npy(file, tensor):
    header = repr({"descr": "<f4", "fortran_order": False, "shape": tensor.shape})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
                     + struct.pack(f"<{len(tensor.values)}f", *tensor.values))


def read_npy(file):
    data = file.read_bytes()
    expect(data[:8] == b"\x93NUMPY\x01\x00", f"{file.name} is no npy file of version 1.0")
    end = 10 + struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10:end].decode())
    expect(header["descr"] == "<f4" and not header["fortran_order"], f"{file.name} has another layout: {header}")
    return Tensor(tuple(header["shape"]), struct.unpack(f"<{(len(data) - end) // 4}f", data[end:]))


INPUT = random_tensor(1, 32, 48)
WEIGHT = random_tensor(2, 40, 48)
BIAS = random_tensor(3, 40)


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def linear_result():
    """gelu(INPUT * WEIGHT^T + BIAS), in double."""
    rows = [INPUT.values[i:i + 48] for i in range(0, len(INPUT.values), 48)]
    columns = [WEIGHT.values[i:i + 48] for i in range(0, len(WEIGHT.values), 48)]
    return [gelu(sum(a * b for a, b in zip(row, column)) + bias) for row in rows for column, bias in zip(columns, BIAS.values)]


RESULT = linear_result()


# Processes.

class Process:
    def __init__(self, name, log, arguments, environment):
        self.name, self.log = name, log
        self.offset = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self._process = subprocess.Popen([str(word) for word in arguments], env=environment, stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=output)
        self.pid = self._process.pid

    def text(self):
        with open(self.log, "rb") as log:
            log.seek(self.offset)
            return log.read().decode(errors="replace")

    def exit_code(self):
        return self._process.poll()

    def wait(self):
        try:
            return self._process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} has not ended after {SECONDS} s") from None

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        code = self.wait()
        expect(code == 0, f"{self.name} ended with {code} when it was told to stop: {self.text()[-LOG_BYTES:]}")

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Place:
    """A folder of a check, with an environment in which its commands do not meet those of the user."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        for name in ("home", "run"):
            (folder / name).mkdir()
        self.environment = {**os.environ, "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run"),
                            "XDG_CONFIG_HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home")}
        for name in [name for name in self.environment if name.startswith("SHARDMESH_")]:
            del self.environment[name]

    def start(self, name, *arguments):
        process = Process(name, self.folder / f"{name.split(' ')[-1]}.log", arguments, self.environment)
        self.processes.append(process)
        return process

    def run(self, programs, *arguments):
        """What a command prints; it has to succeed."""
        command = [str(programs.folder / "shardmesh"), *[str(word) for word in arguments]]
        try:
            ran = subprocess.run(command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, timeout=2 * SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"the {programs.side} command line has not ended: shardmesh {' '.join(command[1:])}") from None
        expect(ran.returncode == 0, f"the {programs.side} command line failed with {ran.returncode}: "
                                    f"shardmesh {' '.join(command[1:])}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def logs(self):
        for log in sorted(self.folder.rglob("*.log")):
            yield f"--- {log.name}\n{log.read_text(errors='replace')[-LOG_BYTES:]}"

    def end(self):
        for process in self.processes:
            process.kill()


class User:
    """Puts arrays, reads all that were put before, and computes with them, each time that it is asked to."""

    def __init__(self, place, *where):
        self.place, self.where = place, where
        self.put = {}  # arrays that lie on disk, by name
        self.rules = []

    def run(self, programs, *arguments):
        return self.place.run(programs, *arguments, *self.where, "--deadline=60s")

    def _put(self, programs, name, tensor, spec):
        file = self.place.folder / f"{name}.npy"
        write_npy(file, tensor)
        self.run(programs, "put", file, "--as", name, "--spec", spec)
        self.put[name] = tensor

    def _get(self, programs, name):
        file = self.place.folder / "read.npy"
        self.run(programs, "get", name, "--out", file)
        return read_npy(file)

    def states(self, programs):
        return {array["name"]: array["state"] for array in json.loads(self.run(programs, "ls", "-o", "json"))}

    def begin(self, programs):
        self._put(programs, "input", INPUT, "fsdp,-")
        self._put(programs, "weight", WEIGHT, "tp,fsdp")
        self._put(programs, "bias", BIAS, "tp")

    def read_all(self, programs):
        for name, tensor in self.put.items():
            expect(self._get(programs, name) == tensor, f'the array "{name}", read by the {programs.side} command line, '
                                                        "is not what was put")

    def use(self, programs):
        states = self.states(programs)
        lost = [name for name in self.put if states.get(name) != "available"]
        expect(not lost, f"these arrays lie on disk and are not available: {lost}; `ls` shows {states}")
        number = len(self.put)
        self._put(programs, f"array-{number}", random_tensor(number, 64, 128), ("fsdp,tp", "tp,fsdp", "-,fsdp+tp")[number % 3])
        self.read_all(programs)
        self.run(programs, "linear", "--input", "input", "--weight", "weight", "--bias", "bias", "--activation", "gelu",
                 "--as", "result")
        result = self._get(programs, "result")
        expect(result.shape == (32, 40), f"the result has shape {result.shape}")
        error = max(abs(a - b) for a, b in zip(result.values, RESULT))
        expect(error < 1e-4, f"a result differs by {error} from plain loops in double")
        gathered = self.place.folder / "gathered.npy"
        self.run(programs, "collective", "all-gather", "weight", "--axes", "fsdp", "--dimension", 1, "--out", gathered)
        expect(read_npy(gathered) == WEIGHT, "an all-gather along fsdp gave other values than the array has")
        self._define(programs)

    def _define(self, programs):
        name = f"rules-{len(self.rules)}"
        file = self.place.folder / "rules.yaml"
        file.write_text("rules:\n- {pattern: '.*bias', spec: [tp]}\n- {pattern: '.*', spec: [fsdp, tp]}\n", encoding="utf-8")
        self.run(programs, "catalog", "put", "rules", name, file)
        self.rules.append(name)
        listed = self.run(programs, "catalog", "ls", "rules")
        expect(all(rules in listed for rules in self.rules), f"`catalog ls` does not show all of {self.rules}:\n{listed}")

    def ask(self, programs):
        """Calls that read, and one that removes."""
        for command in (["status"], ["version"], ["links"], ["describe", "weight"], ["admin", "sessions"],
                        ["resolve", "--spec", "fsdp,tp", "--shape", "64x128"], ["reshard", "--from", "fsdp,-", "--to", "-,tp",
                                                                                 "--shape", "64x128"],
                        ["tiles", "--spec", "fsdp,tp", "--shape", "64x128"], ["catalog", "get", "rules", self.rules[0]],
                        ["admin", "snapshot", self.place.folder / f"{programs.side}.snapshot"]):
            self.run(programs, *command)
        self.run(programs, "rm", "result")
        expect("result" not in self.states(programs), "a name that was removed is still there")


class Cluster:
    def __init__(self, place, coordinator, workers, transport="auto"):
        self.place, self.transport = place, transport
        self.port = 0
        self.coordinator = None
        self.workers = [None] * WORKERS
        (place.folder / "data").mkdir()
        self.start_coordinator(coordinator)
        for rank in range(WORKERS):
            self.start_worker(rank, workers)
        self.user = User(place, f"--address=127.0.0.1:{self.port}")

    @property
    def state(self):
        return self.place.folder / "data" / "coordinator"

    def launch_coordinator(self, programs, *flags):
        self.coordinator = self.place.start(
            f"the {programs.side} coordinator", programs.folder / "shardmesh-coordinator", f"--listen=127.0.0.1:{self.port}",
            "--http-listen=", f"--mesh={MESH}", f"--data-dir={self.state}", *flags)

    def start_coordinator(self, programs, *flags):
        self.launch_coordinator(programs, *flags)

        def port():
            expect(self.coordinator.exit_code() is None, f"the {programs.side} coordinator ended: {self.coordinator.text()}")
            return re.search(r"coordinator serves address=127\.0\.0\.1:(\d+)", self.coordinator.text())

        self.port = int(wait_until(f"a {programs.side} coordinator that serves", port)[1])

    def replace_coordinator(self, programs):
        self.coordinator.stop()
        self.start_coordinator(programs)

    def start_worker(self, rank, programs, port=None, folder=None):
        name = f"worker-{rank}"
        worker = self.place.start(
            f"the {programs.side} {name}", programs.folder / "shardmesh-worker", f"--coordinator=127.0.0.1:{port or self.port}",
            "--listen=127.0.0.1:0", f"--identity={name}", "--memory=64MiB", f"--transport={self.transport}",
            f"--data-dir={folder or self.place.folder / 'data' / name}")
        if rank < WORKERS:
            self.workers[rank] = worker
        return worker

    def replace_worker(self, rank, programs):
        self.workers[rank].stop()
        self.start_worker(rank, programs)

    def wait_complete(self, programs):
        """As the page says: until `shardmesh status` says `complete`."""
        def is_complete():
            for worker in self.workers:
                expect(worker.exit_code() is None, f"{worker.name} ended with {worker.exit_code()}: {worker.text()[-LOG_BYTES:]}")
            status = self.user.run(programs, "status")
            return re.search(r'^Mesh "default" .*: complete$', status, re.MULTILINE)

        wait_until("a mesh that is complete", is_complete)

    def protocols(self, programs):
        """The oldest and the newest protocol of the coordinator."""
        server = json.loads(self.user.run(programs, "version", "-o", "json"))["server"]
        return server["min_protocol"], server["max_protocol"]


class Proxy:
    """Passes the bytes of one connection on, and replaces the first that match a pattern."""

    def __init__(self, port, to_server=None, to_client=None):
        self._port, self._rewrites = port, {"to server": to_server, "to client": to_client}
        self.replaced = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target, way in ((client, server, "to server"), (server, client, "to client")):
                    threading.Thread(target=self._copy, args=(source, target, self._rewrites[way]), daemon=True).start()

    def _copy(self, source, target, rewrite):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if rewrite:
                    data, count = re.subn(*rewrite, data, flags=re.DOTALL)
                    self.replaced += count
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()


# The checks. Each takes a place, and the older and the newer programs, and returns what it proved.

def mixed(place, coordinator, workers, both):
    cluster = Cluster(place, coordinator, workers)
    user = cluster.user
    cluster.wait_complete(coordinator)
    user.begin(coordinator)
    for programs in both:
        user.use(programs)
    for rank in range(WORKERS):
        cluster.replace_worker(rank, workers)
    cluster.replace_coordinator(coordinator)
    cluster.wait_complete(coordinator)
    for programs in both:
        user.use(programs)
    return (f"{WORKERS} {workers.side} workers attach to the {coordinator.side} coordinator and keep, read and compute with "
            f"{len(user.put)} arrays, also after all of them were started again over their data folders")


def old_coordinator_new_workers(place, old, new):
    return mixed(place, old, new, (old, new))


def new_coordinator_old_workers(place, old, new):
    return mixed(place, new, old, (old, new))


def rolling(place, old, new, transport):
    cluster = Cluster(place, old, old, transport)
    user = cluster.user
    cluster.wait_complete(old)
    user.begin(old)
    user.use(old)
    user.run(old, "admin", "snapshot", place.folder / "before.snapshot")
    cluster.replace_coordinator(new)
    cluster.wait_complete(old)
    expect(user.states(old).get("result") == "available", "a result in the workers' memory went with the coordinator")
    user.use(old)
    for rank in range(WORKERS):
        cluster.replace_worker(rank, new)
        cluster.wait_complete(old)
        state = user.states(old).get("result")
        expect(state == "degraded", f"a worker was replaced, and `ls` calls the result in its memory {state}, not degraded")
        user.use(old)
    user.use(new)
    up = len(user.put)
    user.use(old)
    for rank in range(WORKERS):
        cluster.replace_worker(rank, old)
        cluster.wait_complete(old)
        user.use(old)
    cluster.replace_coordinator(old)
    cluster.wait_complete(old)
    user.use(old)
    return (f"coordinator, then workers one at a time, then the command line went from old to new, and in the opposite order "
            f"back, over one data folder (transport {transport}); after each step all arrays put before were as they were put, a new "
            f"one was put, and the results were right: {up} arrays after the way there, {len(user.put)} after the way back")


def rolling_upgrade_and_back(place, old, new):
    return rolling(place, old, new, "auto")


def rolling_upgrade_and_back_over_streams(place, old, new):
    return rolling(place, old, new, "stream")


def command_line(place, cluster_of, programs):
    cluster = Cluster(place, cluster_of, cluster_of)
    cluster.wait_complete(programs)
    cluster.user.begin(programs)
    cluster.user.use(programs)
    cluster.user.ask(programs)
    cluster.user.use(cluster_of)
    return (f"the {programs.side} command line puts, reads, computes, defines, asks, snapshots and removes on a cluster of "
            f"{cluster_of.side} programs")


def old_command_line_new_cluster(place, old, new):
    return command_line(place, new, old)


def new_command_line_old_cluster(place, old, new):
    return command_line(place, old, new)


def local_cluster(place, old, new):
    user = User(place)
    try:
        place.run(old, "up", "--mesh", MESH, "--data-dir", "data", "--detach")
        user.begin(old)
        user.use(old)
        place.run(old, "admin", "snapshot", "before.snapshot")
        place.run(old, "down")
        place.run(new, "up", "--data-dir", "data", "--detach")
        user.use(new)
        user.use(old)
        place.run(old, "down")  # of what the newer program started
        place.run(old, "up", "--data-dir", "data", "--detach")
        user.use(old)
        user.use(new)
        place.run(new, "down")  # and the reverse
    finally:
        with contextlib.suppress(Failed):
            place.run(new, "down")
    return ("a cluster of the old `up --data-dir` was continued by the new `up` and again by the old one with all arrays; each "
            "program found and stopped the cluster that the other had started")


def is_refused(what, process, *words):
    code = process.wait()
    text = process.text()
    expect(code == 1, f"{what} ended with {code}, not 1: {text[-LOG_BYTES:]}")
    missing = [word for word in words if word not in text]
    expect(not missing, f"the log of {what} does not say {missing}: {text[-LOG_BYTES:]}")


def beyond_the_window(place, old, new):
    """A proxy replaces the versions in real messages, because no program of a version beyond the window exists.

    The log has the message of PROTOCOL_MISMATCH, by which docs/runbooks/worker-not-ready.md knows it, and not the reason's name.
    Of FAILED_PRECONDITION a worker ends only for such reasons; otherwise it tries again.
    """
    for coordinator, worker in ((old, new), (new, old)):
        folder = place.folder / f"{coordinator.side}-coordinator"
        folder.mkdir()
        one = Place(folder)
        try:
            # Its workers hold the ranks; the ones that are refused come beside them.
            cluster = Cluster(one, coordinator, coordinator)
            cluster.wait_complete(coordinator)
            oldest, newest = cluster.protocols(coordinator)
            beyond = newest + 2
            # Hello.protocol: field 5, a message of two numbers (worker and coordinator may know different ones).
            hello = rb"\x2a\x04\x08[\x01-\x7e]\x10[\x01-\x7e]", bytes([0x2a, 4, 8, beyond, 0x10, beyond])
            # Welcome.term and .protocol: fields 2 and 3, before field 4. The coordinator is at its first term.
            welcome = rb"\x10\x01\x18[\x01-\x7e]\x22", bytes([0x10, 1, 0x18, beyond, 0x22])
            for rank, rewrite, words in (
                    (WORKERS, {"to_server": hello}, f"speaks protocol {beyond} to {beyond}, this coordinator {oldest} to {newest};"),
                    (WORKERS + 1, {"to_client": welcome}, f"the coordinator speaks protocol {beyond}, this worker")):
                proxy = Proxy(cluster.port, **rewrite)
                try:
                    process = cluster.start_worker(rank, worker, proxy.port)
                    what = f"the {worker.side} worker whose {'hello' if 'to_server' in rewrite else 'welcome'} was changed"
                    is_refused(what, process, "the coordinator refuses this worker", words)
                    expect(proxy.replaced == 1, f"{proxy.replaced} messages were changed, not one")
                finally:
                    proxy.close()
            cluster.wait_complete(coordinator)
        finally:
            one.end()
    return ("a worker that speaks only a protocol beyond the window is refused by the coordinator, and a coordinator that does is "
            "refused by the worker; the worker says so and ends, the cluster goes on; old and new in both places")


def newer_schema(place, old, new):
    cluster = Cluster(place, old, old)
    user = cluster.user
    cluster.wait_complete(old)
    user.begin(old)
    user.use(old)
    snapshot = place.folder / "before.snapshot"
    user.run(old, "admin", "snapshot", snapshot)
    kept, rules = dict(user.put), list(user.rules)
    cluster.replace_coordinator(new)
    cluster.wait_complete(old)
    user.use(new)
    cluster.coordinator.stop()
    with contextlib.closing(sqlite3.connect(cluster.state / "state.db")) as state:
        version = state.execute("PRAGMA user_version").fetchone()[0]  # the newest that the newer programs write
        state.execute(f"PRAGMA user_version = {version + 1}")
    words = f"state.db has schema version {version + 1}, this build reads versions 1 to {version}"
    cluster.launch_coordinator(old)
    is_refused("the old coordinator of a state of a newer schema", cluster.coordinator, words)
    # The way back that docs/howto/upgrade.md has for this.
    cluster.launch_coordinator(old, f"--restore={snapshot}")
    is_refused("the old coordinator that is to restore over it", cluster.coordinator, words)
    cluster.state.rename(place.folder / "newer")
    cluster.start_coordinator(old, f"--restore={snapshot}")
    cluster.wait_complete(old)
    user.put, user.rules = kept, rules
    user.read_all(old)
    user.use(old)
    return ("a state of a newer schema is refused, also by --restore; with that state moved away, the snapshot "
            "from before the upgrade brings all arrays of that time back")


CHECKS = (old_coordinator_new_workers, new_coordinator_old_workers, rolling_upgrade_and_back,
          rolling_upgrade_and_back_over_streams, old_command_line_new_cluster, new_command_line_old_cluster, local_cluster,
          beyond_the_window, newer_schema)


def run_check(check, old, new):
    """What the check proved, and what is wrong; one of them is None."""
    with tempfile.TemporaryDirectory(prefix="shardmesh-skew-") as folder:
        place = Place(pathlib.Path(folder))
        try:
            return check(place, old, new), None
        except Failed as failure:
            return None, "\n".join([str(failure), *place.logs()])
        finally:
            place.end()


def run_checks(old, new, checks=CHECKS):
    failed = []
    for check in checks:
        name = check.__name__.replace("_", " ")
        start = time.monotonic()
        proved, failure = run_check(check, old, new)
        say(f"ok: {name}: {proved} ({time.monotonic() - start:.1f} s)" if proved else f"FAILED: {name}: {failure}")
        if failure:
            failed.append(name)
    if failed:
        say(f"FAILED: {', '.join(failed)}")
    return not failed


def plant(folder, programs, program, text):
    """A copy of the programs of which one is a script."""
    folder.mkdir()
    for name in ("shardmesh", "shardmesh-coordinator", "shardmesh-worker"):
        (folder / name).symlink_to(programs / name)
    (folder / program).unlink()
    (folder / program).write_text(f"#!/usr/bin/env bash\nprogram={programs / program}\n{text}", encoding="utf-8")
    (folder / program).chmod(0o755)
    return Programs("old", folder)


def self_test(programs):
    """Faults of the older programs that a check must find, and words of what it then says."""
    new = Programs("new", programs)
    faults = (
        ("shardmesh-worker", "echo 'no common protocol' >&2; exit 1", new_coordinator_old_workers,
         ("the old worker-", "ended with 1", "no common protocol")),
        ("shardmesh", '"$program" "$@" || exit\nif [[ $1 == get ]]; then printf X | dd of="$4" bs=1 seek=200 conv=notrunc 2>/dev/null; fi',
         new_command_line_old_cluster, ("read by the old command line, is not what was put",)),
        ("shardmesh-coordinator", 'if [[ -e $HOME/was-here ]]; then for flag; do case $flag in --data-dir=*) rm -rf "${flag#*=}";; esac; '
                                  'done; fi\ntouch "$HOME/was-here"\nexec "$program" "$@"', old_coordinator_new_workers,
         ("holds data of cluster",)),
    )
    with tempfile.TemporaryDirectory(prefix="shardmesh-skew-") as folder:
        for number, (program, text, check, words) in enumerate(faults):
            old = plant(pathlib.Path(folder) / str(number), programs, program, text)
            proved, failure = run_check(check, old, new)
            expect(failure, f"a planted fault of {program} was not found; the check says: {proved}")
            expect(all(word in failure for word in words), f"of a planted fault of {program} the check says something else: {failure}")
            say(f"ok: a planted fault of {program} is found: {failure.splitlines()[0][:150]}")


def main(arguments):
    if len(arguments) != 2:
        print(__doc__)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def too_late(*_):
        raise TooLate

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(ALL_SECONDS)
    is_self_test = arguments[0] == "--self-test"
    old, new = [pathlib.Path(argument).absolute() for argument in (arguments[1] if is_self_test else arguments[0], arguments[1])]
    if not (old / "shardmesh").exists():
        say(f"SKIPPED: {old} holds no programs, so nothing is tested of two versions in one cluster; `./dev skew` builds them")
        return 77
    # The transport matters to the programs, not to this test.
    checks = [check for check in CHECKS if not (is_self_test and check is rolling_upgrade_and_back_over_streams)]
    try:
        if not run_checks(Programs("old", old), Programs("new", new), checks):
            return 1
        if is_self_test:
            self_test(new)
    except Failed as failure:
        say(f"FAILED: {failure}")
        return 1
    except TooLate:
        say(f"FAILED: not ended after {ALL_SECONDS} s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""S1-first: a 2 GiB checkpoint, warm in the page cache, streamed onto 2 and 4 workers.

Each sample starts a fresh cluster and loads once. Where jax is installed it loads the same file in the same run, alternating, onto as many CPU devices with the same layout, in two
ways: `whole` reads all tensors into arrays and gives device_put the tree, which takes twice the memory; `each` reads
and puts one tensor after the other. (Given the mapped file itself, device_put on CPU only points into it.)

Right before each sample, of either side, as much memory is touched and given back as it may need: a virtual machine's
memory is several times slower the first time, and who comes first would pay for all. As root, everything runs in a
network namespace of its own, with Reno instead of a congestion control that paces loopback, and without delayed ACKs.

One more load has the memory of all its processes sampled: the sum of their proportional anonymous and shared pages, so
that each page counts once and the mapped file does not. It is not timed, as the sampling slows it. Prints one JSON
object a line.

usage: load_bench.py BIN_FOLDER [--samples N]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

from own_network import enter_own_network

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "docs/examples/llama.yaml"
MEMORY_SLACK_BYTES = 300_000_000

# Reads of a whole checkpoint and its copy on the devices.
TOUCHED_BYTES = 5 << 30
TOUCH = f"""
import mmap
memory = mmap.mmap(-1, {TOUCHED_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(23)  # MADV_POPULATE_WRITE
"""

# Runs in an interpreter of its own, so that each sample starts anew. Prints seconds.
JAX_LOAD = r"""
import json, os, struct, subprocess, sys, time
path, ranks, way, touch = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("tp",))
with open(path, "rb") as file:
    size = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(size))
file = open(path, "rb")
column = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
row = ("o_proj", "down_proj")
def spec(name):
    if any(part in name for part in column): return P("tp", None)
    if any(part in name for part in row): return P(None, "tp")
    return P()
subprocess.run([sys.executable, "-c", touch], check=True)
start = time.perf_counter()
host, shardings, arrays = {}, {}, []
for name, entry in header.items():
    if name == "__metadata__": continue
    begin, end = entry["data_offsets"]
    file.seek(8 + size + begin)
    tensor = np.fromfile(file, dtype=np.float32, count=(end - begin) // 4).reshape(entry["shape"])
    sharding = NamedSharding(mesh, spec(name))
    if way == "whole":
        host[name], shardings[name] = tensor, sharding
    else:
        arrays.append(jax.device_put(tensor, sharding))
if way == "whole":
    arrays = jax.device_put(host, shardings)
jax.block_until_ready(arrays)
print(time.perf_counter() - start)
"""


def touch_memory():
    subprocess.run([sys.executable, "-c", TOUCH], check=True)


def has_jax():
    return subprocess.run([sys.executable, "-c", "import jax"], capture_output=True, check=False).returncode == 0


def resident_bytes(pid):
    """Anonymous and shared pages of a process, each page once over all processes; 0 if it is gone."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    except OSError:
        pass
    return total


class MemoryPeak:
    """The most memory that some processes have together, sampled every 20 ms."""

    def __init__(self, pids):
        self._pids = pids
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.peak_bytes = 0

    def _run(self):
        while not self._done.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, sum(resident_bytes(pid) for pid in self._pids))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def run_json(command, env):
    done = subprocess.run(command + ["--output", "json"], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"load_bench: {' '.join(command)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def load_once(shardmesh, checkpoint, ranks, measure_memory=False):
    """Seconds, bytes of all tiles, and peak bytes of all processes (0 unless measured)."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_RUNTIME_DIR=folder)
        subprocess.run([shardmesh, "up", "--mesh", f"tp={ranks}", "--detach"], env=env, check=True, capture_output=True)
        try:
            status = run_json([shardmesh, "status"], env)
            touch_memory()
            command = [shardmesh, "load", checkpoint, "--rules", str(RULES), "--quiet", "--output", "json"]
            with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
                pids = [status["pid"], *(worker["pid"] for worker in status["workers"]), client.pid]
                with MemoryPeak(pids if measure_memory else []) as memory:
                    answer = json.loads(client.communicate()[0])
            return answer["time_s"], answer["sent_bytes"], memory.peak_bytes
        finally:
            subprocess.run([shardmesh, "down"], env=env, check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--samples", type=int, default=5)
    arguments = parser.parse_args()
    network = "own network" if enter_own_network() else "host's network"
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    folder = ROOT / "build/bench"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = str(folder / "2GiB.safetensors")
    if not os.path.exists(checkpoint):
        subprocess.run([shardmesh, "make-checkpoint", "--size", "2GiB", "--out", checkpoint], check=True,
                       capture_output=True)
    with open(checkpoint, "rb") as file:  # warm
        while file.read(1 << 24):
            pass
    ways = ("whole", "each") if has_jax() else ()
    for ranks in (2, 4):
        ours = []
        theirs = {way: [] for way in ways}
        for _ in range(arguments.samples):
            ours.append(load_once(shardmesh, checkpoint, ranks)[0])
            for way in ways:
                done = subprocess.run([sys.executable, "-c", JAX_LOAD, checkpoint, str(ranks), way, TOUCH],
                                      capture_output=True, text=True, check=True)
                theirs[way].append(float(done.stdout))
        seconds = statistics.median(ours)
        for way in ways or (None,):
            peer = statistics.median(theirs[way]) if way else None
            beside = "no jax: not comparable"
            if way:
                beside = f"jax.device_put of the {'whole tree' if way == 'whole' else 'tensors one by one'}"
                beside += f" ({min(theirs[way]):.2f} to {max(theirs[way]):.2f} s)"
            print(json.dumps({
                "id": "S1-first", "what": f"stream a 2 GiB checkpoint onto {ranks} workers ({min(ours):.2f} to"
                f" {max(ours):.2f} s of {len(ours)}), {network}; {beside}",
                "ours": round(seconds, 3), "peer": None if peer is None else round(peer, 3), "unit": "s",
                "ratio": None if peer is None else round(seconds / peer, 3), "target": 1.0,
                "met": None if peer is None else seconds <= peer}), flush=True)
        _, tiles_bytes, peak_bytes = load_once(shardmesh, checkpoint, ranks, measure_memory=True)
        limit_bytes = 1.1 * tiles_bytes + MEMORY_SLACK_BYTES
        print(json.dumps({
            "id": "S1-first", "what": f"peak memory of all processes, {ranks} workers, against 1.1 x tiles + 300 MB",
            "ours": round(peak_bytes / 1e6), "peer": round(limit_bytes / 1e6), "unit": "MB",
            "ratio": round(peak_bytes / limit_bytes, 3), "target": 1.0, "met": peak_bytes <= limit_bytes}), flush=True)


if __name__ == "__main__":
    main()

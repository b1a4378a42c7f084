#!/usr/bin/env python3
"""S1: a 2 GiB checkpoint, warm in the page cache, onto 2 and 4 workers: streamed (S1-first), with `--handover on` handed
over as memory by the client (S1-handover), or with `--source workers` read by the workers (S1-workers).

With `--gather` (S1-gather) each sample streams the checkpoint onto a fresh cluster, and then a client gathers all of it
into its memory. The row sets the rate of the gathers beside that of the streams.

Each sample starts a fresh cluster and loads once. Where jax is installed it loads the same file in the same run,
alternating, onto as many CPU devices with the same layout, in two ways: `whole` reads all tensors into arrays and gives
device_put the tree, which takes twice the memory; `each` reads and puts one tensor after the other. (Given the mapped
file itself, device_put on CPU only points into it.)

Right before each sample, of either side, as much memory is touched and given back as it may need: a virtual machine's
memory is several times slower the first time, and who comes first would pay for all. As root, everything runs in a
network namespace of its own, with Reno instead of a congestion control that paces loopback, and without delayed ACKs.

One more load has the memory of all its processes sampled: the sum of their proportional anonymous pages and of their
shared memory, so that each page counts once and the mapped file does not. It is not timed, as the sampling slows it.
Prints one JSON object a line.

usage: load_bench.py BIN_FOLDER [--samples N] [--size SIZE] [--source client|workers] [--handover on|off] [--gather]
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

from checkpoints import checkpoint_of
from own_network import enter_own_network
from peers.turns import peer_interpreter
from resident_memory import resident_bytes
from touched_memory import touch_memory

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "docs/examples/llama.yaml"
MEMORY_SLACK_BYTES = 300_000_000
GATHER_TARGET = 0.5  # of the rate of the streams
PEER = ROOT / "bench/peers/jax_peer.py"


class MemoryPeak:
    """The most memory that some processes have together, sampled every 20 ms."""

    def __init__(self, pids):
        self._pids = pids
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.peak_bytes = 0

    def _run(self):
        while not self._done.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pids))

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


@contextlib.contextmanager
def cluster(shardmesh, checkpoint, ranks, source):
    """Starts a cluster. Yields the environment in which commands reach it, and its status."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_RUNTIME_DIR=folder)
        up = [shardmesh, "up", "--mesh", f"tp={ranks}", "--detach"]
        if source == "workers":
            up += ["--read-root", os.path.dirname(os.path.realpath(checkpoint))]
        subprocess.run(up, env=env, check=True, capture_output=True)
        try:
            yield env, run_json([shardmesh, "status"], env)
        finally:
            subprocess.run([shardmesh, "down"], env=env, check=True, capture_output=True)


def load_command(shardmesh, checkpoint, source, handover):
    return [shardmesh, "load", checkpoint, "--rules", str(RULES), "--quiet", "--source", source, "--handover", handover]


def load_once(shardmesh, checkpoint, ranks, source, handover, measure_memory=False):
    """Seconds, bytes of all tiles, and peak bytes of all processes (0 unless measured)."""
    with cluster(shardmesh, checkpoint, ranks, source) as (env, status):
        touch_memory()
        command = load_command(shardmesh, checkpoint, source, handover) + ["--output", "json"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            pids = [status["pid"], *(worker["pid"] for worker in status["workers"]), client.pid]
            with MemoryPeak(pids if measure_memory else []) as memory:
                out, error = client.communicate()
        if client.returncode != 0:
            sys.exit(f"load_bench: {' '.join(command)} failed: {error.strip()}")
        answer = json.loads(out)
        return answer["time_s"], answer["tile_bytes"], memory.peak_bytes


def measure_gathers(arguments, shardmesh, checkpoint, network):
    """Prints the rows of S1-gather."""
    for ranks in (2, 4):
        streams, gathers = [], []
        for _ in range(arguments.samples):
            with cluster(shardmesh, checkpoint, ranks, "client") as (env, status):
                touch_memory()
                streams.append(run_json(load_command(shardmesh, checkpoint, "client", "off"), env)["time_s"])
                touch_memory()
                done = subprocess.run([os.path.join(arguments.bin, "gather_bench"), status["address"]], env=env, check=True,
                                      stdout=subprocess.PIPE, text=True)
                answer = json.loads(done.stdout)
                gathers.append(answer["time_s"])
        ours, peer = (answer["bytes"] / statistics.median(times) / 1e6 for times in (gathers, streams))
        print(json.dumps({
            "id": "S1-gather", "what": f"gather of {arguments.size} from {ranks} workers into a client's memory"
            f" ({min(gathers):.2f} to {max(gathers):.2f} s of {len(gathers)}), {network}; streamed onto them"
            f" ({min(streams):.2f} to {max(streams):.2f} s)",
            "ours": round(ours), "peer": round(peer), "unit": "MB/s", "ratio": round(ours / peer, 3),
            "target": GATHER_TARGET, "met": ours >= GATHER_TARGET * peer}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--size", default="2GiB", help="of the checkpoint (default: 2GiB)")
    parser.add_argument("--source", choices=("client", "workers"), default="client")
    parser.add_argument("--handover", choices=("on", "off"), default="off")
    parser.add_argument("--gather", action="store_true", help="measure S1-gather alone")
    arguments = parser.parse_args()
    source, handover = arguments.source, arguments.handover
    row, way_of_ours, target = {
        ("client", "off"): ("S1-first", f"stream a checkpoint of {arguments.size} onto", 1 / 1.3),
        ("client", "on"): ("S1-handover", f"hand a checkpoint of {arguments.size} over to", 1 / 1.3),
        ("workers", "off"): ("S1-workers", f"a checkpoint of {arguments.size}, read by", 0.5),
    }.get((source, handover), (None,) * 3)
    if row is None:
        parser.error("--handover is about what the client sends; leave out --source workers")
    if arguments.gather and row != "S1-first":
        parser.error("--gather is measured beside streams; leave out --source and --handover")
    network = "own network" if enter_own_network() else "host's network"
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    folder = ROOT / "build/bench"
    checkpoint = checkpoint_of(shardmesh, folder, arguments.size)
    with open(checkpoint, "rb") as file:  # warm
        while file.read(1 << 24):
            pass
    if arguments.gather:
        return measure_gathers(arguments, shardmesh, checkpoint, network)
    python = peer_interpreter("jax")
    ways = ("whole", "each") if python else ()
    for ranks in (2, 4):
        ours = []
        theirs = {way: [] for way in ways}
        for _ in range(arguments.samples):
            ours.append(load_once(shardmesh, checkpoint, ranks, source, handover)[0])
            for way in ways:
                done = subprocess.run([python, str(PEER), "load", checkpoint, str(ranks), way],
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
                "id": row, "what": f"{way_of_ours} {ranks} workers ({min(ours):.2f} to"
                f" {max(ours):.2f} s of {len(ours)}), {network}; {beside}",
                "ours": round(seconds, 3), "peer": None if peer is None else round(peer, 3), "unit": "s",
                "ratio": None if peer is None else round(seconds / peer, 3), "target": round(target, 3),
                "met": None if peer is None else seconds <= target * peer}), flush=True)
        _, tiles_bytes, peak_bytes = load_once(shardmesh, checkpoint, ranks, source, handover, measure_memory=True)
        limit_bytes = 1.1 * tiles_bytes + MEMORY_SLACK_BYTES
        print(json.dumps({
            "id": row, "what": f"peak memory of all processes, {ranks} workers, against 1.1 x tiles + 300 MB",
            "ours": round(peak_bytes / 1e6), "peer": round(limit_bytes / 1e6), "unit": "MB",
            "ratio": round(peak_bytes / limit_bytes, 3), "target": 1.0, "met": peak_bytes <= limit_bytes}), flush=True)


if __name__ == "__main__":
    main()

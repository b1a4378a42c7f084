#!/usr/bin/env python3
"""S4-transfers: the Reshard RPC where workers fetch tiles from one another, beside the all-to-all of the same bytes.

Arrays move so onto another mesh, and on disk. 1 GiB of F32 goes from rows to columns on 2 and 4 workers: onto a second mesh
of the same workers, in memory; and on its own mesh in a cluster with a data folder, where the workers also write the new
array to the disk and sync it. Both sides take turns on one cluster. A reshard is timed from the client's call to the
answer, the all-to-all from its admission to its commit. The all-to-all leaves its result in memory in both clusters. The
row of dd says how long the disk takes for the bytes of the new array alone.

The first turn of each side is not counted: it takes memory from the host, which later turns of both sides have again. Each
turn begins once the workers have nothing to do: after a move they compute digests of the new tiles.

Ends with an error if other bytes move than the lower bound, or if elements of the new array differ from those of the old
one. Prints one JSON object a line.

usage: transfer_bench.py BIN_FOLDER [--mib N] [--samples N] [--folder DIR]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from bench_cluster import Cluster
from own_network import enter_own_network

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 16_384
TARGET = 1.2  # of the time of the all-to-all
IDLE_TICKS = 2  # of a process in half a second that has nothing to do
CHECKED_COLUMNS = 64  # of the elements that are compared, from the middle of the array


def processor_ticks(pids):
    """The processor time of these processes so far, in the kernel's ticks."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks


def settle(pids):
    """Waits until the processes have used next to no processor time for a while, at most half a minute."""
    for _ in range(60):
        before = processor_ticks(pids)
        time.sleep(0.5)
        if processor_ticks(pids) - before <= IDLE_TICKS * len(pids):
            return
    sys.exit("transfer_bench: the workers are still busy after half a minute")


def check(cluster, folder):
    """Ends the benchmark unless some columns of "new" are those of "old"."""
    middle = f":,{COLUMNS // 2 - CHECKED_COLUMNS // 2}:{COLUMNS // 2 + CHECKED_COLUMNS // 2}"
    files = [pathlib.Path(folder, f"{name}-part.npy") for name in ("old", "new")]
    for name, file in zip(("old", "new"), files):
        cluster.run("get", name, "--slice", middle, "--out", str(file), "--quiet")
    if files[0].read_bytes() != files[1].read_bytes():
        sys.exit("transfer_bench: the new array differs from the old one")
    for file in files:
        file.unlink()


def dd_seconds(folder, mib):
    path = os.path.join(folder, "dd")
    start = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=fdatasync"], check=True,
                   capture_output=True)
    seconds = time.perf_counter() - start
    os.remove(path)
    return seconds


def measure(arguments, ranks, on_disk, folder):
    """Seconds of reshards, of all-to-alls, and with `on_disk` of dd."""
    rows = (arguments.mib << 20) // 4 // COLUMNS
    size_bytes = rows * COLUMNS * 4
    tensor = os.path.join(folder, "old.npy")
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    subprocess.run([shardmesh, "make-tensor", "--shape", f"{rows},{COLUMNS}", "--out", tensor], check=True, capture_output=True)
    # Workers keep an eighth of their memory for the next tiles: here as much as two tiles of each.
    flags = ["--mesh", f"tp={ranks}", "--memory", f"{16 * arguments.mib // ranks}MiB"]
    if on_disk:
        flags += ["--data-dir", os.path.join(folder, "data")]
    times = {"ours": [], "all-to-all": [], "dd": []}
    with Cluster(shardmesh, *flags) as cluster:
        cluster.run("put", tensor, "--as", "old", "--spec", "tp,-", "--quiet")
        to = ["--to", "-,tp"]
        if not on_disk:
            mesh = pathlib.Path(folder, "mesh.yaml")
            workers = ", ".join(f"worker-{rank}" for rank in range(ranks))
            mesh.write_text(f"axes: [{{name: tp, size: {ranks}}}]\nworkers: [{workers}]\n", encoding="utf-8")
            cluster.run("catalog", "put", "mesh", "second", str(mesh))
            to += ["--mesh", "second"]
        pids = [worker["pid"] for worker in cluster.run("status")["workers"]]
        for sample in range(-1, arguments.samples):
            settle(pids)
            moved = cluster.run("reshard", "old", *to, "--as", "new", "--quiet")
            if moved["moved_bytes"] != size_bytes // ranks * (ranks - 1):
                sys.exit(f"transfer_bench: {moved['moved_bytes']} bytes moved of {size_bytes} on {ranks} workers")
            durability = cluster.run("describe", "new")["durability"]
            if durability != ("disk" if on_disk else "memory"):
                sys.exit(f"transfer_bench: the new array is {durability}")
            check(cluster, folder)
            cluster.run("rm", "new")
            cluster.run("admin", "cache", "drop")
            settle(pids)
            exchanged = cluster.run("collective", "all-to-all", "old", "--axes", "tp", "--dimension", "0",
                                    "--split-dimension", "1")
            written = dd_seconds(folder, arguments.mib) if on_disk else None
            if sample >= 0:
                times["ours"].append(moved["time_s"])
                times["all-to-all"].append(exchanged["total_s"])
                if on_disk:
                    times["dd"].append(written)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--folder", help="where to write (default: build/bench)")
    arguments = parser.parse_args()
    network = "own network" if enter_own_network() else "host's network"
    bench = pathlib.Path(arguments.folder) if arguments.folder else ROOT / "build/bench"
    bench.mkdir(parents=True, exist_ok=True)
    for ranks in (2, 4):
        for on_disk in (False, True):
            with tempfile.TemporaryDirectory(dir=bench) as folder:
                times = measure(arguments, ranks, on_disk, folder)
            ours = times.pop("ours")
            seconds = statistics.median(ours)
            for name, theirs in times.items():
                if not theirs:
                    continue
                peer = statistics.median(theirs)
                target = TARGET if name == "all-to-all" else None
                print(json.dumps({
                    "id": "S4-transfers", "what": f"reshard of {arguments.mib} MiB from rows to columns on {ranks} workers by"
                    f" transfers, {'on disk' if on_disk else 'onto another mesh'} ({min(ours):.2f} to {max(ours):.2f} s of"
                    f" {len(ours)}), {network}; {name} of the same bytes ({min(theirs):.2f} to {max(theirs):.2f} s)",
                    "ours": round(1e3 * seconds, 1), "peer": round(1e3 * peer, 1), "unit": "ms",
                    "ratio": round(seconds / peer, 2), "target": target,
                    "met": None if target is None else seconds <= target * peer}), flush=True)


if __name__ == "__main__":
    main()

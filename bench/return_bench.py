#!/usr/bin/env python3
"""S5: a second load of a 2 GiB checkpoint after `down` and `up` of a cluster with a data folder: bytes that move, and time.
S6: the repair of a lost rank's 512 MiB from a replica, beside a put of as many bytes onto one worker by the client.

S5 begins each sample with a restart of the cluster. S6 kills one of two workers, starts it again with `up`, and takes the
rate from the times of the repair's operation; puts and repairs take turns. Prints one JSON object a line.

usage: return_bench.py BIN_FOLDER [--samples N] [--folder DIR]
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from checkpoints import checkpoint_of
from bench_cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "docs/examples/llama.yaml"
S5_SECONDS = 1.0
S6_TARGET = 0.7  # of the rate of the put
S6_BYTES = 512 << 20


def measure_second_loads(shardmesh, checkpoint, ranks, samples, folder):
    """The answers of the second loads."""
    answers = []
    with Cluster(shardmesh, "--mesh", f"tp={ranks}", "--data-dir", folder) as cluster:
        load = ("load", checkpoint, "--rules", str(RULES), "--quiet")
        cluster.run(*load)
        for _ in range(samples):
            cluster.down()
            cluster.up()
            answers.append(cluster.run(*load))
    return answers


def seconds_of(operation):
    start, end = (datetime.datetime.fromisoformat(operation[key].replace("Z", "+00:00"))
                  for key in ("start_time", "end_time"))
    return (end - start).total_seconds()


def newest_of(cluster, kind, count):
    """The newest operation of this kind, once `count` of them have ended."""
    for _ in range(600):
        answer = cluster.run("ops", "ls", "--kind", kind)
        done = [each for each in answer["operations"] if each["state"] == "done"]
        if len(done) >= count:
            return max(done, key=lambda each: each["number"])
        time.sleep(0.1)
    sys.exit(f"return_bench: fewer than {count} operations of kind {kind} are done after a minute")


def measure_repairs(shardmesh, tensor, samples):
    """Seconds of puts onto a worker that has just started, of puts onto one that has had the memory before, and of
    repairs, whose workers have just started."""
    first, again, repairs = [], [], []
    with Cluster(shardmesh, "--mesh", "tp=2") as pair:
        pair.run("put", tensor, "--as", "replicated", "--spec", "-")
        for sample in range(samples):
            with Cluster(shardmesh, "--mesh", "tp=1") as single:
                for number, seconds in enumerate((first, again)):
                    single.run("put", tensor, "--as", "whole", "--spec", "-", "--source", "client", "--no-reuse")
                    seconds.append(seconds_of(newest_of(single, "put", number + 1)))
                    single.run("rm", "whole")
                    single.run("admin", "cache", "drop")  # which would keep the tile, and the memory with it
            workers = pair.run("status")["workers"]
            victim = next(worker for worker in workers if worker["identity"] == "worker-1")
            os.kill(victim["pid"], signal.SIGKILL)
            time.sleep(1)  # until the coordinator has seen it
            pair.up()
            newest = newest_of(pair, "repair", sample + 1)
            if newest["done_bytes"] != S6_BYTES:
                sys.exit(f"return_bench: the repair brought {newest['done_bytes']} bytes")
            repairs.append(seconds_of(newest))
    return first, again, repairs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--folder", help="where to write (default: build/bench)")
    arguments = parser.parse_args()
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    bench = pathlib.Path(arguments.folder) if arguments.folder else ROOT / "build/bench"
    checkpoint = checkpoint_of(shardmesh, bench)
    for ranks in (2, 4):
        with tempfile.TemporaryDirectory(dir=bench) as folder:
            answers = measure_second_loads(shardmesh, checkpoint, ranks, arguments.samples, folder)
        times = [answer["time_s"] for answer in answers]
        moved = max(answer["sent_bytes"] + answer["moved_bytes"] for answer in answers)
        print(json.dumps({
            "id": "S5", "what": f"second load of 2 GiB onto {ranks} workers after a restart ({min(times):.2f} to"
            f" {max(times):.2f} s of {len(times)}); at most {moved} bytes moved",
            "ours": round(statistics.median(times), 3), "peer": None, "unit": "s", "ratio": None, "target": S5_SECONDS,
            "met": statistics.median(times) <= S5_SECONDS and moved == 0}), flush=True)
    with tempfile.TemporaryDirectory(dir=bench) as folder:
        tensor = os.path.join(folder, "x.npy")
        subprocess.run([shardmesh, "make-tensor", "--shape", f"{S6_BYTES // 4 // 4096},4096", "--out", tensor], check=True,
                       capture_output=True)
        first, again, repairs = measure_repairs(shardmesh, tensor, arguments.samples)
    for what, puts in (("", first), (" into memory that it has had before", again)):
        rate, peer = (S6_BYTES / statistics.median(times) / 1e6 for times in (repairs, puts))
        print(json.dumps({
            "id": "S6", "what": f"repair of 512 MiB from a replica ({min(repairs):.2f} to {max(repairs):.2f} s of"
            f" {len(repairs)}); a put of as much by the client onto one worker{what} ({min(puts):.2f} to {max(puts):.2f} s)",
            "ours": round(rate), "peer": round(peer), "unit": "MB/s", "ratio": round(rate / peer, 3), "target": S6_TARGET,
            "met": rate >= S6_TARGET * peer}), flush=True)


if __name__ == "__main__":
    main()

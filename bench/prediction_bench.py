#!/usr/bin/env python3
"""How near predictions are: 50 random programs on 2 workers, their predicted time, memory and bytes beside the measured ones.

Each program (bench/prediction_bench.cc makes it from its number) has a cluster of its own. Time: that of a step, from
admission to commit, the median of 7. Bytes: what all workers sent. Memory: by how much the memory for shards of a worker,
used or kept for reuse, grew by runs whose last results are still there. Time is judged where a step takes 10 ms or more, and
memory where 16 MiB or more were predicted. Prints one JSON object a line; the last three are the sums.

usage: prediction_bench.py BIN_FOLDER [--first N] [--programs N]
"""

import argparse
import http.client
import pathlib
import re
import statistics

from bench_cluster import Cluster
from peers.turns import TurnProgram
from results import report

RANKS = 2
LEAST_SECONDS = 0.010
LEAST_BYTES = 16 << 20
TIME_LIMIT = 0.30
EXACT_LIMIT = 0.10
GAUGES = re.compile(r"^shardmesh_worker_store_(?:used|idle)_bytes(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def store_bytes(address):
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/metrics")
    return sum(float(value) for value in GAUGES.findall(connection.getresponse().read().decode()))


def largest_store(status):
    return max(store_bytes(worker["metrics"]) for worker in status["workers"])


def measure(folder, seed):
    """A program's figures: pairs of predicted and measured."""
    with Cluster(folder / "shardmesh", "--mesh", f"tp={RANKS}") as cluster:
        status = cluster.run("status")
        with TurnProgram(folder / "prediction_bench", status["address"], seed) as program:
            before = largest_store(status)
            answer = program.ask_json("run")
            grown = largest_store(status) - before
            what = program.ask("what")
    predicted = answer["predicted"]
    parts = ("kernel_s", "collective_s", "overhead_s")
    return {"what": what, "time": (sum(predicted.get(part, 0) for part in parts), answer["total_s"]),
            "kernel": (predicted["kernel_s"], answer["kernel_s"]), "collective": (predicted["collective_s"], answer["collective_s"]),
            "bytes": (predicted.get("sent_bytes", 0), answer["sent_bytes"]), "memory": (predicted["peak_bytes"], grown)}


def is_near(pair, limit):
    predicted, measured = pair
    return abs(predicted - measured) <= limit * max(measured, 1e-9)


def report_sum(key, what, figures, name, limit):
    near = sum(is_near(figure[name], limit) for figure in figures)
    ratios = sorted(predicted / measured for predicted, measured in (figure[name] for figure in figures) if measured)
    spread = f"predicted / measured {ratios[0]:.2f}..{ratios[-1]:.2f}, median {statistics.median(ratios):.2f}" if ratios else "none"
    report(key, f"{what}, within {limit:.0%}", near, "programs", peer=len(figures) or None, at_least=1 if figures else None, spread=spread)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--programs", type=int, default=50)
    arguments = parser.parse_args()
    figures = []
    for number in range(arguments.first, arguments.first + arguments.programs):
        figure = measure(arguments.bin, number)
        figures.append(figure)
        pairs = {name: f"{figure[name][0] * scale:.4g} / {figure[name][1] * scale:.4g}" for name, scale in
                 (("kernel", 1e3), ("collective", 1e3), ("bytes", 1e-6), ("memory", 1e-6))}
        report(f"P-{number}", f"{figure['what']}; predicted / measured: kernel {pairs['kernel']} ms, collective "
               f"{pairs['collective']} ms, sent {pairs['bytes']} MB, memory {pairs['memory']} MB", 1e3 * figure["time"][0], "ms",
               peer=1e3 * figure["time"][1])
    slow = [figure for figure in figures if figure["time"][1] >= LEAST_SECONDS]
    large = [figure for figure in figures if figure["memory"][0] >= LEAST_BYTES]
    report_sum("P-time", "predicted times of random programs, steps over 10 ms", slow, "time", TIME_LIMIT)
    report_sum("P-memory", "predicted peaks of memory, over 16 MiB", large, "memory", EXACT_LIMIT)
    report_sum("P-bytes", "predicted bytes", figures, "bytes", EXACT_LIMIT)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How near predictions are: 50 random programs on 2 workers, their predicted time, memory and bytes beside the measured ones.

Each program (bench/prediction_bench.cc makes it from its number) has a cluster of its own. Time: that of a step, from
admission to commit, the median of 7. Bytes: what all workers sent. Memory: by how much the memory for shards of a worker,
used or kept for reuse, grew by runs whose last results are still there. Time is judged where a step takes 10 ms or more, and
memory where 16 MiB or more were predicted. Prints one JSON object a line; the last three are the sums. Standard error gets the
same as a table: for each program the predicted figures, and their ratios to the measured ones.

usage: prediction_bench.py BIN_FOLDER [--first N] [--programs N]
"""

import argparse
import http.client
import pathlib
import re
import statistics
import sys

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


def ratio_of(pair):
    predicted, measured = pair
    return f"{predicted / measured:.2f}" if measured else "-"


def mark(figure):
    """! for a time, m for a memory and b for bytes that were judged and are not near."""
    return "".join((
        "!" if figure["time"][1] >= LEAST_SECONDS and not is_near(figure["time"], TIME_LIMIT) else "",
        "m" if figure["memory"][0] >= LEAST_BYTES and not is_near(figure["memory"], EXACT_LIMIT) else "",
        "b" if not is_near(figure["bytes"], EXACT_LIMIT) else ""))


def print_table(figures):
    """The figures for people: times in ms, sizes in MB, and predicted / measured."""
    columns = ("time", "kernel", "collective", "bytes", "memory")
    scales = {"time": 1e3, "kernel": 1e3, "collective": 1e3, "bytes": 1e-6, "memory": 1e-6}
    print(f"{'':>4} {''.join(f'{name:>11} {chr(0xf7):>5}' for name in columns)}      program", file=sys.stderr)
    for number, figure in figures:
        cells = "".join(f"{figure[name][0] * scales[name]:>11.4g} {ratio_of(figure[name]):>5}" for name in columns)
        print(f"{number:>4} {cells} {mark(figure):<4} {figure['what']}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--programs", type=int, default=50)
    arguments = parser.parse_args()
    figures = []
    numbered = []
    for number in range(arguments.first, arguments.first + arguments.programs):
        figure = measure(arguments.bin, number)
        figures.append(figure)
        numbered.append((number, figure))
        pairs = {name: f"{figure[name][0] * scale:.4g} / {figure[name][1] * scale:.4g}" for name, scale in
                 (("kernel", 1e3), ("collective", 1e3), ("bytes", 1e-6), ("memory", 1e-6))}
        report(f"P-{number}", f"{figure['what']}; predicted / measured: kernel {pairs['kernel']} ms, collective "
               f"{pairs['collective']} ms, sent {pairs['bytes']} MB, memory {pairs['memory']} MB", 1e3 * figure["time"][0], "ms",
               peer=1e3 * figure["time"][1])
    print_table(numbered)
    slow = [figure for figure in figures if figure["time"][1] >= LEAST_SECONDS]
    large = [figure for figure in figures if figure["memory"][0] >= LEAST_BYTES]
    report_sum("P-time", "predicted times of random programs, steps over 10 ms", slow, "time", TIME_LIMIT)
    report_sum("P-memory", "predicted peaks of memory, over 16 MiB", large, "memory", EXACT_LIMIT)
    report_sum("P-bytes", "predicted bytes", figures, "bytes", EXACT_LIMIT)


if __name__ == "__main__":
    main()

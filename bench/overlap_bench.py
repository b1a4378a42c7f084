#!/usr/bin/env python3
"""K4: an exchange and a product in one step of 2 workers, beside the longer of the two alone.

all-gather -> product: the rows of the input are partitioned, the weight over its rows. all-gather -> product by columns: the
input is replicated, and the rows of the weight, columns of the result, are partitioned. product -> reduce-scatter: each worker
multiplies its own operands, and the rows of the result are scattered. Times are those of steps, from admission to commit.
Where one of the two alone takes less than 2 ms, nothing is judged. A row says whether the plan has fused instructions.
As root, all runs in a network of its own. Prints one JSON object a line.

usage: overlap_bench.py BIN_FOLDER [--rounds N]
"""

import argparse
import pathlib
import statistics
import sys

from bench_cluster import Cluster
from own_network import enter_own_network
from peers.turns import TurnProgram
from results import report

RANKS = 2
RUNS = 7  # of a round
TARGET = 1.1
LEAST_MS = 2
# Rows, in, out.
GATHERS = [("F32", 4096, 4096, 128), ("F32", 4096, 4096, 512), ("BF16", 4096, 4096, 256)]
COLUMNS = [("F32", 256, 4096, 4096), ("BF16", 512, 4096, 4096)]
SCATTERS = [("F32", 4096, 64, 4096), ("F32", 4096, 256, 4096), ("BF16", 4096, 128, 4096)]


def measure(ours, rounds, lines):
    """For each line, the median milliseconds of its steps, and its last answer."""
    totals, answers = {line: [] for line in lines}, {}
    for _ in range(rounds):
        for line in lines:
            answers[line] = ours.ask_json(f"{line} {RUNS}")
            totals[line].append(1e3 * answers[line]["total_s"])
    return [(statistics.median(totals[line]), answers[line]) for line in lines]


def report_pair(key, what, together, product, exchange):
    (time, answer), (product_ms, _), (exchange_ms, _) = together, product, exchange
    is_fused = len(answer["instructions"]) == 1
    is_judged = min(product_ms, exchange_ms) >= LEAST_MS
    report(key, f"{what}; product alone {product_ms:.4g}, exchange alone {exchange_ms:.4g}"
           f"{'' if is_fused else '; not fused'}{'' if is_judged else f'; one takes less than {LEAST_MS} ms'}",
           time, "ms", peer=max(product_ms, exchange_ms), at_most=TARGET if is_judged else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not enter_own_network():
        print("overlap_bench: not root: measured on the machine's own network", file=sys.stderr)
    for transport in ("shm", "stream"):
        with Cluster(arguments.bin / "shardmesh", "--mesh", f"tp={RANKS}", "--transport", transport) as cluster, \
                TurnProgram(arguments.bin / "program_bench", cluster.run("status")["address"]) as ours:
            for dtype, rows, width, out in GATHERS:
                sizes = f"{dtype} {rows} {width} {out}"
                report_pair(f"K4-gather-{transport}", f"all-gather -> product, {sizes}, {RANKS} workers, {transport}",
                            *measure(ours, arguments.rounds, [f"gather-product {sizes}", f"product {sizes}", f"gather {sizes}"]))
            for dtype, rows, width, out in COLUMNS:
                sizes = f"{dtype} {rows} {width} {out}"
                report_pair(f"K4-columns-{transport}", f"all-gather -> product by columns, {sizes}, {RANKS} workers, {transport}",
                            *measure(ours, arguments.rounds, [f"gather-columns {sizes}", f"local {sizes}", f"gather {dtype} {out} {width} 1"]))
            for dtype, rows, width, out in SCATTERS:
                sizes = f"{dtype} {rows} {width} {out}"
                report_pair(f"K4-scatter-{transport}", f"product -> reduce-scatter, {sizes}, {RANKS} workers, {transport}",
                            *measure(ours, arguments.rounds, [f"product-scatter {sizes}", f"local {sizes}", f"scatter {sizes}"]))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""K1: the kernel inside workers, beside a bare packed oneDNN loop, and the memory that a weight takes.

Two workers with one thread each compute a product whose weight is partitioned over its rows; two processes with the bare
loop compute the same parts at the same time. The figures are the median times of the kernel, as the step reports that of
the slowest worker, and of the slower loop. The two sides take turns. The last row has the growth of the workers' memory,
anonymous and shared, by a weight that products have used, beside the weight's size. Prints one JSON object a line.

usage: worker_kernel_bench.py BIN_FOLDER [--rounds N]
"""

import argparse
import json
import pathlib
import statistics
import time

from bench_cluster import Cluster
from peers.turns import TurnProgram
from resident_memory import resident_bytes
from results import report

RANKS = 2
# Rows, in, out, and runs in a round.
CASES = [("F32", 128, 384, 1536, 300), ("F32", 1, 4096, 4096, 200), ("F32", 32, 4096, 11008, 30), ("F32", 512, 4096, 4096, 10),
         ("BF16", 1, 4096, 4096, 300), ("BF16", 32, 4096, 11008, 40), ("BF16", 512, 4096, 4096, 20)]
TARGET = 0.95
MEMORY_CASE = ("F32", 8, 8192, 16384)  # 512 MiB
MEMORY_TARGET = 1.1


def measure_speed(ours, loops, rounds):
    for dtype, rows, width, out, runs in CASES:
        times = {"ours": [], "bare": []}
        for _ in range(rounds):
            times["ours"].append(ours.ask_json(f"product {dtype} {rows} {width} {out} {runs}")["kernel_s"])
            for loop in loops:
                loop.begin(f"{dtype} {rows} {width} {out // RANKS} {runs}")
            times["bare"].append(max(json.loads(loop.end())["call_s"] for loop in loops))
        gflop = 2e-9 * rows * width * out
        rates = {side: gflop / statistics.median(of_side) for side, of_side in times.items()}
        spread = [gflop / of_round for of_round in times["ours"]]
        report(f"K1-{dtype}-{rows}", f"{dtype} product {rows}x{width}x{out} on {RANKS} workers with one thread each, kernel time of "
               f"the step, beside {RANKS} bare packed oneDNN loops", rates["ours"], "GFLOP/s", peer=rates["bare"],
               at_least=TARGET, spread=f"{min(spread):.4g}..{max(spread):.4g}")


def measure_memory(ours, pids):
    dtype, rows, width, out = MEMORY_CASE
    weight_bytes = 4 * width * out
    ours.ask(f"product {dtype} {rows} 256 256 20")
    before = resident_bytes(pids)
    ours.ask(f"product {dtype} {rows} {width} {out} 5")
    time.sleep(1)  # for buffers that are given back after a step
    growth = resident_bytes(pids) - before
    report("K1-memory", f"memory of {RANKS} workers for an F32 weight of {width}x{out} that products have used, beside its size",
           growth / 1e6, "MB", peer=weight_bytes / 1e6, at_most=MEMORY_TARGET)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with Cluster(arguments.bin / "shardmesh", "--mesh", f"tp={RANKS}") as cluster:
        status = cluster.run("status")
        with TurnProgram(arguments.bin / "program_bench", status["address"]) as ours:
            measure_memory(ours, [worker["pid"] for worker in status["workers"]])
            loops = [TurnProgram(arguments.bin / "bare_product_bench", 1) for _ in range(RANKS)]
            with loops[0], loops[1]:
                measure_speed(ours, loops, arguments.rounds)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""K2 and K7: the time of a step that does nothing, and of small collectives in bursts, in running workers.

K2: an empty program, from the client's call to its answer, 2 and 4 workers. K7: the same with 2 workers against a tighter
target; one step of an ExecuteStream; and steps of 60 all-reduces, one after the other, with 4 workers: the time of one
collective, as the slowest worker reports it, beside that of the engine alone (collective_bench) in the same run, for its
fastest algorithm in reproducible order. As root, all runs in a network of its own. Prints one JSON object a line.

usage: latency_bench.py BIN_FOLDER [--calls N] [--rounds N]
"""

import argparse
import pathlib
import statistics
import sys

from bench_cluster import Cluster
from collective_bench import run
from own_network import enter_own_network
from peers.turns import TurnProgram
from results import report

BURST_CALLS = 60
BURST_RANKS = 4
BURST_SIZES = (8, 1 << 10, 8 << 10, 64 << 10)
BURST_TARGET = 1.3
EMPTY_TARGETS_US = {2: 400, 4: 700}
EXECUTE_TARGET_US = 250
STREAM_TARGET_US = 120


def spread_of(answer):
    return f"p10 {1e6 * answer['call_p10_s']:.4g}, p90 {1e6 * answer['call_p90_s']:.4g}"


def measure_empty(folder, calls):
    for ranks, target_us in EMPTY_TARGETS_US.items():
        with Cluster(folder / "shardmesh", "--mesh", f"tp={ranks}") as cluster, \
                TurnProgram(folder / "program_bench", cluster.run("status")["address"]) as ours:
            empty = ours.ask_json(f"empty {calls}")
            median_us = 1e6 * empty["call_s"]
            report(f"K2-{ranks}", f"an empty step from client to client, p50, {ranks} workers", median_us, "us",
                   at_most=target_us, spread=spread_of(empty))
            if ranks != 2:
                continue
            report("K7-execute", "Execute of an empty program, p50, 2 workers", median_us, "us", at_most=EXECUTE_TARGET_US,
                   spread=spread_of(empty))
            report("K7-stream", "ExecuteStream of empty programs, 2 workers, a step", 1e6 * ours.ask_json(f"stream {calls}")["call_s"],
                   "us", at_most=STREAM_TARGET_US)


def bare_us(folder, transport):
    """The median time of an all-reduce by the engine alone, by size."""
    rows = run(f"{folder}/collective_bench", str(BURST_RANKS), "--sizes", ",".join(map(str, BURST_SIZES)), "--ops", "all-reduce",
               "--transport", transport)
    return {size: min(row["p50_us"] for row in rows if row["bytes"] == size and row["algorithm"] != "ring")
            for size in BURST_SIZES}


def measure_bursts(folder, rounds):
    for transport in ("shm", "stream"):
        ours_us, peer_us = {size: [] for size in BURST_SIZES}, {size: [] for size in BURST_SIZES}
        for _ in range(rounds):
            with Cluster(folder / "shardmesh", "--mesh", f"tp={BURST_RANKS}", "--transport", transport) as cluster, \
                    TurnProgram(folder / "program_bench", cluster.run("status")["address"]) as ours:
                for size in BURST_SIZES:
                    answer = ours.ask_json(f"burst {size} {BURST_CALLS} 50")
                    ours_us[size].append(1e6 * answer["collective_s"])
            for size, median_us in bare_us(folder, transport).items():
                peer_us[size].append(median_us)
        for size in BURST_SIZES:
            report(f"K7-burst-{transport}-{size}", f"all-reduce of {size} bytes, one of {BURST_CALLS} in a step of {BURST_RANKS} "
                   f"workers, {transport}, beside the engine alone", statistics.median(ours_us[size]), "us",
                   peer=statistics.median(peer_us[size]), at_most=BURST_TARGET,
                   spread=f"{min(ours_us[size]):.4g}..{max(ours_us[size]):.4g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not enter_own_network():
        print("latency_bench: not root: measured on the machine's own network", file=sys.stderr)
    measure_empty(arguments.bin, arguments.calls)
    measure_bursts(arguments.bin, arguments.rounds)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""K3: a tensor-parallel MLP (4096 -> 11008 -> 4096, silu) as a program on 2 workers of one thread each, from the client's
call to its answer, beside PyTorch (all_reduce over Gloo) and JAX (jit over 2 processes) with as many processes and threads.

The three take turns; medians of the rounds' medians. Ours checks its first results against products in F64. The targets for
BF16 depend on the version of oneDNN, which is in the row. As root, all runs in a network of its own, in which delayed ACKs
do not stall Gloo. Prints one JSON object a line.

usage: mlp_bench.py BIN_FOLDER [--rounds N] [--network own|host]
"""

import argparse
import contextlib
import pathlib
import statistics
import sys

from bench_cluster import Cluster
from own_network import enter_own_network
from peers.turns import Peer, TurnProgram, peer_interpreter
from results import report

RANKS = 2
RUNS = {1: 40, 32: 15, 512: 5}  # of a round, by rows
# The largest ratio of our time to the peer's, by type, rows and peer.
TARGETS = {("F32", 1, "torch"): 1 / 1.0, ("F32", 32, "torch"): 1 / 1.3, ("F32", 512, "torch"): 1 / 1.0,
           **{("BF16", rows, "torch"): 1 / 1.1 for rows in RUNS}, **{("F32", rows, "jax"): 1 / 1.2 for rows in RUNS},
           **{("BF16", rows, "jax"): 1 / 4 for rows in RUNS}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", choices=("own", "host"), default="own")
    arguments = parser.parse_args()
    if arguments.network == "own" and not enter_own_network():
        print("mlp_bench: not root: measured on the machine's own network", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(arguments.bin / "shardmesh", "--mesh", f"tp={RANKS}"))
        ours = stack.enter_context(TurnProgram(arguments.bin / "program_bench", cluster.run("status")["address"]))
        peers = {}
        if python := peer_interpreter("torch"):
            peers["torch"] = stack.enter_context(Peer(python, "torch_compute_peer.py", "mlp", RANKS))
        if python := peer_interpreter("jax"):
            peers["jax"] = stack.enter_context(Peer(python, "jax_compute_peer.py", RANKS))
        for dtype in ("F32", "BF16"):
            for rows, runs in RUNS.items():
                times = {name: [] for name in ("ours", *peers)}
                for _ in range(arguments.rounds):
                    times["ours"].append(1e3 * ours.ask_json(f"mlp {dtype} {rows} {runs}")["call_s"])
                    for name, peer in peers.items():
                        times[name].append(1e3 * peer.turn(f"{dtype} {rows} {runs}"))
                for name in peers or (None,):
                    report(f"K3-{dtype}-{rows}", f"MLP 4096 -> 11008 -> 4096, {dtype}, {rows} rows, {RANKS} workers"
                           + (f", beside {name}" if name else ""),
                           statistics.median(times["ours"]), "ms", peer=statistics.median(times[name]) if name else None,
                           at_most=TARGETS[dtype, rows, name] if name else None,
                           spread=" beside ".join(f"{min(times[side]):.4g}..{max(times[side]):.4g}" for side in ("ours", name) if side))


if __name__ == "__main__":
    main()

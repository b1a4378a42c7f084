#!/usr/bin/env python3
"""K6: embeddings by all-MiniLM-L6-v2 on 2 workers of one thread each, from the client's call to its answer, beside PyTorch
in one process with two threads.

The weights are those of the folder, or random ones of the same shapes, which take as long. The two sides take turns; medians
of the rounds' medians. Prints one JSON object a line.

usage: minilm_bench.py BIN_FOLDER [--rounds N] [--model FOLDER]
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile

from bench_cluster import Cluster
from peers.turns import Peer, TurnProgram, peer_interpreter
from results import report

RANKS = 2
# Sentences, tokens of each, runs of a round, and the largest ratio of our time to PyTorch's.
CASES = [(32, 128, 3, 1 / 1.2), (1, 128, 30, 1 / 2), (1, 16, 50, 1 / 2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.model or pathlib.Path(made) / "minilm"
        if not arguments.model:
            subprocess.run([arguments.bin / "shardmesh", "make-checkpoint", "--like", "all-minilm-l6-v2", "--folder", "--quiet",
                            "--out", folder], check=True, stdout=subprocess.DEVNULL)
        with Cluster(arguments.bin / "shardmesh", "--mesh", f"tp={RANKS}") as cluster, \
                TurnProgram(arguments.bin / "model_bench", cluster.run("status")["address"], folder) as ours:
            python = peer_interpreter("torch")
            torch = Peer(python, "torch_compute_peer.py", "minilm", folder, RANKS) if python else None
            for sentences, length, runs, target in CASES:
                times, peer_times = [], []
                for _ in range(arguments.rounds):
                    times.append(1e3 * ours.ask_json(f"embed {sentences} {length} {runs}")["call_s"])
                    if torch:
                        peer_times.append(1e3 * torch.turn(f"{sentences} {length} {runs}"))
                report(f"K6-{sentences}-{length}", f"all-MiniLM, F32, {sentences} x {length} tokens, {RANKS} workers"
                       + (", beside PyTorch" if torch else ""), statistics.median(times), "ms",
                       peer=statistics.median(peer_times) if torch else None, at_most=target if torch else None,
                       spread=f"{min(times):.4g}..{max(times):.4g}")
            if torch:
                torch.__exit__()


if __name__ == "__main__":
    main()

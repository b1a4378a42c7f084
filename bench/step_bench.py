#!/usr/bin/env python3
"""C4: an all-reduce as a step of a running cluster of two or four workers, beside C1 and C2.

Those rows time the engine alone. These time the collective of a step, as the slowest worker reports it, beside the engine
alone in the same run, for its fastest algorithm in reproducible order. Each row also says how long the client's call of
ComputeService took, with admission, orders, memory for the result, its checksum, and the commit. As root, all runs in a
network of its own. Prints one JSON object a line.

usage: step_bench.py BIN_FOLDER
"""

import json
import pathlib
import subprocess
import sys

from bench_cluster import Cluster
from collective_bench import run
from own_network import enter_own_network
from results import report


def main():
    folder = pathlib.Path(sys.argv[1])
    if not enter_own_network():
        print("step_bench: not root: measured on the machine's own network", file=sys.stderr)
    for ranks in (2, 4):
        for transport in ("shm", "stream"):
            with Cluster(folder / "shardmesh", "--mesh", f"tp={ranks}", "--transport", transport) as cluster:
                text = subprocess.run([folder / "step_bench", cluster.run("status")["address"]], check=True,
                                      stdout=subprocess.PIPE, text=True).stdout
            steps = [json.loads(line) for line in text.splitlines()]
            sizes = ",".join(str(step["bytes"]) for step in steps)
            engine = run(f"{folder}/collective_bench", str(ranks), "--sizes", sizes, "--ops", "all-reduce", "--transport", transport)
            for step in steps:
                bare = min(row["p50_us"] for row in engine if row["bytes"] == step["bytes"] and row["algorithm"] != "ring")
                report(f"C4-{transport}-{ranks}-{step['bytes']}", f"all-reduce of {step['bytes']} bytes as a step of {ranks} "
                       f"workers, {transport}, beside the engine alone; the call took {step['call_us']:.0f} us",
                       step["collective_us"], "us", peer=bare)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""S4: reshard 1 GiB of F32 from rows to columns on 2 and 4 workers.

S4-step: beside the all-to-all of the same bytes; both run as steps of one cluster and take turns. S4-peers: the reshards
over shared memory, beside jax.device_put between the same two layouts and redistribute of PyTorch's DTensor, where
jax and torch are installed. Prints one JSON object a line.

usage: reshard_bench.py BIN_FOLDER [MIB]
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from peers.turns import Peer, peer_interpreter

TURNS = 7
PEERS = (("jax", "jax_peer.py", "jax.device_put"), ("torch", "torch_peer.py", "DTensor.redistribute"))
TARGET = 0.5  # of a peer's time


def run_ours(folder, transport, ranks, mebibytes):
    """The result of S4-step."""
    with tempfile.TemporaryDirectory() as runtime:
        env = dict(os.environ, XDG_RUNTIME_DIR=runtime)
        up = [folder / "shardmesh", "up", "--mesh", f"tp={ranks}", "--transport", transport, "--detach"]
        subprocess.run(up, env=env, check=True, capture_output=True)
        try:
            status = subprocess.run([folder / "shardmesh", "status", "--output", "json"], env=env, check=True,
                                    capture_output=True, text=True).stdout
            done = subprocess.run([folder / "reshard_bench", json.loads(status)["address"], f"S4-step-{transport}-{ranks}",
                                   str(ranks), str(mebibytes)], check=True, stdout=subprocess.PIPE, text=True)
            return json.loads(done.stdout)
        finally:
            subprocess.run([folder / "shardmesh", "down"], env=env, check=True, capture_output=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    mebibytes = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    peers = [(python, script, call) for module, script, call in PEERS if (python := peer_interpreter(module))]
    for ranks in (2, 4):
        ours = {}
        for transport in ("shm", "stream"):
            result = run_ours(folder, transport, ranks, mebibytes)
            ours[transport] = result["ours"]
            print(json.dumps(result), flush=True)
        for python, script, call in peers:
            with Peer(python, script, "reshard", mebibytes, ranks) as peer:
                times = [1e3 * peer.turn("go") for _ in range(TURNS)]
            median = statistics.median(times)
            print(json.dumps({
                "id": f"S4-peers-{ranks}", "what": f"reshard {mebibytes} MiB from rows to columns on {ranks} workers, shared"
                f" memory; {call} ({min(times):.0f} to {max(times):.0f} ms)",
                "ours": ours["shm"], "peer": round(median, 1), "unit": "ms", "ratio": round(ours["shm"] / median, 2),
                "target": f"<= {TARGET}", "met": ours["shm"] <= TARGET * median}), flush=True)


if __name__ == "__main__":
    main()

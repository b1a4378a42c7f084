#!/usr/bin/env python3
"""S7: the get of a 1 MiB slice out of a 2 GiB array, on a cluster of 2 workers on this host.

Starts a fresh cluster and runs slice_bench on it, which prints one JSON object a line.

usage: slice_bench.py BIN_FOLDER [--mib N] [--calls N]
"""

import argparse
import json
import os
import subprocess
import tempfile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--calls", type=int, default=500)
    arguments = parser.parse_args()
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, XDG_RUNTIME_DIR=folder)
        subprocess.run([shardmesh, "up", "--mesh", "tp=2", "--detach"], env=env, check=True, capture_output=True)
        try:
            status = subprocess.run([shardmesh, "status", "--output", "json"], env=env, check=True, capture_output=True)
            address = json.loads(status.stdout)["address"]
            subprocess.run([os.path.join(arguments.bin, "slice_bench"), address, str(arguments.mib),
                            str(arguments.calls)], check=True)
        finally:
            subprocess.run([shardmesh, "down"], env=env, check=True, capture_output=True)


if __name__ == "__main__":
    main()

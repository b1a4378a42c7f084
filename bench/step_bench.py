#!/usr/bin/env python3
"""C4: an all-reduce as a step of a running cluster of two workers, beside C1 and C2.

Those rows time the engine alone. These time a client's call of ComputeService, with admission, orders, memory for the
result, its checksum, and the commit. Prints one JSON object a line.

usage: step_bench.py BIN_FOLDER
"""

import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    folder = pathlib.Path(sys.argv[1])
    for label, transport in (("C4-shm", "shm"), ("C4-stream", "stream")):
        with tempfile.TemporaryDirectory() as runtime:
            env = dict(os.environ, XDG_RUNTIME_DIR=runtime)
            up = [folder / "shardmesh", "up", "--mesh", "tp=2", "--transport", transport, "--detach"]
            subprocess.run(up, env=env, check=True, capture_output=True)
            try:
                address = subprocess.run([folder / "shardmesh", "status", "--output", "json"], env=env, check=True,
                                         capture_output=True, text=True).stdout.split('"address":')[1].split('"')[1]
                subprocess.run([folder / "step_bench", address, label], check=True)
            finally:
                subprocess.run([folder / "shardmesh", "down"], env=env, check=True, capture_output=True)


if __name__ == "__main__":
    main()

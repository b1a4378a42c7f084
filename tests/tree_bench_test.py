"""Asks bench/tree_bench.py for a peer that is none: it says so in one line, and ends with 2 before anything is measured."""

import os
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench/tree_bench.py"


def main():
    # No program at all, and one that is no interpreter that can import the peer.
    for peer in ("/nonexistent/python", "/bin/false"):
        answer = subprocess.run([sys.executable, str(BENCH), "/nonexistent/bin"], capture_output=True, text=True, check=False,
                                env=dict(os.environ, SHARDMESH_PEER_PYTHON=peer))
        lines = answer.stderr.splitlines()
        assert answer.returncode == 2, answer
        assert answer.stdout == "", answer
        assert len(lines) == 1 and f"SHARDMESH_PEER_PYTHON={peer} is no interpreter" in lines[0], answer


if __name__ == "__main__":
    main()

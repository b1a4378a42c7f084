"""A `get` whose file is larger than the memory that its process may have.

    get_memory_test.py BIN    BIN: the folder of the programs

Starts a cluster of its own in a new folder, and stops it.
"""

import filecmp
import os
import resource
import subprocess

import own_cluster
from own_cluster import SECONDS, expect

FILE_BYTES = 256 << 20
# Memory for data, as opposed to mapped files. A piece of 64 MiB of the file is in memory at a time; the rest is for the
# program and gRPC.
MEMORY_BYTES = 160 << 20
STACK_BYTES = 256 << 10  # of each thread


def limit_memory():
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def has_tail(path, tail):
    """Whether the last FILE_BYTES bytes of a file are those of another one."""
    with open(path, "rb") as one, open(tail, "rb") as other:
        one.seek(-FILE_BYTES, os.SEEK_END)
        other.seek(-FILE_BYTES, os.SEEK_END)
        return all(one.read(1 << 20) == other.read(1 << 20) for _ in range(FILE_BYTES >> 20))


class Test:
    def __init__(self, programs, folder):
        self.program = programs / "shardmesh"
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDMESH_")}
        self.environment.update(XDG_RUNTIME_DIR=str(folder), XDG_CONFIG_HOME=str(folder), TMPDIR=str(folder),
                                HOME=str(folder), LANG="C.UTF-8")

    def call(self, *arguments, limit=None):
        done = subprocess.run([self.program, *arguments], cwd=self.folder, env=self.environment, text=True,
                              capture_output=True, timeout=SECONDS, check=False, preexec_fn=limit)
        expect(done.returncode == 0, f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")

    def run(self):
        cluster = ("--cluster", "memory")
        try:
            self.call("up", *cluster, "--mesh", "tp=2", "--detach")
            self.call("make-tensor", "--shape", "8192,8192", "--out", "put.npy")
            # Both workers have a part of each row.
            self.call("put", "put.npy", "--as", "large", "--spec", "-,tp", *cluster)
            self.call("get", "large", "--out", "got.npy", *cluster, limit=limit_memory)
            expect(filecmp.cmp(self.folder / "put.npy", self.folder / "got.npy", shallow=False), "got.npy differs")
            (self.folder / "got.npy").unlink()
            self.call("get", "large", "--out", "got.safetensors", *cluster, limit=limit_memory)
            expect(has_tail(self.folder / "got.safetensors", self.folder / "put.npy"), "got.safetensors differs")
        finally:
            subprocess.run([self.program, "down", *cluster], cwd=self.folder, env=self.environment, capture_output=True,
                           timeout=SECONDS, check=False)
        return []


if __name__ == "__main__":
    own_cluster.main(Test, "memory-")

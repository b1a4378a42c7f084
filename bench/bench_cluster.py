"""A cluster of `shardmesh up` that a benchmark starts for itself, with a runtime folder of its own."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

# A benchmark that is told to end ends its clusters first.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Cluster:
    """A cluster of `shardmesh up` with these flags. Use it in a `with` statement."""

    def __init__(self, shardmesh, *flags):
        self._shardmesh = shardmesh
        self._runtime = tempfile.TemporaryDirectory()
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self._runtime.name)
        self._flags = flags

    def run(self, *command):
        """The answer of a command. Ends the benchmark if the command fails."""
        done = subprocess.run([self._shardmesh, *command, "--output", "json"], env=self.env, capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: shardmesh {' '.join(command)} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def up(self):
        subprocess.run([self._shardmesh, "up", *self._flags, "--detach"], env=self.env, check=True, capture_output=True)

    def down(self):
        subprocess.run([self._shardmesh, "down"], env=self.env, check=True, capture_output=True)

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, *_):
        self.down()
        self._runtime.cleanup()

"""Finds the interpreters of peers, and runs peers that take turns with ours.

A peer runs in an interpreter that can import its module: $SHARDMESH_PEER_PYTHON, which must if it is set; else
build/peers/bin/python or this one, whichever can first. This makes one that can import all of them:

    python3 -m venv build/peers && build/peers/bin/pip install eformer==0.0.95 gguf orbax-checkpoint torch
"""

import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent


def imports(python, module):
    try:
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def peer_interpreter(module):
    """The one that is asked for, or else the first that can; None where there is none. Exits with 2 where the one asked
    for cannot."""
    asked = os.environ.get("SHARDMESH_PEER_PYTHON")
    if asked:
        if imports(asked, module):
            return asked
        print(f"SHARDMESH_PEER_PYTHON={asked} is no interpreter that can import {module}; set it to one, or unset it to "
              "measure ours alone", file=sys.stderr)
        sys.exit(2)
    for python in (str(ROOT / "build/peers/bin/python"), sys.executable):
        if imports(python, module):
            return python
    print(f"no interpreter can import {module}, and ours is not compared with it; SHARDMESH_PEER_PYTHON names one that can",
          file=sys.stderr)
    return None


class TurnProgram:
    """A program while it runs: it prints "ready", then answers each line that it reads with one line. Use it in a `with`
    statement."""

    def __init__(self, *command, show_errors=True):
        self._process = subprocess.Popen([str(word) for word in command], text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=None if show_errors else subprocess.DEVNULL)
        if (line := self.end()) != "ready":
            self._fail(line)

    def _fail(self, line):
        self._process.kill()
        sys.exit(f"{self._process.args}: ended, or said {line!r}")

    def begin(self, line):
        """Sends a line; end() waits for the answer."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self):
        line = self._process.stdout.readline().strip()
        if not line:
            self._fail(line)
        return line

    def ask(self, line):
        self.begin(line)
        return self.end()

    def ask_json(self, line):
        return json.loads(self.ask(line))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()


class Peer(TurnProgram):
    """A program of this folder whose answers are the seconds of one turn."""

    def __init__(self, python, script, *arguments):
        super().__init__(python, FOLDER / script, *arguments, show_errors=False)

    def turn(self, line):
        """Seconds of one turn."""
        return float(self.ask(line))

#!/usr/bin/env python3
"""S3: a save of 2 GiB from 2 and 4 workers, beside dd with fdatasync into the same folder, and beside Orbax and
torch.distributed.checkpoint (DCP) where they are installed.

Each side loads the checkpoint once. Then they take turns: each save writes a folder of its own, each dd a file of the
same size, and all of it is removed, and the disk synced, before the next turn. A disk's rate moves within a minute, and
what was written before slows what comes next: each round begins with another side, and the ratio is the median of the
rounds' ratios. DCP's time does not include a sync of its files to the disk: one is added, as ours and Orbax's do it.

S3-steps: a linear layer (F32, 512 x 4096 x 4096, column parallel) while one save follows the other, beside its time
without. Each of `--rounds` rounds takes the median of 60 steps without saves and of 60 steps with them.

Prints one JSON object a line.

usage: save_bench.py BIN_FOLDER [--samples N] [--rounds N] [--size SIZE] [--folder DIR]
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from checkpoints import checkpoint_of
from peers.turns import Peer, peer_interpreter

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "docs/examples/llama.yaml"
# Name, module and program of each peer.
PEERS = (("orbax", "orbax.checkpoint", "jax_peer.py"), ("dcp", "torch.distributed.checkpoint", "torch_peer.py"))
TARGETS = {"dd": 0.8, "orbax": 1.5, "dcp": 1.5}  # of their rates
STEPS_TARGET = 1.15  # of the time without a save


def run_json(command, env):
    done = subprocess.run(command + ["--output", "json"], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"save_bench: {' '.join(command)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def dd_seconds(path, size_bytes):
    start = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={-(-size_bytes // (8 << 20))}", "conv=fdatasync"],
                   check=True, capture_output=True)
    return time.perf_counter() - start


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)
    os.sync()


def measure(shardmesh, checkpoint, ranks, samples, folder):
    """Seconds of each side, by its name, and the bytes of a save."""
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory())
        env = dict(os.environ, XDG_RUNTIME_DIR=runtime)
        subprocess.run([shardmesh, "up", "--mesh", f"tp={ranks}", "--write-root", folder, "--detach"], env=env, check=True,
                       capture_output=True)
        stack.callback(subprocess.run, [shardmesh, "down"], env=env, check=True, capture_output=True)
        run_json([shardmesh, "load", checkpoint, "--rules", str(RULES), "--quiet"], env)
        peers = {name: stack.enter_context(Peer(python, script, "save", checkpoint, ranks))
                 for name, module, script in PEERS if (python := peer_interpreter(module))}
        seconds = {name: [] for name in ("ours", "dd", *peers)}
        path = os.path.join(folder, "saved")
        size_bytes = os.path.getsize(checkpoint)

        def turn(name):
            start = time.perf_counter()
            if name == "ours":
                run_json([shardmesh, "save", "", path, "--quiet"], env)
            elif name == "dd":
                return dd_seconds(path, size_bytes)
            else:
                peers[name].turn(path)
                subprocess.run(["sync", "--file-system", path], check=True)
            return time.perf_counter() - start

        for sample in range(samples):
            names = list(seconds)
            for name in names[sample % len(names):] + names[:sample % len(names)]:
                seconds[name].append(turn(name))
                remove(path)
        return seconds, size_bytes


def step_seconds(folder, address, steps=60):
    done = subprocess.run([os.path.join(folder, "step_bench"), address, "--linear", str(steps)], capture_output=True,
                          text=True, check=True)
    return [float(line) / 1e3 for line in done.stdout.split()]


def measure_steps(bin_folder, checkpoint, ranks, rounds, folder):
    """Seconds of steps without and with saves, by round, and how many saves ended meanwhile."""
    shardmesh = os.path.join(bin_folder, "shardmesh")
    path = os.path.join(folder, "saved")
    alone, beside, saves = [], [], 0
    with tempfile.TemporaryDirectory() as runtime, contextlib.ExitStack() as stack:
        env = dict(os.environ, XDG_RUNTIME_DIR=runtime)
        subprocess.run([shardmesh, "up", "--mesh", f"tp={ranks}", "--write-root", folder, "--detach"], env=env, check=True,
                       capture_output=True)
        stack.callback(subprocess.run, [shardmesh, "down"], env=env, check=True, capture_output=True)
        run_json([shardmesh, "load", checkpoint, "--rules", str(RULES), "--quiet"], env)
        address = run_json([shardmesh, "status"], env)["address"]
        for _ in range(rounds):
            alone.append(statistics.median(step_seconds(bin_folder, address)))
            over = threading.Event()
            failures = []

            def save_on():
                nonlocal saves
                try:
                    while not over.is_set():
                        run_json([shardmesh, "save", "", path, "--quiet"], env)
                        shutil.rmtree(path)
                        saves += 1
                except SystemExit as failure:  # ends only this thread
                    failures.append(failure)

            saver = threading.Thread(target=save_on)
            saver.start()
            try:
                beside.append(statistics.median(step_seconds(bin_folder, address)))
            finally:
                over.set()
                saver.join()
            if failures:
                raise failures[0]
            os.sync()
    return alone, beside, saves


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="of S3-steps (default: 5)")
    parser.add_argument("--size", default="2GiB", help="of the checkpoint (default: 2GiB)")
    parser.add_argument("--folder", help="where to write (default: build/bench)")
    arguments = parser.parse_args()
    shardmesh = os.path.join(arguments.bin, "shardmesh")
    bench = ROOT / "build/bench"
    checkpoint = checkpoint_of(shardmesh, bench, arguments.size)
    for ranks in (2, 4):
        with tempfile.TemporaryDirectory(dir=arguments.folder or str(bench)) as folder:
            seconds, size_bytes = measure(shardmesh, checkpoint, ranks, arguments.samples, folder)
        ours = seconds.pop("ours")
        for name, theirs in seconds.items():
            target = TARGETS[name]
            rate, peer = (size_bytes / statistics.median(times) / 1e6 for times in (ours, theirs))
            ratio = statistics.median(other / own for own, other in zip(ours, theirs))
            print(json.dumps({
                "id": "S3", "what": f"save {size_bytes / 2**30:.2f} GiB from {ranks} workers ({min(ours):.2f} to"
                f" {max(ours):.2f} s of {len(ours)}); {name} ({min(theirs):.2f} to {max(theirs):.2f} s)",
                "ours": round(rate), "peer": round(peer), "unit": "MB/s", "ratio": round(ratio, 3),
                "target": target, "met": ratio >= target}), flush=True)
        with tempfile.TemporaryDirectory(dir=arguments.folder or str(bench)) as folder:
            alone, beside, saves = measure_steps(arguments.bin, checkpoint, ranks, arguments.rounds, folder)
        ratio = statistics.median(with_save / without for without, with_save in zip(alone, beside))
        print(json.dumps({
            "id": "S3-steps", "what": f"a step on {ranks} workers while saves run ({saves} saves; {1e3 * min(beside):.1f} to"
            f" {1e3 * max(beside):.1f} ms of {len(beside)}), beside one without ({1e3 * min(alone):.1f} to"
            f" {1e3 * max(alone):.1f} ms)",
            "ours": round(1e3 * statistics.median(beside), 2), "peer": round(1e3 * statistics.median(alone), 2), "unit": "ms",
            "ratio": round(ratio, 3), "target": STEPS_TARGET, "met": ratio <= STEPS_TARGET}), flush=True)


if __name__ == "__main__":
    main()

"""Measures C1 to C3 (docs/benchmarks.md): our collectives beside Gloo's and OpenMPI's, in one run.

    collective_bench.py BIN [--rounds N] [--ranks N,...] [--sizes BYTES,...] [--ops OP,...] [--systems NAME,...]
                        [--network own|host] [--table]

BIN is the folder of the benchmark programs. Systems take turns; of each, the best algorithm's median of the rounds counts,
of ours among those whose sums have the reproducible order.
Sizes over 64 KiB, which take most of the time, have one round. As root everything runs in a network namespace of its own
without pacing or delayed acknowledgements, which would stall the peers; otherwise it says so. With --network host ours
runs over the machine's network as it is. A system that takes longer than 15 minutes for one round is left out from there
on, which is said as well. Prints one JSON object for each result as soon as its ranks were measured, or with --table every
single figure. A result's spread is that of the medians over the rounds, and the largest of their 99th percentiles.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from own_network import enter_own_network

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
OPS = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "barrier"]
LARGEST_OF_ALL_ROUNDS = 64 << 10
PATIENCE_SECONDS = 900
OURS = ("shm", "stream")
REDUCTIONS = ("all-reduce", "reduce-scatter")
# Of what an all-reduce, ... of a vector of S bytes has to move, each rank sends this share of S: nccl-tests' bus bandwidth.
BUS_SHARE = {"all-reduce": lambda p: 2 * (p - 1) / p, "all-gather": lambda p: (p - 1) / p,
             "reduce-scatter": lambda p: (p - 1) / p, "all-to-all": lambda p: (p - 1) / p, "broadcast": lambda p: 1}


def figures(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(*command):
    """What a program that measures by itself prints; it and its children end in time."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        text, errors = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        print(errors, file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return figures(text)


def run_ours(transport):
    return lambda folder, ranks, options: run(f"{folder}/collective_bench", str(ranks), *options, "--transport", transport)


def run_gloo(folder, ranks, options):
    with tempfile.TemporaryDirectory() as shared:
        processes = [subprocess.Popen([f"{folder}/gloo_bench", str(ranks), str(rank), shared, *options],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for rank in range(ranks)]
        try:
            texts = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.wait() for process in processes):
        raise subprocess.CalledProcessError(1, "gloo_bench")
    return figures(texts[0])


def run_tcp(folder, ranks, options):
    """The bytes of an all-reduce over bare sockets."""
    return run(f"{folder}/tcp_bench", str(ranks), *options)


def run_ping(folder, ranks, options):
    """Round trips over a bare gRPC stream, which two ranks' small messages are held against."""
    return run(f"{folder}/stream_ping_bench", *options) if ranks == 2 else []


def run_mpi(folder, ranks, options):
    return run("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), f"{folder}/mpi_bench",
               *options)


def systems(folder):
    found = {name: run_ours(name) for name in OURS}
    found["tcp"] = run_tcp
    if pathlib.Path(f"{folder}/stream_ping_bench").exists():
        found["grpc"] = run_ping
    for name, program, run in (("gloo", f"{folder}/gloo_bench", run_gloo), ("mpi", f"{folder}/mpi_bench", run_mpi)):
        if pathlib.Path(program).exists() and (name != "mpi" or shutil.which("mpirun")):
            found[name] = run
        else:
            print(f"collective_bench: {name} is missing; ours is not compared with it "
                  "(packages libgloo-dev, libopenmpi-dev and openmpi-bin; build again)", file=sys.stderr)
    return found


def c1_target(op, ranks, size):
    """What our time may be of OpenMPI's over shared memory; None where there is no target."""
    if size <= 1024:
        return 1.5 if op in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all") else None
    if op == "all-reduce":
        return (1 / 2 if ranks == 4 else 1 / 1.5) if size >= 64 << 10 else None
    return 1 / 1.3 if op in ("all-gather", "reduce-scatter", "all-to-all") else None


class Best:
    """A system's best algorithm, by the median of its rounds' medians."""

    def __init__(self, algorithm, rows):
        self.algorithm = algorithm
        medians = [row["p50_us"] for row in rows]
        self.median = statistics.median(medians)
        self.spread = f"{min(medians):.3g}..{max(medians):.3g}, p99 {max(row['p99_us'] for row in rows):.3g}"


def report(key, what, ours, peer, target):
    """`target` is the largest ratio that is permitted, if there is one."""
    ratio = ours.median / peer.median if peer else None
    print(json.dumps({"id": key, "what": what, "ours": ours.median, "peer": peer.median if peer else None, "unit": "us",
                      "ratio": ratio, "target": f"<= {target:.2f} x" if target else None,
                      "met": ratio <= target if target else None,
                      "spread": ours.spread + (f" beside {peer.spread}" if peer else "")}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--systems", help="of shm, stream, tcp, grpc, gloo and mpi; all that are there if not given")
    parser.add_argument("--network", choices=("own", "host"), default="own")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.network == "host":
        arguments.systems = arguments.systems or "stream"
    elif not enter_own_network():
        print("collective_bench: not root: measured on the machine's own network", file=sys.stderr)
    found = systems(arguments.bin)
    if arguments.systems:
        chosen = arguments.systems.split(",")
        if unknown := [name for name in chosen if name not in found]:
            parser.error(f"no system {', '.join(unknown)}; there are {', '.join(found)}")
        found = {name: found[name] for name in chosen}
    sizes = [int(size) for size in arguments.sizes.split(",")]
    samples = {}

    def measure(ranks):
        small = [str(size) for size in sizes if size <= LARGEST_OF_ALL_ROUNDS]
        large = [str(size) for size in sizes if size > LARGEST_OF_ALL_ROUNDS]
        turns = [turn for turn in [small] * arguments.rounds + [large] if turn]
        for number, of_turn in enumerate(turns, 1):
            # A barrier has no size: it is measured beside the small ones.
            ops = [op for op in arguments.ops.split(",") if op != "barrier" or of_turn is not large or not small]
            options = ["--sizes", ",".join(of_turn), "--ops", ",".join(ops)]
            for name, measured in list(found.items()):
                start = time.monotonic()
                try:
                    rows = measured(arguments.bin, ranks, options)
                except subprocess.TimeoutExpired:
                    if name in OURS:
                        raise
                    print(f"collective_bench: {name} took over {PATIENCE_SECONDS} s and is left out", file=sys.stderr)
                    del found[name]
                    continue
                for figure in rows:
                    key = (ranks, figure["op"], figure["bytes"], name, figure["algorithm"])
                    samples.setdefault(key, []).append(figure)
                print(f"collective_bench: {ranks} ranks, turn {number} of {len(turns)}: {name} took "
                      f"{time.monotonic() - start:.0f} s", file=sys.stderr)

    def best(ranks, op, size, name, only_ring=False):
        """The best algorithm; of ours, for reductions, of those that have the reproducible order. None if there is none."""
        def is_meant(algorithm):
            return name not in OURS or op not in REDUCTIONS or (algorithm == "ring") == only_ring

        found = [Best(key[4], rows) for key, rows in samples.items()
                 if key[:4] == (ranks, op, size, name) and is_meant(key[4])]
        return min(found, key=lambda each: each.median, default=None)

    def print_table():
        print(f"{'ranks':>5} {'op':15} {'bytes':>9} {'system':10} {'algorithm':10} {'p50 us':>10} {'p99 us':>10} {'busbw GB/s':>10}")
        for (ranks, op, size, name, algorithm), rows in sorted(samples.items()):
            p50, p99 = (statistics.median(row[key] for row in rows) for key in ("p50_us", "p99_us"))
            share = BUS_SHARE.get(op)
            bandwidth = f"{size * share(ranks) / p50 / 1000:10.2f}" if share else f"{'-':>10}"
            print(f"{ranks:5} {op:15} {size:9} {name:10} {algorithm:10} {p50:10.1f} {p99:10.1f} {bandwidth}")

    def print_results(ranks):
        for _, op, size in sorted({key[:3] for key in samples if key[0] == ranks}):
            what = f"{op}, {ranks} ranks, {size} B"
            ours, gloo = best(ranks, op, size, "stream"), best(ranks, op, size, "gloo")
            if ours and arguments.network == "host":
                report("C2-host", f"{what}: stream ({ours.algorithm}) on the machine's own network", ours, None, None)
            if ours and gloo:
                report("C2", f"{what}: stream ({ours.algorithm}) beside Gloo ({gloo.algorithm})", ours, gloo,
                       1 / 3 if size <= 1024 else 1.0)
            ping = best(ranks, "ping", size, "grpc")
            if ours and ping and op == "all-reduce" and size == 8:
                report("C2", f"{what}: stream ({ours.algorithm}) beside a bare gRPC stream's round trip", ours, ping, 1.3)
            tcp = best(ranks, op, size, "tcp")
            if ours and tcp:
                report("C2", f"{what}: stream ({ours.algorithm}) beside the same bytes over bare TCP", ours, tcp,
                       2.0 if size >= 16 << 20 else None)
            ours, mpi = best(ranks, op, size, "shm"), best(ranks, op, size, "mpi")
            if ours and mpi:
                report("C1", f"{what}: shared memory ({ours.algorithm}) beside OpenMPI", ours, mpi, c1_target(op, ranks, size))
            for name, way in (("shm", "shared memory"), ("stream", "stream")):
                ours, ring = best(ranks, op, size, name), best(ranks, op, size, name, only_ring=True)
                if op in REDUCTIONS and ours and ring and arguments.network == "own":
                    report("C3", f"{what}: {way}, reproducible order ({ours.algorithm}) beside the ring's", ours, ring, 1.1)

    for ranks in map(int, arguments.ranks.split(",")):
        measure(ranks)
        if not arguments.table:
            print_results(ranks)
    if arguments.table:
        print_table()


if __name__ == "__main__":
    main()

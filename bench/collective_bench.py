"""Measures C1 to C3 (docs/benchmarks.md): our collectives beside Gloo's and OpenMPI's, in one run.

    collective_bench.py BIN [--rounds N] [--ranks N,...] [--sizes BYTES,...] [--ops OP,...] [--systems NAME,...]
                        [--table]

BIN is the folder of the benchmark programs. Systems take turns; of each, the best algorithm's median of the rounds counts.
As root everything runs in a network namespace of its own without pacing or delayed acknowledgements, which would stall the
peers; otherwise it says so. A system that takes longer than 5 minutes for one round is left out from there on, which is said
as well. Prints one JSON object for each result as soon as its ranks were measured, or with --table every single figure.
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
PATIENCE_SECONDS = 300
OURS = ("shm", "stream")
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


def report(key, what, ours, peer, target, met):
    print(json.dumps({"id": key, "what": what, "ours": ours, "peer": peer, "unit": "us",
                      "ratio": ours / peer if peer else None, "target": target, "met": met}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--systems", help="of shm, stream, tcp, grpc, gloo and mpi; all that are there if not given")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not enter_own_network():
        print("collective_bench: not root: measured on the machine's own network", file=sys.stderr)
    found = systems(arguments.bin)
    if arguments.systems:
        chosen = arguments.systems.split(",")
        if unknown := [name for name in chosen if name not in found]:
            parser.error(f"no system {', '.join(unknown)}; there are {', '.join(found)}")
        found = {name: found[name] for name in chosen}
    options = ["--sizes", arguments.sizes, "--ops", arguments.ops]
    samples = {}

    def measure(ranks):
        for turn in range(1, arguments.rounds + 1):
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
                print(f"collective_bench: {ranks} ranks, round {turn} of {arguments.rounds}: {name} took "
                      f"{time.monotonic() - start:.0f} s", file=sys.stderr)

    def best(ranks, op, size, name):
        """The best algorithm's median p50, and the algorithm."""
        medians = [(statistics.median(figure["p50_us"] for figure in figures), key[4])
                   for key, figures in samples.items() if key[:4] == (ranks, op, size, name)]
        return min(medians, default=(None, None))

    def print_table():
        print(f"{'ranks':>5} {'op':15} {'bytes':>9} {'system':10} {'algorithm':10} {'p50 us':>10} {'p99 us':>10} {'busbw GB/s':>10}")
        for (ranks, op, size, name, algorithm), rows in sorted(samples.items()):
            p50, p99 = (statistics.median(row[key] for row in rows) for key in ("p50_us", "p99_us"))
            share = BUS_SHARE.get(op)
            bandwidth = f"{size * share(ranks) / p50 / 1000:10.2f}" if share else f"{'-':>10}"
            print(f"{ranks:5} {op:15} {size:9} {name:10} {algorithm:10} {p50:10.1f} {p99:10.1f} {bandwidth}")

    def print_results(ranks):
        for _, op, size in sorted({key[:3] for key in samples if key[0] == ranks}):
            ours, algorithm = best(ranks, op, size, "stream")
            gloo, gloo_algorithm = best(ranks, op, size, "gloo")
            what = f"{op}, {ranks} ranks, {size} B"
            if gloo and ours:
                target = 1 / 3 if size <= 1024 else 1.0
                report("C2", f"{what}: stream ({algorithm}) beside Gloo ({gloo_algorithm})", ours, gloo, f"<= {target:.2f} x",
                       ours <= target * gloo)
            ping, _ = best(ranks, "ping", size, "grpc")
            if ping and ours and op == "all-reduce" and size == 8:
                report("C2", f"{what}: stream ({algorithm}) beside a bare gRPC stream's round trip", ours, ping, "<= 1.30 x",
                       ours <= 1.3 * ping)
            tcp, _ = best(ranks, op, size, "tcp")
            if tcp and ours:
                is_large = size >= 16 << 20
                report("C2", f"{what}: stream ({algorithm}) beside the same bytes over bare TCP", ours, tcp,
                       "<= 2.00 x" if is_large else None, ours <= 2 * tcp if is_large else None)
            ours, algorithm = best(ranks, op, size, "shm")
            mpi, _ = best(ranks, op, size, "mpi")
            target = c1_target(op, ranks, size)
            if mpi and ours:
                report("C1", f"{what}: shared memory ({algorithm}) beside OpenMPI", ours, mpi,
                       f"<= {target:.2f} x" if target else None, ours <= target * mpi if target else None)

    for ranks in map(int, arguments.ranks.split(",")):
        measure(ranks)
        if not arguments.table:
            print_results(ranks)
    if arguments.table:
        print_table()


if __name__ == "__main__":
    main()

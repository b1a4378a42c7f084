#!/usr/bin/env python3
"""K5: a Llama-shaped model of 1.1 billion parameters, BF16, random weights: prompts of 512 tokens and decoding, in tokens a
second, on 2 workers of one thread each (with --ranks 4, 4 workers).

Beside llama.cpp with as many threads as the machine has cores, in one process (BF16) and over its RPC backend (2 servers of
one thread each); and beside PyTorch, one process of all threads and tensor-parallel over Gloo, of which the faster counts.
bench/peers/build_llama_cpp.sh builds llama.cpp, and the packages gguf and torch must be installed (bench/peers/turns.py);
what is missing is left out, and said. The sides take turns. The time of the prompts is that of the step; that of decoding
is the client's. As root, all runs in a network of its own. Prints one JSON object a line.

usage: llama_bench.py BIN_FOLDER [--rounds N] [--ranks N] [--new N] [--size 1b|tiny] [--without NAME,...]
"""

import argparse
import contextlib
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from bench_cluster import Cluster
from own_network import enter_own_network
from peers.turns import TurnProgram, peer_interpreter
from results import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench/peers"
LLAMA_CPP = ROOT / "build/llama"
PROMPTS = {"1b": 512, "tiny": 64}  # tokens, by size of the model
BATCH_PROMPT = 64  # of each sequence of a batch: long ones would only take longer
BATCHES = (1, 8)
# The least ratio of our rate to a peer's, by peer: of prompts, and of decoding with each batch. (0.95, not 1.2, of
# llama.cpp in one process is asked for at batch 1.)
TARGETS = {"llama.cpp": (1.3, 0.95, 1.2), "llama.cpp RPC": (1.3, 1.5, 1.5), "PyTorch": (1.2, 1.2, 1.2)}


@contextlib.contextmanager
def rpc_servers(count):
    """Starts servers of llama.cpp's RPC backend; yields their addresses."""
    addresses, processes = [], []
    try:
        for _ in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            processes.append(subprocess.Popen([LLAMA_CPP / "rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", "1"],
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            addresses.append(f"127.0.0.1:{port}")
        time.sleep(1)
        yield addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_llama_cpp(stack, folder, python):
    """The peers by llama.cpp that can run."""
    program = LLAMA_CPP / "llama_cpp_peer"
    if not program.exists():
        print("llama_bench: bench/peers/build_llama_cpp.sh has not built llama.cpp: not compared with it", file=sys.stderr)
        return {}
    model = folder / "model.gguf"
    if not python or subprocess.run([python, PEERS / "llama_gguf.py", folder, model, "BF16"], check=False).returncode != 0:
        print("llama_bench: cannot write the model as GGUF: not compared with llama.cpp", file=sys.stderr)
        return {}
    servers = stack.enter_context(rpc_servers(2))
    return {"llama.cpp": [stack.enter_context(TurnProgram(program, model, os.cpu_count()))],
            "llama.cpp RPC": [stack.enter_context(TurnProgram(program, model, 1, *servers))]}


def start_torch(stack, folder, python):
    if not python:
        return {}
    return {"PyTorch": [stack.enter_context(TurnProgram(python, PEERS / "torch_compute_peer.py", "llama", folder, ranks, show_errors=False))
                        for ranks in (1, 2)]}


def measure(programs, rounds, first_prompt, new):
    """Tokens a second of each side: of prompts, and of decoding with each batch. Of several programs, the fastest counts."""
    rates = {name: {} for name in programs}
    for _ in range(rounds):
        for name, of_side in programs.items():
            verb = "generate " if name == "ours" else ""
            for batch in BATCHES:
                prompt = first_prompt if batch == 1 else BATCH_PROMPT
                answers = [program.ask_json(f"{verb}{batch} {prompt} {new}") for program in of_side]
                if batch == 1:
                    rates[name].setdefault("prefill", []).append(max(prompt / answer["prefill_s"] for answer in answers))
                rates[name].setdefault(batch, []).append(
                    max(batch * answer["decode_steps"] / answer["decode_s"] for answer in answers))
    return {name: {what: statistics.median(values) for what, values in of_side.items()} for name, of_side in rates.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--new", type=int, default=33)
    parser.add_argument("--size", choices=tuple(PROMPTS), default="1b")
    parser.add_argument("--without", default="", help="of llama.cpp and torch")
    arguments = parser.parse_args()
    if not enter_own_network():
        print("llama_bench: not root: measured on the machine's own network", file=sys.stderr)
    without = arguments.without.split(",")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "llama"
        subprocess.run([arguments.bin / "shardmesh", "make-checkpoint", "--arch", "llama", "--size", arguments.size, "--dtype", "BF16",
                        "--folder", "--quiet", "--out", folder], check=True, stdout=subprocess.DEVNULL)
        cluster = stack.enter_context(Cluster(arguments.bin / "shardmesh", "--mesh", f"tp={arguments.ranks}"))
        address = cluster.run("status")["address"]
        programs = {"ours": [stack.enter_context(TurnProgram(arguments.bin / "model_bench", address, folder))]}
        if "torch" not in without or "llama.cpp" not in without:
            python = peer_interpreter("torch")
        if "llama.cpp" not in without:
            programs.update(start_llama_cpp(stack, folder, python))
        if "torch" not in without:
            programs.update(start_torch(stack, folder, python))
        prompt = PROMPTS[arguments.size]
        rates = measure(programs, arguments.rounds, prompt, arguments.new)
        names = [name for name in rates if name != "ours"]
        for what, text in (("prefill", f"a prompt of {prompt} tokens"), *((batch, f"decoding, batch {batch}") for batch in BATCHES)):
            for name in names or [None]:
                target = TARGETS[name][("prefill", *BATCHES).index(what)] if name and arguments.size == "1b" else None
                report(f"K5-{what}", f"Llama shape of {arguments.size}, BF16, {arguments.ranks} workers, {text}"
                       + (f", beside {name}" if name else ""), rates["ours"][what], "tokens/s",
                       peer=rates[name][what] if name else None, at_least=target)


if __name__ == "__main__":
    main()

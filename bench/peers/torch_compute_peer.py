"""What PyTorch does in place of a cluster that computes, on the CPU.

    torch_compute_peer.py mlp RANKS               lines DTYPE ROWS RUNS; DTYPE is F32 or BF16
    torch_compute_peer.py llama FOLDER RANKS      lines PROMPTS LENGTH NEW
    torch_compute_peer.py minilm FOLDER THREADS   lines SENTENCES LENGTH RUNS

Prints "ready" before it reads its input. `mlp` and `llama` are tensor-parallel over Gloo, in one process of one thread for
each rank; `llama` with one rank, and `minilm`, are one process with as many threads as the machine has cores, or THREADS.
Answers: mlp and minilm, the median seconds of a run; llama, JSON with prefill_s and decode_s. FOLDER has a model's
config.json and model.safetensors.
"""

import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_llama import Llama  # noqa: E402
from torch_minilm import MiniLm  # noqa: E402
from torch_peer import run_ranks, run_turns  # noqa: E402

HIDDEN, INNER = 4096, 11008
WARM_RUNS = 3


def median_seconds(call, runs):
    times = []
    for _ in range(WARM_RUNS + runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_RUNS:])


def mlp(ranks):
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    from torch.nn.functional import linear, silu  # pylint: disable=import-outside-toplevel

    def body(rank):
        torch.set_num_threads(1)
        weights = {}

        def turn(line):
            dtype_name, rows, runs = line.split()
            dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[dtype_name]
            if dtype not in weights:
                part = INNER // ranks
                weights[dtype] = ((torch.randn(part, HIDDEN) / HIDDEN**0.5).to(dtype),
                                  (torch.randn(HIDDEN, part) / INNER**0.5).to(dtype))
            up, down = weights[dtype]
            x = torch.randn(int(rows), HIDDEN).to(dtype)

            def run():
                y = linear(silu(linear(x, up)), down)
                dist.all_reduce(y)
                return y

            with torch.inference_mode():
                return median_seconds(run, int(runs))

        run_turns(rank, turn)

    run_ranks(ranks, body)


def llama_turn(model):
    def turn(line):
        prompts, length, new = map(int, line.split())
        return json.dumps(model.generate(prompts, length, new))
    return turn


def llama(folder, ranks):
    import torch  # pylint: disable=import-outside-toplevel

    def body(rank):
        torch.set_num_threads(1)
        run_turns(rank, llama_turn(Llama(folder, rank, ranks)))

    if ranks > 1:
        run_ranks(ranks, body)
    torch.set_num_threads(os.cpu_count())
    answer_lines(llama_turn(Llama(folder, 0, 1)))


def minilm(folder, threads):
    import torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(threads)
    model = MiniLm(folder)

    def turn(line):
        sentences, length, runs = map(int, line.split())
        ids = torch.randint(0, model.vocabulary_size, (sentences, length))
        with torch.inference_mode():
            return median_seconds(lambda: model.embed(ids), runs)

    answer_lines(turn)


def answer_lines(turn):
    print("ready", flush=True)
    for line in sys.stdin:
        print(turn(line), flush=True)


def main():
    verb, *arguments = sys.argv[1:]
    if verb == "mlp":
        mlp(int(arguments[0]))
    elif verb == "llama":
        llama(arguments[0], int(arguments[1]))
    else:
        minilm(arguments[0], int(arguments[1]))


if __name__ == "__main__":
    main()

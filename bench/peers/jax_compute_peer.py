"""What JAX does in place of a cluster that computes: a tensor-parallel MLP, compiled by jit, one process a rank, over Gloo.

    jax_compute_peer.py RANKS      lines DTYPE ROWS RUNS; DTYPE is F32 or BF16

Prints "ready" before it reads its input, and answers each line by the median seconds of a run. Each process has one thread.
"""

import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_compute_peer import HIDDEN, INNER, median_seconds  # noqa: E402


def run_rank(rank, ranks, port, lines, answers):
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax  # pylint: disable=import-outside-toplevel
    import jax.numpy as jnp  # pylint: disable=import-outside-toplevel
    import numpy as np  # pylint: disable=import-outside-toplevel
    from jax.sharding import Mesh, NamedSharding, PartitionSpec  # pylint: disable=import-outside-toplevel
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
    mesh = Mesh(np.array(jax.devices()), ("tp",))

    def put(shape, dtype, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))

        def part(index):
            extents = [len(range(*one.indices(extent))) for one, extent in zip(index, shape)]
            values = np.random.default_rng(1).standard_normal(extents, np.float32) / shape[-1]**0.5
            return values.astype(dtype)

        return jax.make_array_from_callback(shape, sharding, part)

    run = jax.jit(lambda x, up, down: jax.nn.silu(x @ up.T) @ down.T,
                  out_shardings=NamedSharding(mesh, PartitionSpec()))
    weights = {}
    if rank == 0:
        print("ready", file=answers, flush=True)
    for line in lines:
        dtype_name, rows, runs = line.split()
        dtype = {"F32": jnp.float32, "BF16": jnp.bfloat16}[dtype_name]
        if dtype_name not in weights:
            weights[dtype_name] = (put((INNER, HIDDEN), dtype, "tp", None), put((HIDDEN, INNER), dtype, None, "tp"))
        x = put((int(rows), HIDDEN), dtype)
        median = median_seconds(lambda: run(x, *weights[dtype_name]).block_until_ready(), int(runs))
        if rank == 0:
            print(median, file=answers, flush=True)


def main():
    ranks = int(sys.argv[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Gloo writes to standard output
    pipes = [os.pipe() for _ in range(ranks)]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            for other, (_, writer) in enumerate(pipes):
                os.close(writer)
                if other != rank:
                    os.close(pipes[other][0])
            with os.fdopen(pipes[rank][0], encoding="utf-8") as lines:
                run_rank(rank, ranks, port, lines, answers)
            os._exit(0)
        children.append(child)
    writers = [os.fdopen(writer, "w", encoding="utf-8") for _, writer in pipes]
    for line in sys.stdin:
        for writer in writers:
            print(line.strip(), file=writer, flush=True)
    for writer in writers:
        writer.close()
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()

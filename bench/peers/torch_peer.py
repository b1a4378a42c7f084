"""What PyTorch does in place of a cluster: torch.distributed.checkpoint and DTensor, one process a rank, over Gloo.

    torch_peer.py save CHECKPOINT RANKS   saves into each folder that a line of its input names; prints seconds
    torch_peer.py reshard MIB RANKS       moves rows to columns for each line of its input; prints seconds

Prints "ready" before it reads its input. Rank 0 reads the lines and tells the others.
"""

import os
import pathlib
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from jax_peer import COLUMN, ROW, tensors  # noqa: E402


def run_turns(rank, turn):
    """Calls `turn(line)` on all ranks for each line of rank 0's input; rank 0 prints what it returns, or else the seconds."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    dist.barrier()
    if rank == 0:
        print("ready", flush=True)
    while True:
        line = [sys.stdin.readline().strip() if rank == 0 else None]
        dist.broadcast_object_list(line, src=0)
        if not line[0]:
            return
        start = time.perf_counter()
        answer = turn(line[0])
        dist.barrier()
        if rank == 0:
            print(time.perf_counter() - start if answer is None else answer, flush=True)


def save(rank, mesh, path):
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # pylint: disable=import-outside-toplevel

    def placement(name):
        if any(part in name for part in COLUMN):
            return Shard(0)
        return Shard(1) if any(part in name for part in ROW) else Replicate()

    state = {name: distribute_tensor(torch.from_numpy(tensor), mesh, [placement(name)], src_data_rank=None)
             for name, tensor in tensors(path)}
    run_turns(rank, lambda folder: dcp.save(state, checkpoint_id=folder))


def reshard(rank, mesh, mebibytes):
    import torch  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import DTensor, Shard  # pylint: disable=import-outside-toplevel
    columns = 16_384
    rows = (mebibytes << 20) // 4 // columns // mesh.size()
    source = DTensor.from_local(torch.zeros(rows, columns), mesh, [Shard(0)])
    source.redistribute(placements=[Shard(1)])  # warm
    run_turns(rank, lambda _: source.redistribute(placements=[Shard(1)]))


def run_rank(rank, ranks, port, body, stdin):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    if rank == 0:
        sys.stdin = os.fdopen(stdin, encoding="utf-8")
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    dist.init_process_group("gloo")
    body(rank)
    dist.destroy_process_group()


def run_ranks(ranks, body):
    """Calls `body(rank)` in one process for each rank, over Gloo, and exits when all have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            run_rank(rank, ranks, port, body, os.dup(0))
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def main():
    verb, argument, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def body(rank):
        from torch.distributed.device_mesh import init_device_mesh  # pylint: disable=import-outside-toplevel
        mesh = init_device_mesh("cpu", (ranks,))
        if verb == "save":
            save(rank, mesh, argument)
        else:
            reshard(rank, mesh, int(argument))

    run_ranks(ranks, body)


if __name__ == "__main__":
    main()

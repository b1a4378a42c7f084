"""What JAX and Orbax do in place of a cluster: load, save or reshard, with as many CPU devices as the cluster has workers.

    jax_peer.py load CHECKPOINT RANKS whole|each   prints the seconds of one load
    jax_peer.py save CHECKPOINT RANKS              saves into each folder that a line of its input names; prints seconds
    jax_peer.py reshard MIB RANKS                  moves rows to columns for each line of its input; prints seconds

`save` and `reshard` print "ready" before they read their input, so that both sides can take turns.
"""

import json
import os
import pathlib
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from touched_memory import touch_memory  # noqa: E402

COLUMN = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW = ("o_proj", "down_proj")


def make_mesh(ranks):
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # pylint: disable=import-outside-toplevel
    import numpy as np  # pylint: disable=import-outside-toplevel
    return jax.sharding.Mesh(np.array(jax.devices()), ("tp",))


def sharding(mesh, *parts):
    from jax.sharding import NamedSharding, PartitionSpec  # pylint: disable=import-outside-toplevel
    return NamedSharding(mesh, PartitionSpec(*parts))


def sharding_of(mesh, name):
    """The layout that docs/examples/llama.yaml gives the tensor."""
    if any(part in name for part in COLUMN):
        return sharding(mesh, "tp", None)
    if any(part in name for part in ROW):
        return sharding(mesh, None, "tp")
    return sharding(mesh)


def tensors(path):
    """Names and arrays of a safetensors file of F32, each read when it is asked for."""
    import numpy as np  # pylint: disable=import-outside-toplevel
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                yield name, np.fromfile(file, dtype=np.float32, count=(end - begin) // 4).reshape(entry["shape"])


def load(path, ranks, way):
    mesh = make_mesh(ranks)
    import jax  # pylint: disable=import-outside-toplevel
    touch_memory()
    start = time.perf_counter()
    if way == "whole":
        host = dict(tensors(path))
        arrays = jax.device_put(host, {name: sharding_of(mesh, name) for name in host})
    else:
        arrays = [jax.device_put(tensor, sharding_of(mesh, name)) for name, tensor in tensors(path)]
    jax.block_until_ready(arrays)
    print(time.perf_counter() - start, flush=True)


def save(path, ranks):
    mesh = make_mesh(ranks)
    import jax  # pylint: disable=import-outside-toplevel
    import orbax.checkpoint  # pylint: disable=import-outside-toplevel
    arrays = {name: jax.device_put(tensor, sharding_of(mesh, name)) for name, tensor in tensors(path)}
    jax.block_until_ready(arrays)
    checkpointer = orbax.checkpoint.StandardCheckpointer()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        checkpointer.save(line.strip(), arrays)
        checkpointer.wait_until_finished()
        print(time.perf_counter() - start, flush=True)


def reshard(mebibytes, ranks):
    mesh = make_mesh(ranks)
    import jax  # pylint: disable=import-outside-toplevel
    import numpy as np  # pylint: disable=import-outside-toplevel
    columns = 16_384
    rows = (mebibytes << 20) // 4 // columns
    source = jax.block_until_ready(
        jax.device_put(np.zeros((rows, columns), np.float32), sharding(mesh, "tp", None)))
    jax.block_until_ready(jax.device_put(source, sharding(mesh, None, "tp")))  # warm
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        moved = jax.block_until_ready(jax.device_put(source, sharding(mesh, None, "tp")))
        print(time.perf_counter() - start, flush=True)
        del moved


def main():
    verb, *arguments = sys.argv[1:]
    if verb == "load":
        load(arguments[0], int(arguments[1]), arguments[2])
    elif verb == "save":
        save(arguments[0], int(arguments[1]))
    else:
        reshard(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main()

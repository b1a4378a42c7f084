"""The checkpoint that the benchmarks of the store read."""

import pathlib
import subprocess


def checkpoint_of(shardmesh, folder, size="2GiB"):
    """Returns the path of a checkpoint of this size below a folder. Makes both if they do not exist yet."""
    path = pathlib.Path(folder) / f"{size}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        subprocess.run([shardmesh, "make-checkpoint", "--size", size, "--out", str(path)], check=True,
                       capture_output=True)
    return str(path)

"""Reads the weights of a model's folder into PyTorch tensors, without the package safetensors."""

import json
import mmap
import pathlib
import struct

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64"}


def read_model(folder):
    """The configuration, and the tensors by name."""
    import torch  # pylint: disable=import-outside-toplevel
    config = json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))
    with open(pathlib.Path(folder) / "model.safetensors", "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype = getattr(torch, DTYPES[entry["dtype"]])
            flat = torch.frombuffer(content, dtype=dtype, offset=8 + size + begin, count=(end - begin) // dtype.itemsize)
            tensors[name] = flat.reshape(entry["shape"])
    return config, tensors

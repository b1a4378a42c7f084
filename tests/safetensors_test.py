"""Files of the safetensors and numpy packages, in and out of a cluster: `load`, `get` and `get --tree`.

    with_packages.py safetensors_test.py BIN    BIN: the folder of the programs

Starts a cluster of its own in a new folder, and stops it.
"""

import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import safetensors
import safetensors.numpy

RULES = "rules:\n- {pattern: 'row', spec: [tp, null]}\n- {pattern: 'column', spec: [null, tp]}\n- {pattern: '.*', spec: []}\n"


class Failed(Exception):
    """What is wrong, in words."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


class Programs:
    """The programs of a folder, with a cluster of their own."""

    def __init__(self, binaries, folder):
        self._shardmesh = str(pathlib.Path(binaries) / "shardmesh")
        self._folder = folder
        self._environment = {**os.environ, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder),
                             "XDG_CONFIG_HOME": str(folder)}

    def __enter__(self):
        self.run("up", "--mesh", "tp=2", "--detach")
        return self

    def __exit__(self, *_):
        self.run("down")

    def run(self, *arguments, code=0):
        done = subprocess.run([self._shardmesh, *arguments], env=self._environment, cwd=self._folder,
                              capture_output=True, timeout=120, check=False)
        expect(done.returncode == code,
               f"{' '.join(arguments)}: exit code {done.returncode}, not {code}: {done.stderr.decode()}")
        return done


def element_bytes(seed, count):
    return numpy.random.default_rng(seed).integers(0, 256, count, dtype=numpy.uint8).tobytes()


def tensors_of(path):
    """Type, shape and bytes of each tensor of a file, by name, as the package reads them."""
    return {name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
            for name, tensor in safetensors.deserialize(pathlib.Path(path).read_bytes())}


def make_source(path):
    """Writes a file with the package, with tensors of types that numpy lacks."""
    header = {}
    data = b""
    for name, dtype, bits, shape in (("row.f32", "F32", 32, (8, 12)), ("column.bf16", "BF16", 16, (6, 16)),
                                     ("row.f8", "F8_E4M3", 8, (4, 10)), ("all.f8", "F8_E5M2", 8, (3, 5)),
                                     ("column.i64", "I64", 64, (3, 4)), ("all.f16", "F16", 16, (7,)),
                                     ("all.bool", "BOOL", 8, (2, 2)), ("all.scalar", "F32", 32, ())):
        count = 1
        for size in shape:
            count *= size
        chunk = element_bytes(len(header), count * bits // 8)
        if dtype == "BOOL":
            chunk = bytes(byte & 1 for byte in chunk)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(chunk)]}
        data += chunk
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return tensors_of(path)  # the package has to accept it


def check_files(programs, folder, source):
    programs.run("get", "--tree", "", "--out", "all.safetensors")
    expect(tensors_of(folder / "all.safetensors") == source, "a tree came back in one file, but changed")
    with safetensors.safe_open(folder / "all.safetensors", framework="numpy") as file:
        expect(file.metadata() == {"format": "pt"}, f"the metadata are {file.metadata()}")
        expect(file.get_tensor("row.f32").shape == (8, 12), "safe_open reads another shape")

    programs.run("get", "row.f32", "column.bf16", "--out", "two.safetensors", "--slice", "1:5,2:")
    cut = tensors_of(folder / "two.safetensors")
    whole = numpy.frombuffer(source["row.f32"][2], numpy.uint32).reshape(8, 12)
    expect(cut["row.f32"] == ("F32", (4, 10), whole[1:5, 2:].tobytes()), "a slice of F32 is wrong")
    whole = numpy.frombuffer(source["column.bf16"][2], numpy.uint16).reshape(6, 16)
    expect(cut["column.bf16"] == ("BF16", (4, 14), whole[1:5, 2:].tobytes()), "a slice of BF16 is wrong")


def check_folder(programs, folder, source):
    programs.run("get", "--tree", "", "--out", "model", "--max-shard-size", "200")
    index = json.loads((folder / "model/model.safetensors.index.json").read_text())
    expect(set(index["weight_map"]) == set(source), "the index has other tensors")
    expect(index["metadata"]["total_size"] == sum(len(tensor[2]) for tensor in source.values()),
           "the index has another size")
    read = {}
    for name in sorted(set(index["weight_map"].values())):
        tensors = tensors_of(folder / "model" / name)
        expect(all(index["weight_map"][tensor] == name for tensor in tensors), f"{name} has other tensors")
        expect(len(tensors) == 1 or sum(len(tensor[2]) for tensor in tensors.values()) <= 200, f"{name} is too large")
        read.update(tensors)
    expect(read == source, "a tree came back in a folder, but changed")
    refused = programs.run("get", "--tree", "", "--out", "model", code=1)
    expect(b"ALREADY_EXISTS" in refused.stderr, f"over a folder: {refused.stderr.decode()}")
    programs.run("get", "--tree", "none.", "--out", "none", code=1)
    programs.run("load", "model", "--rules", "rules.yaml")  # as a user loads it elsewhere


def check_npy(programs, folder, source):
    whole = numpy.frombuffer(source["row.f32"][2], numpy.float32).reshape(8, 12)
    programs.run("get", "row.f32", "--out", "w.npy", "--slice", "2:5,1:")
    expect(numpy.load(folder / "w.npy").tobytes() == whole[2:5, 1:].tobytes(), "numpy reads another slice")
    piped = programs.run("get", "row.f32", "--out", "-").stdout
    expect(numpy.load(io.BytesIO(piped)).tobytes() == whole.tobytes(), "numpy reads other bytes from the pipe")
    programs.run("get", "column.bf16", "--out", "b.npy")
    raw = numpy.load(folder / "b.npy")
    expect(raw.dtype == numpy.dtype("V2") and raw.shape == (6, 16), f"BF16 is {raw.dtype} {raw.shape}")
    expect(raw.tobytes() == source["column.bf16"][2], "BF16 came back changed")
    refused = programs.run("get", "row.f8", "--out", "f8.npy", code=1)
    expect(b"safetensors" in refused.stderr, f"F8 as .npy: {refused.stderr.decode()}")
    expect(not (folder / "f8.npy").exists(), "a refused file is there")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rules.yaml").write_text(RULES, encoding="ascii")
        source = make_source(folder / "source.safetensors")
        with Programs(sys.argv[1], folder) as programs:
            programs.run("load", "source.safetensors", "--rules", "rules.yaml")
            check_files(programs, folder, source)
            check_folder(programs, folder, source)
            check_npy(programs, folder, source)
        left = [path.name for path in folder.rglob("*.partial*")]
        expect(not left, f"temporary files are left: {left}")
    print("files of safetensors and numpy go in and out unchanged")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"FAILED: {failed}")

"""Checkpoints of the packages numpy and safetensors, both ways, through real workers.

    with_packages.py checkpoint_files_test.py BIN    BIN: the folder of the programs

Starts a cluster of its own in a new folder, and stops it.
"""

import contextlib
import json
import os
import resource
import subprocess

import numpy
import safetensors.numpy

import own_cluster
from own_cluster import SECONDS, Failed, expect

# Memory that a load of a converted tensor of 256 MiB may take for itself, as opposed to mapped files. The converted tensor
# alone has 128 MiB.
MEMORY_BYTES = 48 << 20
STACK_BYTES = 256 << 10  # of each thread
ALL_WHOLE = "rules:\n- {pattern: '.*', spec: []}\n"
COLUMNS = "rules:\n- {pattern: 'kernel|^x', spec: [null, tp]}\n- {pattern: '.*', spec: []}\n"


def same(have, want):
    """Whether two arrays have the same shape, type and bits."""
    return have.shape == want.shape and have.dtype == want.dtype and have.tobytes() == want.tobytes()


def bf16(array):
    """The bits of an F32 array as BF16: to nearest, ties to even."""
    bits = array.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


class Test:
    def __init__(self, programs, folder):
        self.program = programs / "shardmesh"
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDMESH_")}
        self.environment.update(XDG_RUNTIME_DIR=str(folder), XDG_CONFIG_HOME=str(folder), TMPDIR=str(folder),
                                HOME=str(folder), LANG="C.UTF-8")
        self.random = numpy.random.default_rng(7)
        (folder / "whole.yaml").write_text(ALL_WHOLE)
        (folder / "columns.yaml").write_text(COLUMNS)

    def call(self, *arguments, error=None, limit=None):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, env=self.environment, text=True,
                              capture_output=True, timeout=SECONDS, check=False, preexec_fn=limit)
        words = " ".join(map(str, arguments))
        if error is None:
            expect(done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}")
        else:
            expect(done.returncode != 0, f"{words}: succeeds, but should fail with {error!r}")
            expect(error in done.stderr, f"{words}: no {error!r} in {done.stderr!r}")
        return done.stdout

    def load(self, path, *arguments, rules="whole.yaml", source="client", **options):
        return self.call("load", path, "--rules", rules, "--quiet", "--cluster", "files", "--source", source, *arguments,
                         **options)

    def get(self, name):
        self.call("get", name, "--out", "out.npy", "--cluster", "files")
        return numpy.load(self.folder / "out.npy")

    @contextlib.contextmanager
    def running_cluster(self):
        try:
            self.call("up", "--cluster", "files", "--mesh", "tp=2", "--detach", "--read-root", self.folder,
                      "--write-root", self.folder)
            yield
        finally:
            subprocess.run([self.program, "down", "--cluster", "files"], cwd=self.folder, env=self.environment,
                           capture_output=True, timeout=SECONDS, check=False)

    def some_arrays(self):
        make = self.random.standard_normal
        return {
            "f4": make((3, 5)).astype("<f4"), "layer.0/f8": make((2, 3, 4)), "f2": make(7).astype("<f2"),
            "i8": numpy.arange(-3, 3), "u1": numpy.arange(5, dtype="u1"), "bool": numpy.array([True, False]),
            "scalar": numpy.array(2.5), "empty": numpy.zeros((0, 4), "<f4"), "c8": make(4).astype("<c8"),
            "fortran": numpy.asfortranarray(make((6, 7)).astype("<f4")),
            "fortran3": numpy.asfortranarray(make((2, 3, 4)).astype("<f2")),
        }

    # Each of the following is one test.

    def npz_of_numpy_is_loaded_bit_for_bit(self):
        arrays = self.some_arrays()
        numpy.savez(self.folder / "a.npz", **arrays)
        told = self.load("a.npz")
        expect(f"Loaded {len(arrays)} tensors" in told, told)
        for name, array in arrays.items():
            expect(same(self.get(name), numpy.ascontiguousarray(array).reshape(array.shape)), f"{name} differs")

    def folders_of_npy_files_are_loaded(self):
        (self.folder / "npys").mkdir()
        arrays = {"p.a": self.random.standard_normal((4, 4)), "p.b": numpy.asfortranarray(numpy.eye(3, 5))}
        for name, array in arrays.items():
            numpy.save(self.folder / "npys" / f"{name}.npy", array)
        self.load("npys")
        for name, array in arrays.items():
            expect(same(self.get(name), numpy.ascontiguousarray(array)), f"{name} differs")

    def files_of_safetensors_without_an_index_are_loaded(self):
        (self.folder / "shards").mkdir()
        parts = [{"s.a": self.random.standard_normal((4, 6)).astype("f4")}, {"s.b": numpy.arange(9, dtype="i4")}]
        for number, part in enumerate(parts, 1):
            safetensors.numpy.save_file(part, self.folder / "shards" / f"m-0000{number}-of-00002.safetensors")
        self.load("shards")
        for part in parts:
            for name, array in part.items():
                expect(same(self.get(name), array), f"{name} differs")
        safetensors.numpy.save_file(parts[0], self.folder / "shards" / "again.safetensors")
        self.load("shards", error='tensor "s.a" is in ')
        (self.folder / "shards" / "again.safetensors").unlink()
        (self.folder / "shards" / "m-00001-of-00002.safetensors").unlink()
        self.load("shards", error="1 of the 2 files of m")

    def what_is_written_is_read_by_the_packages(self):
        self.call("make-checkpoint", "--out", "made.safetensors")
        made = safetensors.numpy.load_file(self.folder / "made.safetensors")
        self.load("made.safetensors")
        for name, array in list(made.items())[:5]:
            expect(same(self.get(name), array), f"{name} differs")

    def workers_read_what_the_packages_wrote(self):
        arrays = {name: numpy.ascontiguousarray(array) for name, array in self.some_arrays().items()}
        safetensors.numpy.save_file(arrays, self.folder / "workers.safetensors")
        answer = json.loads(self.load("workers.safetensors", "--output", "json", source="workers"))
        expect(answer["read_by"] == "workers" and answer["sent_bytes"] == 0, f"who read: {answer}")
        for name, array in arrays.items():
            expect(same(self.get(name), array), f"{name} came back changed")
        numpy.save(self.folder / "workers.npy", arrays["layer.0/f8"])
        self.call("put", "workers.npy", "--as", "npy", "--spec=tp", "--source", "workers", "--cluster", "files")
        expect(same(self.get("npy"), arrays["layer.0/f8"]), "a .npy file came back changed")

    def the_package_reads_what_workers_save(self):
        arrays = {f"saved/{name}": numpy.ascontiguousarray(array) for name, array in self.some_arrays().items()}
        safetensors.numpy.save_file(arrays, self.folder / "before.safetensors")
        self.load("before.safetensors")
        self.call("save", "saved/", self.folder / "run", "--step", "3", "--single-file", "--cluster", "files")
        saved = safetensors.numpy.load_file(self.folder / "run" / "step-00000003" / "model.safetensors")
        expect(saved.keys() == arrays.keys(), f"other names: {sorted(saved)}")
        for name, array in arrays.items():
            expect(same(saved[name], array), f"{name} was saved with other bits")

    def a_map_transposes_and_converts_onto_columns(self):
        weight = self.random.standard_normal((96, 130)).astype("f4")
        weight[0, :4] = numpy.inf, -numpy.inf, numpy.nan, 1e-40
        numpy.savez(self.folder / "torch.npz", **{"h.0.weight": weight, "h.0.bias": weight[0], "step": numpy.arange(3),
                                                  "ids": numpy.arange(3)})
        (self.folder / "map.yaml").write_text(r"""
tensors:
  - {pattern: '^h\.(\d+)\.weight$', replace: 'layers_\1/kernel', transpose: true, shape: [130, 96]}
  - {pattern: ids, skip: true}
  - {pattern: nothing}
""")
        planned = json.loads(self.call("plan", "torch.npz", "--map", "map.yaml", "--dtype", "bfloat16", "--rules",
                                       "columns.yaml", "--mesh", "tp=2", "-ojson"))
        told = json.loads(self.load("torch.npz", "--map", "map.yaml", "--dtype", "BF16", "-ojson", rules="columns.yaml"))
        expect(planned["tensors"] == told["tensors"], "plan and load differ")
        expect(planned["mapping"] == told["mapping"], "plan and load map otherwise")
        mapping = told["mapping"]
        expect([mapping[key] for key in ("renamed", "transposed", "converted")] == [1, 1, 2], f"{mapping}")
        expect(mapping["skipped"] == ["ids"] and mapping["unused_rules"] == ["map.yaml:5:5"], f"{mapping}")
        kernel = self.get("layers_0/kernel")
        expect(kernel.shape == (130, 96) and kernel.dtype.itemsize == 2, f"{kernel.shape} {kernel.dtype}")
        have = kernel.view(numpy.uint16)
        nan = numpy.isnan(weight.T)
        expect((have[~nan] == bf16(weight.T)[~nan]).all(), "the kernel has other bits")
        expect(((have[nan] & 0x7FFF) > 0x7F80).all(), "a NaN is lost")
        told = json.loads(self.load("torch.npz", "--map", "map.yaml", "--dtype", "BF16", "--no-reuse", "-ojson",
                                    rules="columns.yaml", source="workers"))
        expect(told["read_by"] == "workers" and told["sent_bytes"] == 0, f"who read: {told}")
        expect((self.get("layers_0/kernel").view(numpy.uint16) == have).all(), "workers make other bits")
        expect(same(self.get("step"), numpy.arange(3)), "integers are changed")

    def i8_has_the_documented_values(self):
        weight = self.random.standard_normal((40, 33)).astype("f4")
        weight[3] = 0
        safetensors.numpy.save_file({"x.weight": weight}, self.folder / "q.safetensors")
        (self.folder / "q.yaml").write_text("tensors:\n- {pattern: x, transpose: true, dtype: I8, channel: 1}\n")
        self.load("q.safetensors", "--map", "q.yaml", rules="columns.yaml")
        scale = (numpy.abs(weight).max(axis=1) / numpy.float32(127)).astype("f4")
        scale[3] = 1
        expect(same(self.get("x.weight.scale"), scale), "other scales")
        want = numpy.clip(numpy.rint(weight / scale[:, None]), -127, 127).astype("i1").T
        expect(same(self.get("x.weight"), numpy.ascontiguousarray(want)), "other values")

    def files_that_cannot_be_loaded_are_refused_in_words(self):
        arrays = {"w": numpy.zeros(4, "f4")}
        numpy.savez_compressed(self.folder / "c.npz", **arrays)
        self.load("c.npz", error="numpy.savez in place of numpy.savez_compressed")
        numpy.savez(self.folder / "o.npz", o=numpy.array([{}], dtype=object))
        self.load("o.npz", error="'|O' cannot be read")
        numpy.savez(self.folder / "b.npz", b=numpy.zeros(3, ">f4"))
        self.load("b.npz", error="newbyteorder")
        numpy.savez(self.folder / "d.npz", **arrays)
        data = bytearray((self.folder / "d.npz").read_bytes())
        at = data.index(b"\n") + 3  # an element of the only member
        data[at] ^= 1
        (self.folder / "d.npz").write_bytes(data)
        self.load("d.npz", error="CHECKSUM_MISMATCH")
        for size in (0, 10, len(data) // 2, len(data) - 1):
            (self.folder / "t.npz").write_bytes(data[:size])
            self.load("t.npz", error="t.npz")
        (self.folder / "f.yaml").write_text("tensors:\n- {pattern: w, shape: [5]}\n")
        numpy.savez(self.folder / "d.npz", **arrays)
        self.load("d.npz", "--map", "f.yaml", error='f.yaml:2:3: tensor "w": the shape is (4,), but the rule')
        self.load("d.npz", "--map", "nowhere.yaml", error="nowhere.yaml")
        self.load("d.npz", "--dtype", "I8", error="write dtype and channel in a map")
        self.call("plan", "-", "--dtype", "F16", "--rules", "whole.yaml", error="name one with FILE")
        names = json.loads(self.call("ls", "-ojson", "--cluster", "files"))
        expect(not any(array["name"] == "w" for array in names), "a refused file was loaded")

    def a_converted_load_takes_little_memory(self):
        side = 8192
        array = numpy.arange(side * side, dtype="f4").reshape(side, side)
        numpy.savez(self.folder / "large.npz", x=array)
        (self.folder / "t.yaml").write_text("tensors:\n- {pattern: x, transpose: true, dtype: BF16}\n")

        def limit():
            resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

        self.load("large.npz", "--map", "t.yaml", rules="columns.yaml", limit=limit)
        self.call("get", "x", "--slice", "100:103,4000:4200", "--out", "out.npy", "--cluster", "files")
        have = numpy.load(self.folder / "out.npy").view(numpy.uint16)
        expect((have == bf16(array[4000:4200, 100:103].T)).all(), "other bits")
        (self.folder / "large.npz").unlink()

    def run(self):
        tests = [self.npz_of_numpy_is_loaded_bit_for_bit, self.folders_of_npy_files_are_loaded,
                 self.files_of_safetensors_without_an_index_are_loaded, self.what_is_written_is_read_by_the_packages,
                 self.workers_read_what_the_packages_wrote, self.the_package_reads_what_workers_save,
                 self.a_map_transposes_and_converts_onto_columns, self.i8_has_the_documented_values,
                 self.files_that_cannot_be_loaded_are_refused_in_words, self.a_converted_load_takes_little_memory]
        faults = []
        with self.running_cluster():
            for test in tests:
                try:
                    test()
                    print(f"{test.__name__}: ok", flush=True)
                except Failed as failed:
                    faults.append(f"{test.__name__}: {failed}")
        return faults


if __name__ == "__main__":
    own_cluster.main(Test, "files-")

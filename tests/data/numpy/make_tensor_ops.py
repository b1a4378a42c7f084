#!/usr/bin/env python3
"""Writes tensor_ops.txt: inputs of tensor ops, and numpy's results, computed in F64 from F32 inputs.

Run it with numpy (recorded with 2.x): `python3 tests/data/numpy/make_tensor_ops.py`. Each case is a line `case NAME`, then
a line `in DTYPE EXTENTS VALUES...` for each input and `out DTYPE EXTENTS VALUES...`. EXTENTS of a scalar is `-`. The test
tests/unit/worker/tensor_op/numpy_test.cc has the op of each name.
"""
import math
import pathlib

import numpy as np

RANDOM = np.random.default_rng(18)
LINES = []
NAMES = {np.dtype(name): dtype for name, dtype in [
    ("float64", "F64"), ("float32", "F32"), ("float16", "F16"), ("int64", "I64"), ("int32", "I32"), ("int16", "I16"),
    ("int8", "I8"), ("uint8", "U8"), ("bool", "BOOL")]}


def line(kind, array, dtype=None):
    extents = ",".join(map(str, array.shape)) or "-"
    # Texts are the shortest that give the same elements. Results of narrower types need no more than 12 digits.
    is_rounded = array.dtype == np.float64 and dtype not in (None, "F64")
    values = (f"{v:.12g}" if is_rounded else str(int(v) if array.dtype == bool else v) for v in array.ravel())
    LINES.append(" ".join([kind, dtype or NAMES[array.dtype], extents, *values]))


def case(name, inputs, result, dtype="F32"):
    LINES.append(f"case {name}")
    for each in inputs:
        line("in", np.asarray(each))
    line("out", np.asarray(result), dtype)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def wide(x):
    return x.astype(np.float64)


pairs = [(floats(3, 4), floats(4)), (floats(2, 1, 3), floats(4, 1)), (floats(2, 3), floats())]
for name, function in [("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide),
                       ("minimum", np.minimum), ("maximum", np.maximum)]:
    for a, b in pairs:
        case(name, [a, b], function(wide(a), wide(b)))
small = np.array([-128, 127, 5, -7], np.int8)
case("add", [small, small[::-1]], small + small[::-1], "I8")
case("multiply", [small, small[::-1]], small * small[::-1], "I8")
x = np.array([0.25, -1.5, 3.0, -7.0, 0.0, 12.0, 1e-3], np.float32)
for name, function in [("negate", np.negative), ("abs", np.abs), ("exp", np.exp), ("tanh", np.tanh),
                       ("sigmoid", lambda v: 1 / (1 + np.exp(-v))), ("relu", lambda v: np.maximum(v, 0)),
                       ("silu", lambda v: v / (1 + np.exp(-v))),
                       ("gelu-tanh", lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))))]:
    case(name, [x], function(wide(x)))
positive = np.abs(x) + np.float32(0.5)
for name, function in [("log", np.log), ("sqrt", np.sqrt), ("rsqrt", lambda v: 1 / np.sqrt(v))]:
    case(name, [positive], function(wide(positive)))
x, weight, bias = floats(3, 9), floats(9), floats(9)
w = wide(x)
case("rms-norm", [x, weight], w / np.sqrt((w**2).mean(-1, keepdims=True) + np.float32(1e-5)) * weight)
case("layer-norm", [x, weight, bias],
     (w - w.mean(-1, keepdims=True)) / np.sqrt(w.var(-1, keepdims=True) + np.float32(1e-5)) * weight + bias)
case("l2-norm", [x], w / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), np.float32(1e-5)))
case("softmax", [x], softmax(w))
x = floats(3, 4, 5)
for name, function in [("sum", np.sum), ("product", np.prod), ("min", np.min), ("max", np.max), ("mean", np.mean)]:
    case(name, [x], function(wide(x), axis=(0, 2)))
case("transpose", [x], x.transpose(2, 0, 1))
case("slice", [x], x[1:3, 0:4:2, 1:5:3])
case("concatenate", [x, x], np.concatenate([x, x], axis=1))
case("reshape", [x], x.reshape(6, 10))
x = RANDOM.integers(0, 6, (4, 9)).astype(np.float32)
case("top-k", [x], np.argsort(-x, axis=-1, kind="stable")[:, :3], "I32")
case("argmax", [x], np.argmax(x, axis=-1), "I32")
x = np.array([0.9, -0.9, 2.5, -3.5, 100.25], np.float32)
case("convert", [x], x.astype(np.int32), "I32")
table, ids = floats(6, 4), np.array([[5, 0], [3, 3]], np.int32)
case("embedding", [table, ids], table[ids])
cache, update, at = floats(2, 5, 3), floats(2, 2, 3), np.array([[4, 0], [1, 2]], np.int32)
updated = cache.copy()
for b in range(2):
    updated[b, at[b]] = update[b]
case("update-rows", [cache, update, at], updated)
x, positions, frequencies = floats(2, 3, 2, 6), np.array([0, 7, 4095], np.int32), np.array([1, 0.1, 0.01], np.float32)
angle = positions[:, None].astype(np.float64) * frequencies.astype(np.float64)
cos, sin = np.cos(angle)[None, :, None, :], np.sin(angle)[None, :, None, :]
a, b = wide(x[..., :3]), wide(x[..., 3:])
case("rotary", [x, positions, frequencies], np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1))
for queries, rows in [(1, 7), (3, 40), (36, 36)]:
    q, k, v = floats(2, queries, 4, 6), floats(2, rows, 2, 6), floats(2, rows, 2, 5)
    positions = (np.arange(queries) + rows - queries).astype(np.int32)
    keys, values = np.repeat(wide(k), 2, axis=2), np.repeat(wide(v), 2, axis=2)
    scores = np.einsum("bshd,bthd->bhst", wide(q), keys) * 0.5
    scores = np.where(np.arange(rows)[None, :] <= positions[:, None], scores, -np.inf)
    case("attention", [q, k, v, positions], np.einsum("bhst,bthe->bshe", softmax(scores), values))

# Other types.
integers = RANDOM.integers(-30000, 30000, (2, 5)).astype(np.int16)
for name, function in [("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("minimum", np.minimum),
                       ("maximum", np.maximum)]:
    case(name, [integers, integers[:, ::-1]], function(integers, integers[:, ::-1]), "I16")
for name, function in [("negate", np.negative), ("abs", np.abs)]:
    case(name, [small], function(small), "I8")
    case(name, [integers.astype(np.int64)], function(integers.astype(np.int64)), "I64")
x, y = floats(3, 4).astype(np.float16), floats(4).astype(np.float16)
for name, function in [("add", np.add), ("multiply", np.multiply), ("divide", np.divide)]:
    case(name, [x, y], function(wide(x), wide(y)), "F16")
for name, function in [("exp", np.exp), ("tanh", np.tanh), ("silu", lambda v: v / (1 + np.exp(-v)))]:
    case(name, [x], function(wide(x)), "F16")
case("softmax", [x], softmax(wide(x)), "F16")
x, y = RANDOM.standard_normal((3, 4)), RANDOM.standard_normal(4)
for name, function in [("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide)]:
    case(name, [x, y], function(x, y), "F64")
for name, function in [("exp", np.exp), ("tanh", np.tanh), ("sqrt", lambda v: np.sqrt(np.abs(v)))]:
    case(name, [np.abs(x)], function(np.abs(x)), "F64")
case("top-k", [integers], np.argsort(-integers.astype(np.int32), axis=-1, kind="stable")[:, :3], "I32")
x = RANDOM.integers(-50, 50, (2, 3, 4)).astype(np.int32)
for name, function in [("sum", np.sum), ("product", np.prod), ("min", np.min), ("max", np.max)]:
    case(name, [x], function(x, axis=(0, 2), dtype=np.int32) if name in ("sum", "product") else function(x, axis=(0, 2)),
         "I32")
# Conversions: floats towards zero and to the ends of the type, integers wrap.
x = np.array([0.5, -0.5, 1.9, -1.9, 127.9, -128.9, 300, -300, 1e10, -1e10, 65519, 1e-8, 2049, 2051], np.float32)
case("convert-to-f16", [x[:4]], x[:4].astype(np.float16), "F16")
case("convert-to-f16", [x[10:]], x[10:].astype(np.float16), "F16")
for name, dtype in [("convert-to-i8", np.int8), ("convert-to-u8", np.uint8), ("convert", np.int32)]:
    ends = np.iinfo(dtype)
    case(name, [x], np.clip(np.trunc(wide(x)), ends.min, ends.max).astype(dtype), NAMES[np.dtype(dtype)])
case("convert-to-i8", [integers], integers.astype(np.int8), "I8")
case("convert-to-u8", [integers], integers.astype(np.uint8), "U8")
case("convert-to-f64", [integers], integers.astype(np.float64), "F64")
case("convert", [np.array([True, False])], np.array([1, 0], np.int32), "I32")
# Options of ops.
x = floats(3, 9)
case("gelu", [x], wide(x) / 2 * (1 + np.vectorize(math.erf)(wide(x) / math.sqrt(2))))
mask = np.array([[1, 0, 1, 1, 0, 1, 1, 1, 0], [0] * 9, [1] * 9], np.int32)
scores = np.where(mask != 0, wide(x) * 0.5, -np.inf)
scores[1] = 0  # a row that is masked out becomes zeros
case("masked-softmax", [x, mask], np.where(mask != 0, softmax(scores), 0))
case("masked-softmax", [x, mask[0] != 0], softmax(np.where(mask[0] != 0, wide(x) * 0.5, -np.inf)))
case("top-values", [x], -np.sort(-x, axis=-1)[:, :4])
x = floats(3, 4, 5)
case("kept-mean", [x], wide(x).mean(axis=1, keepdims=True))
for name, result in [("sum", np.zeros(2)), ("product", np.ones(2))]:
    case(name, [np.zeros((3, 2, 0), np.float32)], result)
case("embedding", [table, np.array([-1, 6, 2], np.int32)], np.stack([table[0] * 0, table[0] * 0, table[2]]))
cache, update, at = floats(2, 5, 3), floats(2, 4, 3), np.array([3, -1, 5, 3], np.int32)
updated = cache.copy()
updated[:, 3] = update[:, 3]  # of equal positions, the last one counts
case("update-rows", [cache, update, at], updated)
x, positions, frequencies = floats(2, 3, 2, 6), np.array([[0, 7, 2], [5, 1, 300]], np.int32), floats(3)
angle = positions[:, :, None, None] * frequencies.astype(np.float64)
a, b = wide(x[..., 0::2]), wide(x[..., 1::2])
pairs = np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)
case("interleaved-rotary", [x, positions, frequencies], pairs.reshape(x.shape))
q, k, v = floats(2, 3, 4, 6), floats(2, 5, 1, 6), floats(2, 5, 1, 2)
mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], np.int32)
scores = np.einsum("bshd,btgd->bhst", wide(q), wide(k)) * 0.5
scores = np.where(mask[:, None, None, :] != 0, scores, -np.inf)
case("masked-attention", [q, k, v, mask], np.einsum("bhst,btge->bshe", softmax(scores), wide(v)))

pathlib.Path(__file__).with_name("tensor_ops.txt").write_text("\n".join(LINES) + "\n")

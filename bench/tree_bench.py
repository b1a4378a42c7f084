#!/usr/bin/env python3
"""R2 and R3: resolution in this process and over the wire, beside eformer doing the same.

The peer runs in the interpreter that bench/peers/turns.py finds. Without one, ours are printed and not compared. Ours
and the peer's samples alternate; of each the best counts, since noise only adds. Every answer is checked: ours by the
program that times it, the peer's against ours by the counts of specs.

The tree of R3: 90,000 tensors of a mixture of experts, 30 rules, names in and specs out. A coordinator of its own
process answers; its memory is read before and at its peak.

usage: tree_bench.py BIN_FOLDER [--rounds N]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peers.turns import peer_interpreter

TENSORS = 90_000
MILLION = 1_000_000

RULES = [
    ("embed_tokens/embedding$", "[tp, fsdp]"), ("wpe/embedding$", "[null, fsdp]"), ("lm_head/kernel$", "[fsdp, tp]"),
    ("self_attn/(q_proj|k_proj|v_proj)/kernel", "[fsdp, tp]"), ("self_attn/o_proj/kernel", "[tp, fsdp]"),
    ("self_attn/qkv_proj/kernel", "[fsdp, tp]"), ("self_attn/.*_proj/bias", "[null]"),
    ("self_attn/(q_norm|k_norm)/kernel", "[null]"), ("self_attn/kv_a_proj_with_mqa/kernel", "[fsdp, null]"),
    ("self_attn/kv_b_proj/kernel", "[fsdp, tp]"), ("self_attn/q_a_proj/kernel", "[fsdp, null]"),
    ("self_attn/q_b_proj/kernel", "[fsdp, tp]"), ("linear_attn/in_proj/kernel", "[fsdp, tp]"),
    ("linear_attn/out_proj/kernel", "[tp, fsdp]"), ("linear_attn/conv1d/kernel", "[null, null, tp]"),
    ("mlp/shared_experts/(gate_proj|up_proj)/kernel", "[fsdp, tp]"),
    ("mlp/shared_experts/down_proj/kernel", "[tp, fsdp]"),
    ("mlp/experts/\\\\d+/(gate_proj|up_proj)/kernel", "[fsdp, tp]"),
    ("mlp/experts/\\\\d+/down_proj/kernel", "[tp, fsdp]"), ("mlp/gate/kernel", "[fsdp, null]"),
    ("mlp/gate/e_score_correction_bias", "[null]"), ("mlp/(gate_proj|up_proj)/kernel", "[fsdp, tp]"),
    ("mlp/down_proj/kernel", "[tp, fsdp]"), ("mlp/.*proj/bias", "[null]"), ("input_layernorm/kernel", "[null]"),
    ("post_attention_layernorm/kernel", "[null]"), ("(pre|post)_feedforward_layernorm/kernel", "[null]"),
    ("rotary_emb/inv_freq", "[null]"), ("model/norm/kernel", "[null]"), (".*", "[null]"),
]

PEER = r"""
import json, sys, time
import warnings; warnings.filterwarnings("ignore")
import jax, numpy as np
from jax.sharding import PartitionSpec as P, Mesh
what, names_path, rules_path = sys.argv[1], sys.argv[2], sys.argv[3]
from eformer.escale.partition import constraints, manager
from eformer import common_types
if what == "chain":
    paxis = manager.PartitionAxis(); pm = manager.PartitionManager(paxis)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2, 2), ("dp", "fsdp", "tp", "sp"))
    preset = common_types.AttnQSharding
    shape, calls, best = (32, 128, 16, 64), 5000, 1e9
    with mesh:
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(calls):
                fixed = constraints.get_corrected_named_sharding(shape, pm.resolve(dynamic_axes=preset, shape=shape))
            best = min(best, time.perf_counter() - start)
    assert len(fixed.spec) == 4, fixed
    print(json.dumps({"s": best, "calls": calls}))
else:
    names = open(names_path).read().split()
    rules = [(pattern, P(*[tuple(e) if isinstance(e, list) else e for e in spec])) for pattern, spec in json.load(open(rules_path))]
    tree = {}
    for name in names:
        node = tree
        *path, leaf = name.split("/")
        for part in path: node = node.setdefault(part, {})
        node[leaf] = jax.ShapeDtypeStruct((1024, 1024), np.float32)
    start = time.perf_counter()
    out = constraints.match_partition_rules(rules, tree)
    s = time.perf_counter() - start
    specs = {}
    for leaf in jax.tree_util.tree_leaves(out, is_leaf=lambda x: isinstance(x, P)): specs[str(leaf)] = specs.get(str(leaf), 0) + 1
    print(json.dumps({"s": s, "specs": specs}))
"""


def tensor_names():
    """90,000 names of a mixture of experts, in the order of a checkpoint."""
    layer_leaves = ["input_layernorm/kernel", "post_attention_layernorm/kernel", "self_attn/q_proj/kernel",
                    "self_attn/k_proj/kernel", "self_attn/v_proj/kernel", "self_attn/o_proj/kernel",
                    "self_attn/q_norm/kernel", "self_attn/k_norm/kernel", "mlp/gate/kernel"]
    names = ["model/embed_tokens/embedding", "model/norm/kernel", "lm_head/kernel"]
    layer = 0
    while True:
        for leaf in layer_leaves + [f"mlp/experts/{expert}/{leaf}/kernel" for expert in range(320)
                                    for leaf in ("gate_proj", "up_proj", "down_proj")]:
            names.append(f"model/layers/{layer}/{leaf}")
            if len(names) == TENSORS:
                return names
        layer += 1


def run(command, **kwargs):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, **kwargs).stdout.splitlines()[-1])


class Coordinator:
    """A coordinator process of its own, on a free port."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [f"{folder}/shardmesh-coordinator", "--listen", "127.0.0.1:0", "--http-listen", ""],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def memory(self, key):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        raise KeyError(key)


def report(key, what, ours, peer, unit, target, met, ratio=None):
    print(json.dumps({"id": key, "what": what, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio,
                      "target": target, "met": met}), flush=True)


def compare(key, what, ours, peer, target):
    """Rates: ours should be `target` times the peer's."""
    ratio = ours / peer if peer else None
    report(key, what, ours, peer, "1/s", f">= {target} x", ratio >= target if ratio else None, ratio)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    bench = f"{arguments.bin}/tree_bench"
    peer = peer_interpreter("eformer")
    environment = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=16")
    with tempfile.TemporaryDirectory() as folder:
        names, rules, peer_rules = f"{folder}/names", f"{folder}/rules.yaml", f"{folder}/rules.json"
        pathlib.Path(names).write_text("\n".join(tensor_names()) + "\n", encoding="ascii")
        pathlib.Path(rules).write_text(
            "rules:\n" + "".join(f'  - {{pattern: "{pattern}", spec: {spec}}}\n' for pattern, spec in RULES), encoding="ascii")
        pathlib.Path(peer_rules).write_text(json.dumps([
            (pattern.replace("\\\\", "\\"), [None if axis.strip() == "null" else axis.strip()
                                             for axis in spec[1:-1].split(",")])
            for pattern, spec in RULES]), encoding="ascii")

        def ask_peer(what):
            return run([peer, "-c", PEER, what, names, peer_rules], env=environment) if peer else None

        with Coordinator(arguments.bin) as coordinator:
            chain, batch, match, theirs_chain, theirs_match = [], [], [], [], []
            for _ in range(arguments.rounds):
                chain.append(run([bench, "chain"]))
                batch.append(run([bench, "batch", coordinator.address]))
                match.append(run([bench, "match", coordinator.address, names, rules]))
                if peer:
                    theirs_chain.append(ask_peer("chain"))
                    theirs_match.append(ask_peer("match"))

            def best(samples):
                return min(sample["best_s"] for sample in samples)
            peer_chain = max((sample["calls"] / sample["s"] for sample in theirs_chain), default=None)
            peer_match = max((TENSORS / sample["s"] for sample in theirs_match), default=None)
            compare("R2-library", "resolve and correct, one thread", chain[0]["calls"] / best(chain), peer_chain, 50)
            compare("R2-wire", "the same in one call over the wire", batch[0]["calls"] / best(batch), peer_chain, 10)
            compare("R3-match", "90,000 tensors by 30 rules over the wire", TENSORS / best(match), peer_match, 50)

        with Coordinator(arguments.bin) as coordinator:
            before = coordinator.memory("VmRSS")
            million = run([bench, "many", coordinator.address, str(MILLION), rules])
            grown = coordinator.memory("VmHWM") - before
            report("R3-million", "1,000,000 tensors by 30 rules over the wire", million["best_s"], None, "s", "<= 0.6 s",
                   million["best_s"] <= 0.6)
            report("R3-memory", "growth of the coordinator over the bytes of that request", grown, million["request_bytes"],
                   "bytes", "<= 3 x", grown <= 3 * million["request_bytes"], grown / million["request_bytes"])


if __name__ == "__main__":
    main()

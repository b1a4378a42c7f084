#!/usr/bin/env python3
"""Records what flax itself makes of logical axis rules, for tests/data/goldens/linen_rules.jsonl.

Recorded with flax 0.12.4, jax and jaxlib 0.9.0.1 on Python 3.11.7; other versions are refused unless
--any-version is given, whose output is for comparing and not for committing. To run it:

    python3 -m venv flaxenv
    flaxenv/bin/pip install flax==0.12.4 jax==0.9.0.1 jaxlib==0.9.0.1
    flaxenv/bin/python tests/differential/linen_rules.py            # writes the file anew
    flaxenv/bin/python tests/differential/linen_rules.py --compare  # exits 1 if it would change

The rule lists and names are random under a fixed seed; those of MaxText are taken from
flax_spmd.jsonl beside the output. Three functions are asked:

logical_to_mesh_axes    `names`, `rules` and `fallback`. For axis_is_unsharded this is flax.linen's
    function of that name; the other two policies exist only within with_logical_constraint, whose
    step for one array is asked. The answer is the spec, or null where the array gets none.
with_logical_constraint the whole of it: the spec that JAX is given, null where the array is left.
shard_value             flax.core.spmd's: which of the two functions of JAX is called, with which spec.

The functions of JAX at the end of each chain are replaced by recorders, so that no array and no
device takes part, and nothing depends on shapes. Left out is what the interface in C++ cannot be
asked: rules or names that are one string or no sequence, numbers in place of axes, and UNCONSTRAINED
within a tuple.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax
import jax
from flax.core import spmd as core_spmd
from flax.linen import spmd as linen_spmd

GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "data" / "goldens"
VERSIONS = {"flax": ("0.12.4", flax.__version__), "jax": ("0.9.0.1", jax.__version__)}
SEED = 20250730

UNCONSTRAINED = jax.sharding.PartitionSpec.UNCONSTRAINED
FALLBACKS = [fallback.value for fallback in linen_spmd.RulesFallback]
AXES = ["x", "y", "z", "w", "v"]
NAMES = ["batch", "seq", "embed", "heads", "kv", "mlp", "vocab", "layers", "expert"]


# ---- Python values as the golden files write them ------------------------------------------------


def encode(value):
    if value is UNCONSTRAINED:
        return "__UNCONSTRAINED__"
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, list):
        return {"__list__": [encode(entry) for entry in value]}
    return value


def decode(value):
    if value == "__UNCONSTRAINED__":
        return UNCONSTRAINED
    if isinstance(value, list):
        return tuple(decode(entry) for entry in value)
    if isinstance(value, dict):
        return [decode(entry) for entry in value["__list__"]]
    return value


def decode_rules(rules):
    return tuple((name, decode(value)) for name, value in rules)


def encode_spec(spec):
    return None if spec is None else [encode(entry) for entry in spec]


# ---- The functions asked --------------------------------------------------------------------------


class Recorder:
    """Stands for the array: whatever is done to it is noted, and it comes back."""

    def __init__(self):
        self.calls = []

    def note(self, action, spec):
        self.calls.append((action, spec))
        return self


def record_constraint(x, axis_resources, mesh=None):
    return x.note("constrain", axis_resources)


linen_spmd._with_sharding_constraint = record_constraint
jax.lax.with_sharding_constraint = lambda x, sharding: x.note("constrain", sharding.spec)
jax.sharding.reshard = lambda x, sharding: x.note("reshard", sharding.spec)


def constraint_of(array):
    assert len(array.calls) <= 1
    return encode_spec(array.calls[0][1]) if array.calls else None


def logical_to_mesh_axes(names, rules, fallback):
    names, rules = decode(names), decode_rules(rules)
    array = Recorder()
    linen_spmd._with_sharding_constraint_one_fallback(
        names, array, fallback=linen_spmd.RulesFallback(fallback), rules=rules)
    answer = constraint_of(array)
    if fallback == "axis_is_unsharded":
        assert answer == encode_spec(linen_spmd.logical_to_mesh_axes(names, rules))
    return answer


def with_logical_constraint(names, rules, fallback):
    array = Recorder()
    linen_spmd.with_logical_constraint(
        array, decode(names), rules=decode_rules(rules),
        fallback=linen_spmd.RulesFallback(fallback))
    return constraint_of(array)


def shard_value(names, rules, context_rules, mesh):
    if mesh is not None:
        sizes = tuple(size for _, size in mesh["axes"])
        axis_names = tuple(name for name, _ in mesh["axes"])
        types = tuple(getattr(jax.sharding.AxisType, t.capitalize()) for t in mesh["axis_types"])
        mesh = jax.sharding.AbstractMesh(sizes, axis_names, types)
    array = Recorder()
    with core_spmd.logical_axis_rules(decode_rules(context_rules)):
        core_spmd.shard_value(array, decode(names), decode_rules(rules), mesh)
    assert len(array.calls) <= 1
    action, spec = array.calls[0] if array.calls else ("none", ())
    return {"action": action, "spec": encode_spec(spec)}


FUNCTIONS = {f.__name__: f for f in (logical_to_mesh_axes, with_logical_constraint, shard_value)}


# ---- What they are asked --------------------------------------------------------------------------


class Cases:
    def __init__(self):
        self.lines = []
        self.counts = collections.Counter()

    def add(self, kind, function, **question):
        self.counts[kind] += 1
        line = {"id": f"linen_rules/{kind}/{self.counts[kind]:04d}", "fn": function,
                "input": question}
        try:
            line["expect"] = FUNCTIONS[function](**question)
        except AssertionError:
            raise
        except Exception as error:
            builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
            line["error"] = {"type": builtin.__name__, "py_type": type(error).__name__,
                             "contains": str(error).splitlines()[0][:60]}
        self.lines.append(json.dumps(line, separators=(",", ":")))


def mesh_axes(rng, odd):
    """The value of a rule; with `odd`, now and then one that flax treats in a way of its own."""
    if odd and rng.random() < 0.25:
        axis = rng.choice(AXES)
        return rng.choice([(), "", ("",), UNCONSTRAINED, (UNCONSTRAINED,), (None,), (axis, None),
                           (None, axis, None), (axis, axis), ("", axis), [axis], [],
                           [axis, rng.choice(AXES)], ((axis,),), (axis, ("x", "y")),
                           [[axis]], (axis, ())])
    kind = rng.random()
    if kind < 0.15:
        return None
    if kind < 0.6:
        return rng.choice(AXES)
    return tuple(rng.sample(AXES, rng.randint(1, 3)))


def rule_list(rng, odd):
    pool = NAMES + [""] if odd else NAMES
    return [[rng.choice(pool), encode(mesh_axes(rng, odd))] for _ in range(rng.randint(0, 12))]


def dimension_names(rng, pool, odd, repeats=0.04):
    names = rng.sample(pool, rng.randint(0, min(5, len(pool))))
    for i in range(len(names)):
        roll = rng.random()
        if roll < 0.08:
            names[i] = None
        elif roll < 0.12:
            names[i] = "unknown" if "unknown" not in names else None
        elif odd and roll < 0.3:
            axis = rng.choice(AXES)
            names[i] = rng.choice([UNCONSTRAINED, UNCONSTRAINED, "", (axis,), (axis, "x"), (),
                                   (axis, None), (None,), ("",)])
        elif odd and roll < 0.32:
            names[i] = rng.choice([["x"], ("x", ["y"]), [], (("x",),), ("x", ())])
    if names and rng.random() < repeats:
        names.insert(rng.randint(0, len(names)), rng.choice(names))
    return [encode(name) for name in names]


def maxtext_rules():
    with open(GOLDENS / "flax_spmd.jsonl", encoding="ascii") as lines:
        for line in lines:
            case = json.loads(line)
            if case["id"].startswith("flax_spmd/maxtext_self/"):
                return case["input"]["rule1"]
    sys.exit("flax_spmd.jsonl has no line of MaxText's rules against themselves")


def add_linen(cases, rng):
    example = [["batch", "X"], ["features", "X"], ["heads", "Y"], ["batch", "Z"]]
    for fallback in FALLBACKS:
        for names in (["batch", "length", "heads", "features"], ["batch", "heads"], [], None):
            for function in ("logical_to_mesh_axes", "with_logical_constraint"):
                for rules in (example, []):
                    cases.add("forms", function, names=names, rules=rules, fallback=fallback)
    for _ in range(500):
        cases.add("plain", "logical_to_mesh_axes", names=dimension_names(rng, NAMES, odd=False),
                  rules=rule_list(rng, odd=False), fallback=rng.choice(FALLBACKS))
    for _ in range(350):
        cases.add("odd", "logical_to_mesh_axes", names=dimension_names(rng, NAMES, odd=True),
                  rules=rule_list(rng, odd=True), fallback=rng.choice(FALLBACKS))
    for _ in range(120):
        # Other entries than these make a tree of names to it, not one array's.
        names = [name if isinstance(name, str) else None
                 for name in dimension_names(rng, NAMES, odd=rng.random() < 0.5)]
        cases.add("constraint", "with_logical_constraint", names=names,
                  rules=rule_list(rng, odd=rng.random() < 0.5) if rng.random() < 0.8 else [],
                  fallback=rng.choice(FALLBACKS))


def add_maxtext(cases, rng):
    every = maxtext_rules()
    for i in range(260):
        # Mostly parts of the list, in its order: the whole of it is 3.7 KB.
        rules = every if i < 60 else [
            every[place] for place in sorted(rng.sample(range(len(every)), rng.randint(4, 24)))]
        pool = sorted({name for name, _ in rules})
        cases.add("maxtext", "logical_to_mesh_axes", names=dimension_names(rng, pool, odd=False),
                  rules=rules, fallback=rng.choice(FALLBACKS))


def add_shard_value(cases, rng):
    types = ["auto", "explicit", "manual"]
    for _ in range(240):
        odd = rng.random() < 0.3
        names = dimension_names(rng, NAMES, odd, repeats=0.1)
        if odd:
            rules = [[name, encode(mesh_axes(rng, odd))]
                     for name in rng.sample(NAMES, rng.randint(4, 9))]
        else:
            # A rule for each name and axes for one dimension each: mostly nothing to refuse.
            axes = iter(rng.sample(AXES, len(AXES)))
            rules = [[name, next(axes, None) if rng.random() < 0.8 else None]
                     for name in rng.sample(NAMES, len(NAMES))
                     if name in names or rng.random() < 0.2]
        context = rule_list(rng, odd=False)[:2] if rng.random() < 0.15 else []
        mesh_names = rng.sample(AXES, rng.randint(1, 5)) if rng.random() < 0.2 else AXES
        one_type = rng.choice(types) if rng.random() < 0.3 else rng.choice(types[:2])
        mixed = rng.random() < 0.2
        mesh = {"axes": [[name, rng.choice([1, 2, 4])] for name in mesh_names],
                "axis_types": [rng.choice(types) if mixed else one_type for _ in mesh_names]}
        cases.add("shard_value", "shard_value", names=names, rules=rules, context_rules=context,
                  mesh=mesh if rng.random() < 0.95 else None)
    # One dimension on one axis: what each pair of types does, and a dimension left open.
    for first in types:
        for second in types:
            mesh = {"axes": [["x", 2], ["y", 2]], "axis_types": [first, second]}
            for name in ("embed", "__UNCONSTRAINED__"):
                cases.add("shard_value_types", "shard_value", names=[name],
                          rules=[["embed", "x"]], context_rules=[], mesh=mesh)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=GOLDENS / "linen_rules.jsonl")
    parser.add_argument("--compare", action="store_true",
                        help="write nothing; exit 1 if the file would change")
    parser.add_argument("--any-version", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED, help="other questions of the same kinds")
    arguments = parser.parse_args()
    for name, (wanted, found) in VERSIONS.items():
        if wanted != found and not arguments.any_version:
            sys.exit(f"{name} is {found}; the answers are those of {wanted}")

    rng = random.Random(arguments.seed)
    cases = Cases()
    add_linen(cases, rng)
    add_maxtext(cases, rng)
    add_shard_value(cases, rng)
    text = "\n".join(cases.lines) + "\n"
    print(", ".join(f"{count} {kind}" for kind, count in cases.counts.items()), file=sys.stderr)
    if arguments.compare:
        if arguments.output.read_text(encoding="ascii") != text:
            sys.exit(f"{arguments.output} would change")
        return
    arguments.output.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()

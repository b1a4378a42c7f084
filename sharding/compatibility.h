// Whether answers follow the Python libraries (eformer, EasyDeL) exactly.
#ifndef SHARDMESH_SHARDING_COMPATIBILITY_H_
#define SHARDMESH_SHARDING_COMPATIBILITY_H_

namespace shardmesh {

enum class Compatibility {
  // Follows the Python originals, except where they are plainly broken or accept a typing error
  // silently. In parentheses: the behaviour of the originals.
  // clang-format off
  //   - Modes: refuses an unknown mode (the originals act as in train). With neither a mode nor a
  //     preset, the mode is train (the originals raise). Refuses axes beside a preset (the
  //     originals use the axes).
  //   - Axes: also resolves a list of axes in generation modes (the originals raise). Flattens
  //     tuples and lists within a dimension (the originals raise).
  //   - Meshes: requires axes with distinct non-empty names and sizes above 0 (the originals accept
  //     any mesh).
  //   - Patterns: refuses an unusable pattern when it is given (the originals, when a search
  //     reaches it). Also refuses a negative least size. Answers for rules in one line also without
  //     a mesh (the originals raise AssertionError).
  //   - Digests: a profile's fingerprint covers every field, and a digest may be any of OpenSSL's.
  //   - Layers: accepts several out_features with a bias or with fan_out, and a list of one (the
  //     originals raise TypeError). Refuses negative out_features (in the originals only their sum
  //     counts).
  //   - Analysis: reports balance, memory and statistics, accepts tuples (the originals raise
  //     KeyError), and counts scalars in integers. Refuses, before placement, a spec that uses an
  //     axis twice (JAX refuses it at the placement of an array).
  // clang-format on
  // docs/semantics.md has the reasons.
  kDefault,
  // Gives the answers of the Python originals, including their errors.
  kExact,
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_COMPATIBILITY_H_

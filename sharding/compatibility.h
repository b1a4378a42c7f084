// Whether answers follow the Python originals exactly.
#ifndef SHARDMESH_SHARDING_COMPATIBILITY_H_
#define SHARDMESH_SHARDING_COMPATIBILITY_H_

namespace shardmesh {

enum class Compatibility {
  // Follows the originals, except where they are plainly broken or accept a typing error silently:
  //   - Modes: an unknown mode is refused (the originals act as in train). Without a mode and a
  //     preset, the mode is train (there an error). Axes beside a preset are refused (there the
  //     axes win).
  //   - Axes: a list of axes resolves in generation modes too, and tuples and lists within a
  //     dimension are flattened (there both raise).
  //   - Meshes: a mesh has axes with distinct non-empty names and sizes above 0 (there any mesh is
  //     accepted).
  //   - Patterns: an unusable pattern is refused when it is given (there when a search reaches it).
  //     A negative least size is refused too. Rules in one line need no mesh.
  //   - Digests: a profile's fingerprint covers every field, and digests may be any of OpenSSL's.
  //   - Layers: several out_features are accepted with a bias and with fan_out, and may be one
  //     (there TypeErrors). Negative ones are refused (there their sum counts).
  //   - Analysis: it reports balance, memory and statistics, accepts tuples (there a KeyError), and
  //     counts scalars in integers. Axes used twice are refused before placement (there JAX refuses
  //     them at the placement of an array).
  // docs/semantics.md has the reasons.
  kDefault,
  // Gives the answers of the originals, errors included.
  kExact,
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_COMPATIBILITY_H_

// Whether answers follow the Python originals to the letter.
#ifndef SHARDMESH_SHARDING_COMPATIBILITY_H_
#define SHARDMESH_SHARDING_COMPATIBILITY_H_

namespace shardmesh {

enum class Compatibility {
  // As the originals, except where they are plainly broken or a typing error would pass in silence:
  //   - an unknown mode is refused (there it acts as train), and without any mode and preset it is
  //     train (there an error); axes beside a preset are refused (there they win over it);
  //   - a list of axes resolves in generation modes too, tuples and lists within a dimension are
  //     flattened (there they raise);
  //   - a mesh has axes, distinct and not empty in name and size (there any mesh is taken);
  //   - a pattern that cannot be used is refused when it is given (there when a search reaches it),
  //     and so is a negative least size; rules in one line need no mesh;
  //   - a profile's fingerprint covers every field, and digests may be any of OpenSSL's;
  //   - several out_features go with a bias and with fan_out, and may be one (there TypeErrors);
  //     negative ones are refused (there their sum counts);
  //   - an analysis has balance, memory and statistics, takes tuples (there a KeyError), and counts
  //     scalars in integers; axes used twice are refused before anything is placed (there by JAX,
  //     when an array is).
  // docs/semantics.md has the reasons.
  kDefault,
  // The originals' answers, errors included.
  kExact,
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_COMPATIBILITY_H_

// Whether answers follow the Python originals to the letter.
#ifndef SHARDMESH_SHARDING_COMPATIBILITY_H_
#define SHARDMESH_SHARDING_COMPATIBILITY_H_

namespace shardmesh {

enum class Compatibility {
  // As the originals, except where they are plainly broken: an unknown mode is refused (there it
  // acts as train), a list of axes resolves in generation modes too (there it raises), and tuples
  // and lists within one dimension are flattened (there they raise).
  kDefault,
  // The originals' answers, errors included.
  kExact,
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_COMPATIBILITY_H_

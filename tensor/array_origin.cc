// Hashes origins.
#include "tensor/array_origin.h"

#include "absl/time/time.h"
#include "sharding/digest.h"
#include "status/str_cat.h"

namespace shardmesh {

std::string OriginKey(const ArrayOrigin& origin, Dtype dtype, const Shape& shape) {
  if (origin.file == nullptr || origin.file->change_time == absl::InfinitePast()) return "";
  const SourceFile& file = *origin.file;
  // The fields of variable size come last, the path behind the sizes of the others.
  return Sha256(StrCat("origin 1 ", DtypeName(dtype), " ", ShapeToString(shape), " ",
                       origin.offset_bytes, " ", file.size_bytes, " ",
                       absl::ToUnixNanos(file.modify_time), " ",
                       absl::ToUnixNanos(file.change_time), " ", file.inode, " ", file.head_bytes,
                       " ", file.head_sha256.size(), " ", origin.conversion.size(), " ",
                       file.head_sha256, origin.conversion, file.path));
}

}  // namespace shardmesh

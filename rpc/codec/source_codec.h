// Converts the files from which workers read tensors. spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_SOURCE_CODEC_H_
#define SHARDMESH_RPC_CODEC_SOURCE_CODEC_H_

#include "absl/status/statusor.h"
#include "shardmesh/v1/array.pb.h"
#include "tensor/source_conversion.h"
#include "tensor/source_file.h"

namespace shardmesh::rpc {

// InfinitePast as the time is left out.
void Encode(const SourceFile& from, v1::SourceFile* to);
// LIMIT_EXCEEDED: the path or `head_bytes` is over its limit. BAD_FIELD: the path is not absolute,
// has a zero byte or is not UTF-8; the digest has not 32 bytes; the head is longer than the file;
// or a size or a time is out of its range, or the modify time is not set. `needs_time` false: a
// file without a modify time is OK, and gets InfinitePast.
absl::StatusOr<SourceFile> Decode(const v1::SourceFile& from, bool needs_time = true);

// Leaves the conversion out.
void Encode(const FileRange& from, v1::FileRange* to);
// BAD_FIELD: the offset is negative.
absl::StatusOr<FileRange> Decode(const v1::FileRange& from);

void Encode(const SourceConversion& from, v1::SourceConversion* to);
// Errors of the decoding of the type. LIMIT_EXCEEDED: the permutation has more dimensions than a
// tensor can have.
absl::StatusOr<SourceConversion> Decode(const v1::SourceConversion& from);

// The range has a conversion on both sides.
void Encode(const FileRange& from, v1::ConvertedRange* to);
// Errors of the decoding of its parts, with the field. A conversion that is not set has no type.
absl::StatusOr<FileRange> Decode(const v1::ConvertedRange& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_SOURCE_CODEC_H_

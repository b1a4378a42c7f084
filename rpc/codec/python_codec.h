// Converts Python values between messages and the types of sharding/. spec_codec.h states the rules
// for all codecs.
#ifndef SHARDMESH_RPC_CODEC_PYTHON_CODEC_H_
#define SHARDMESH_RPC_CODEC_PYTHON_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/python_value.h"
#include "shardmesh/compat/v1/compat_service.pb.h"

namespace shardmesh::rpc {

// Limits of one message: the levels of nested lists, tuples and dicts; the number of all values;
// and the bytes of all texts and integers together.
inline constexpr int kMaxPythonDepth = 16;
inline constexpr int64_t kMaxPythonValues = 65'536;
inline constexpr int64_t kMaxHashedBytes = int64_t{1} << 20;

void Encode(absl::Span<const PythonValue> from, compat::v1::PythonValues* to);
absl::StatusOr<std::vector<PythonValue>> Decode(const compat::v1::PythonValues& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_PYTHON_CODEC_H_

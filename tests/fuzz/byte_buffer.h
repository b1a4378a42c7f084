// Messages cut into slices, as a network may deliver them.
#ifndef SHARDMESH_TESTS_FUZZ_BYTE_BUFFER_H_
#define SHARDMESH_TESTS_FUZZ_BYTE_BUFFER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <string_view>
#include <vector>

namespace shardmesh::fuzz {

// `bytes` in slices of at most slice_bytes, each with memory of its own.
inline grpc::ByteBuffer BufferOf(std::string_view bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (; !bytes.empty(); bytes.remove_prefix(slices.back().size())) {
    const std::string_view piece = bytes.substr(0, slice_bytes);
    slices.emplace_back(piece.data(), piece.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace shardmesh::fuzz

#endif  // SHARDMESH_TESTS_FUZZ_BYTE_BUFFER_H_

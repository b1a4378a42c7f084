// A form of a tile for tests: its bytes in reverse order.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_STORE_REVERSED_TILE_H_
#define SHARDMESH_TESTS_UNIT_WORKER_STORE_REVERSED_TILE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "worker/store/tile_form.h"

namespace shardmesh::test {

class ReversedTile final : public worker::TileForm {
 public:
  ReversedTile(absl::Span<const char> bytes, MemoryBudget::Reservation memory)
      : bytes_(bytes.rbegin(), bytes.rend()), memory_(std::move(memory)) {}

  int64_t memory_bytes() const override { return memory_.size_bytes(); }
  void Read(int64_t offset_bytes, absl::Span<char> out) const override {
    ++reads_;
    std::copy_n(bytes_.rbegin() + offset_bytes, out.size(), out.begin());
  }

  // Changes a byte, as a fault of the memory would.
  void Damage() { bytes_[bytes_.size() / 2] ^= 4; }
  // Returns the number of calls of Read.
  int64_t reads() const { return reads_; }

 private:
  std::string bytes_;
  const MemoryBudget::Reservation memory_;
  mutable std::atomic<int64_t> reads_ = 0;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_UNIT_WORKER_STORE_REVERSED_TILE_H_

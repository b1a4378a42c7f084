// Operands for collectives, and what a plain program of one thread makes of them.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COLLECTIVE_DATA_H_
#define SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COLLECTIVE_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "sharding/device_group.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

using Bytes = std::shared_ptr<std::vector<char>>;

inline Bytes MakeBytes(int64_t size) {
  return std::make_shared<std::vector<char>>(static_cast<size_t>(size));
}
inline OwnedBytes Owned(const Bytes& bytes) { return {absl::MakeConstSpan(*bytes), bytes}; }
inline OwnedMutableBytes OwnedMutable(const Bytes& bytes) {
  return {absl::MakeSpan(*bytes), bytes};
}

// The group of all ranks of a mesh of one axis.
inline DeviceGroup GroupOf(int64_t ranks, DeviceId rank) {
  const std::vector<std::string> axes = {"tp"};
  return *DeviceGroup::Create(*Mesh::Create({{"tp", ranks}}), axes, rank);
}

inline CollectiveCall CallOf(Link* link, const DeviceGroup& group) {
  CollectiveCall call;
  call.link = link;
  call.group = &group;
  call.step = 1;
  call.op = 4;
  call.deadline = absl::Now() + absl::Seconds(60);
  return call;
}

// Elements that say something in every type; varied signs and magnitudes, so that the order of a
// sum shows.
Bytes OperandOf(Dtype dtype, int64_t count, DeviceId rank);

// What a reduction of `operands` gives. `ring_cuts` empty: in the canonical order. Otherwise in the
// ring's, elements [ring_cuts[p], ring_cuts[p+1]) being the part of place p.
std::vector<char> PlainReduction(Reduction reduction, Dtype dtype,
                                 const std::vector<Bytes>& operands, int64_t count,
                                 const std::vector<int64_t>& ring_cuts = {});

}  // namespace shardmesh::worker

#endif  // SHARDMESH_TESTS_UNIT_WORKER_COLLECTIVE_COLLECTIVE_DATA_H_

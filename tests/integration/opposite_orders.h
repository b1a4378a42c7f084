// Two clients that use overlapping groups in opposite orders.
#ifndef SHARDMESH_TESTS_INTEGRATION_OPPOSITE_ORDERS_H_
#define SHARDMESH_TESTS_INTEGRATION_OPPOSITE_ORDERS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shardmesh::test {

// For `duration`, each of two clients of the cluster at `address` runs collectives over fsdp, tp
// and both, the one in this order, the other in the opposite one, several at a time. Returns how
// many there were; the first error, such as that of a step that did not end in time.
absl::StatusOr<int64_t> RunInOppositeOrders(const std::string& address, absl::Duration duration);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_INTEGRATION_OPPOSITE_ORDERS_H_

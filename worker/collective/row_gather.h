// An all-gather that passes on whole rows as they arrive, so that the rank can work on them while
// other rows are still on their way.
#ifndef SHARDMESH_WORKER_COLLECTIVE_ROW_GATHER_H_
#define SHARDMESH_WORKER_COLLECTIVE_ROW_GATHER_H_

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// The arguments of GatherRows on one rank.
struct RowGather {
  OwnedBytes mine;                      // this rank's rows
  absl::Span<const int64_t> rows;       // the number of rows of each place
  absl::Span<const int64_t> row_bytes;  // the size of each place's rows, at least 1
  int64_t rows_at_once = 1;             // at least 1
  int64_t alignment_bytes = 1;          // of the rows that are passed on; a power of two
  // If set: takes the place of `take` for this rank's rows. Called again and again while no other
  // rows are there. Works on them for a while, and returns false once nothing is left to do.
  std::function<absl::StatusOr<bool>()> work_on_mine = nullptr;
};

// Sends `mine` to every other rank, like PairwiseAllGather. Passes the rows of each place, this
// rank's included, to take(place, first_row, rows), where `first_row` counts from the place's first
// row, and `rows` has whole rows. The rows of a place come in order. Rows that have arrived come
// first, so the order of places varies; this rank's rows come while no others are there.
//
// Rows that arrive in one piece of memory, as through shared memory, are passed on in place.
// Others, and this rank's, are passed on `rows_at_once` at a time; the last ones may be fewer. For
// those that arrive in pieces, the function collects so many rows of each place in memory of
// call.scratch.
//
// Uses one round. While no rows are there, waits for the first place, counted from this rank's, of
// which rows are missing. Errors are those of `take` and of `work_on_mine`, after which nothing
// more is passed on, and those of PairwiseAllGather.
absl::Status GatherRows(
    const CollectiveCall& call, const RowGather& gather,
    absl::FunctionRef<absl::Status(int64_t place, int64_t first_row, absl::Span<const char> rows)>
        take);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_ROW_GATHER_H_

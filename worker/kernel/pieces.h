// Work on many elements, in pieces that several threads take, with checks for an abort.
#ifndef SHARDMESH_WORKER_KERNEL_PIECES_H_
#define SHARDMESH_WORKER_KERNEL_PIECES_H_

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace shardmesh::worker {

// How work is cut and who computes it.
struct PieceOptions {
  // The size of a piece, at least 1. A piece should take 0.2 ms or more, longer than it takes to
  // start a thread, and at most 3 ms on a slow CPU, which are 100 ms for a turn.
  int64_t piece = 1;
  int threads = 1;  // the caller's thread is one of them; less than 1 counts as 1
  // The number of pieces for each thread between two checks for an abort, at least 1. Less for
  // pieces of more than 3 ms.
  int64_t pieces_of_turn = 32;
};

// Calls body(begin, end) for each piece of [0, count), on at most options.threads threads. The
// pieces do not depend on the number of threads. The caller's thread calls `abort_check`, if not
// null, after every options.pieces_of_turn pieces of each thread, but not before the first one. A
// status other than OK ends the work.
absl::Status RunPieces(int64_t count, const PieceOptions& options,
                       const std::function<absl::Status()>& abort_check,
                       absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Calls body(i) for each i in [0, count) on `threads` threads of OpenMP: those of oneDNN's
// products, which wait for work for a while. For work between such products.
void RunOnKernelThreads(int64_t count, int threads, absl::FunctionRef<void(int64_t i)> body);

// Returns how many items of `cost` are about as much work as `cost_of_piece`: at least 1.
int64_t ItemsOfPiece(int64_t cost_of_piece, int64_t cost);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_PIECES_H_

// Pieces of work in turns: threads end with a turn, and the caller's thread checks for an abort.
#include "worker/kernel/pieces.h"

#include <algorithm>
#include <cstddef>

#include "absl/base/config.h"
#include "process/thread_pool.h"
#include "status/status_macros.h"

namespace shardmesh::worker {
absl::Status RunPieces(int64_t count, const PieceOptions& options,
                       const std::function<absl::Status()>& abort_check,
                       absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  const int64_t pieces = count / options.piece + (count % options.piece != 0 ? 1 : 0);
  const int64_t threads = std::max(options.threads, 1);
  const int64_t turn = threads * options.pieces_of_turn;
  for (int64_t first = 0; first < pieces; first += turn) {
    if (abort_check && first > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
    const auto count_of_turn = static_cast<size_t>(std::min(turn, pieces - first));
    RunOnThreads(count_of_turn, static_cast<size_t>(threads), [&](size_t i) {
      const int64_t begin = (first + static_cast<int64_t>(i)) * options.piece;
      body(begin, begin + std::min(options.piece, count - begin));
    });
  }
  return absl::OkStatus();
}

// ThreadSanitizer does not see how they synchronise, and the OpenMP of clang,
// which the builds for the sanitizers use, leaks a little for each thread that has called it.
void RunOnKernelThreads(int64_t count, int threads, absl::FunctionRef<void(int64_t i)> body) {
#if defined(ABSL_HAVE_THREAD_SANITIZER) || defined(ABSL_HAVE_ADDRESS_SANITIZER)
  RunOnThreads(static_cast<size_t>(count), static_cast<size_t>(threads),
               [&](size_t i) { body(static_cast<int64_t>(i)); });
#else
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (count > 1)
  for (int64_t i = 0; i < count; ++i) body(i);
#endif
}

int64_t ItemsOfPiece(int64_t cost_of_piece, int64_t cost) {
  return std::max<int64_t>(cost_of_piece / std::max<int64_t>(cost, 1), 1);
}

}  // namespace shardmesh::worker

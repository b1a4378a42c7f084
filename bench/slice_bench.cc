// Measures how long the get of a slice of 1 MiB out of a large array takes, on a cluster that runs.
// Usage: slice_bench ADDRESS [ARRAY_MIB] [CALLS]; bench/slice_bench.py starts the cluster. Prints
// one line of JSON for each layout: by rows, where one worker has the slice, and by columns, where
// each has a part of it.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr int64_t kColumns = 16384;  // of F32: a row has 64 KiB
constexpr int64_t kRowsOfSlice = 16;
constexpr double kTargetMilliseconds = 3;

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "slice_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

int Main(const std::string& address, int64_t mib, int calls) {
  const absl::StatusOr<std::unique_ptr<MeshClient>> client = MeshClient::Connect(address);
  if (!client.ok()) Fail(client.status());
  ArrayClient& arrays = (*client)->arrays();
  const int64_t rows = mib * (int64_t{1} << 20) / (4 * kColumns);
  const auto bytes = static_cast<size_t>(rows * kColumns * 4);
  // All zeros: pages that are never written take no memory.
  void* const memory =
      mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Fail(absl::ResourceExhaustedError("there is no memory for the array"));
  const TensorView view =
      *TensorView::Create(Dtype::kF32, {rows, kColumns}, {static_cast<const char*>(memory), bytes});
  const PartitionSpec by_rows({SpecEntry::Axis("tp"), SpecEntry::None()});
  const PartitionSpec by_columns({SpecEntry::None(), SpecEntry::Axis("tp")});
  for (const bool is_by_rows : {true, false}) {
    const PutTensor tensor{
        .name = "slice_bench", .view = view, .spec = is_by_rows ? by_rows : by_columns};
    if (const auto put = arrays.PutTensors({tensor}); !put.ok()) Fail(put.status());
    std::vector<double> times;                   // in ms
    for (int call = -2; call < calls; ++call) {  // two that are not counted: they connect
      const int64_t row = (int64_t{call + 2} * 7919 * kRowsOfSlice) % (rows - kRowsOfSlice + 1);
      const absl::Time begin = absl::Now();
      const absl::StatusOr<GatheredTensor> slice = arrays.Gather(
          ArraySelector::ByName("slice_bench"), ArraySlice{{row, row + kRowsOfSlice}, {}});
      if (!slice.ok()) Fail(slice.status());
      if (call >= 0) times.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    }
    std::sort(times.begin(), times.end());
    const double p50 = times[times.size() / 2];
    const nlohmann::json line = {
        {"id", "S7"},
        {"what", StrCat("get of a 1 MiB slice out of ", mib, " MiB by ",
                        is_by_rows ? "rows" : "columns", ", p50 of ", calls, " (p99 ",
                        static_cast<int64_t>(1000 * times[times.size() * 99 / 100]), " us)")},
        {"ours", p50},
        {"peer", nullptr},
        {"unit", "ms"},
        {"ratio", nullptr},
        {"target", "<= 3 ms"},
        {"met", p50 <= kTargetMilliseconds}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    if (const absl::Status gone = arrays.DeleteName("slice_bench"); !gone.ok()) Fail(gone);
  }
  munmap(memory, bytes);
  return 0;
}

}  // namespace
}  // namespace shardmesh::client

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: slice_bench ADDRESS [ARRAY_MIB] [CALLS]\n");
    return 2;
  }
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 2048;
  const int calls = argc > 3 ? std::atoi(argv[3]) : 500;
  if (mib < 2 || calls < 1) {
    std::fprintf(stderr, "slice_bench: ARRAY_MIB is at least 2, CALLS at least 1\n");
    return 2;
  }
  return shardmesh::client::Main(argv[1], mib, calls);
}

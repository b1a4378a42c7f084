// Measures how long a client takes to gather all named arrays of a running cluster into its memory,
// one after the other, and to hold them all.
// Usage: gather_bench ADDRESS; bench/load_bench.py starts the cluster and loads a checkpoint.
// Prints one line of JSON: the seconds, and the bytes of all arrays. The gather checks every
// checksum. Connecting and the list of the arrays are not timed.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "client/types/array.h"

namespace shardmesh::client {
namespace {

template <typename Value>
Value OrFail(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "gather_bench: %s\n", value.status().ToString().c_str());
  std::exit(1);
}

int Main(const std::string& address) {
  const std::unique_ptr<MeshClient> client = OrFail(MeshClient::Connect(address));
  const std::vector<Array> arrays = OrFail(client->arrays().ListArrays());
  if (arrays.empty()) {
    std::fprintf(stderr, "gather_bench: the cluster has no named arrays; load some first\n");
    return 1;
  }
  std::vector<GatheredTensor> gathered;
  gathered.reserve(arrays.size());
  size_t bytes = 0;
  const absl::Time begin = absl::Now();
  for (const Array& array : arrays) {
    gathered.push_back(OrFail(client->arrays().Gather(ArraySelector::ByName(array.name))));
    bytes += gathered.back().view().bytes().size();
  }
  const nlohmann::json line = {{"time_s", absl::ToDoubleSeconds(absl::Now() - begin)},
                               {"bytes", bytes}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace shardmesh::client

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gather_bench ADDRESS\n");
    return 2;
  }
  return shardmesh::client::Main(argv[1]);
}

// Two threads of which one reads what the other combines: proves that ThreadSanitizer sees the
// elements that the reduction loops read and write, of which they tell it by ranges.
//
//   combining_threads racy|locked
#include <cstdint>
#include <iostream>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/kernel/reduce.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kElements = 1000;

int Run(bool locked) {
  const auto combine = CombineFunction(Reduction::kSum, Dtype::kF32);
  if (!combine.ok()) {
    std::cerr << combine.status() << "\n";
    return 1;
  }
  std::vector<char> operand(kElements * sizeof(float));
  std::vector<char> between(operand.size());
  std::vector<char> result(operand.size());
  absl::Mutex mutex;
  // The last element alone is what both use.
  const char* const last = &between[between.size() - sizeof(float)];
  const auto write = [&] { (*combine)(operand.data(), operand.data(), kElements, between.data()); };
  const auto read = [&] { (*combine)(last, operand.data(), 1, result.data()); };
  const auto run = [&](const auto& body) {
    if (!locked) return body();
    absl::MutexLock lock(&mutex);
    body();
  };
  std::thread writer([&] { run(write); });
  std::thread reader([&] { run(read); });
  writer.join();
  reader.join();
  return 0;
}

}  // namespace
}  // namespace shardmesh::worker

int main(int argc, char** argv) {
  const std::string_view how = argc == 2 ? argv[1] : "";
  if (how != "racy" && how != "locked") {
    std::cerr << "usage: combining_threads racy|locked\n";
    return 2;
  }
  return shardmesh::worker::Run(how == "locked");
}

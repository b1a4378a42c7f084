// Times a bare loop over one packed oneDNN product, once for each line of its input.
//
// clang-format off
//   bare_product_bench THREADS
// clang-format on
//
// Prints "ready". Then answers each line "DTYPE ROWS IN OUT RUNS", with DTYPE being F32 or BF16, by
// one line of JSON: {"call_s"}, the median time of a product.
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/bare_product.h"
#include "tensor/dtype.h"

namespace shardmesh::bench {
namespace {

constexpr int64_t kWarmRuns = 3;

double MedianSeconds(const ProductCase& c, int64_t runs) {
  std::vector<char> lhs = RandomValues(c.dtype, c.rows * c.in, 1);
  std::vector<char> weights = RandomValues(c.dtype, c.in * c.out, 2);
  std::vector<char> out(static_cast<size_t>(c.rows * c.out * BitsPerElement(c.dtype) / 8));
  BareProduct product(c, lhs, weights, out);
  std::vector<double> times;
  for (int64_t run = -kWarmRuns; run < runs; ++run) {
    const absl::Time begin = absl::Now();
    product.Run();
    if (run >= 0) times.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace
}  // namespace shardmesh::bench

int main(int argc, char** argv) {
  const int threads = argc == 2 ? std::atoi(argv[1]) : 0;
  if (threads < 1) {
    std::cerr << "usage: bare_product_bench THREADS, at least 1\n";
    return 2;
  }
  omp_set_num_threads(threads);
  std::cout << "ready" << std::endl;
  try {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string type;
      shardmesh::bench::ProductCase c{
          .rows = 1, .in = 1, .out = 1, .dtype = shardmesh::Dtype::kF32};
      int64_t runs = 0;
      if (!(words >> type >> c.rows >> c.in >> c.out >> runs) || runs < 1) return 2;
      if (type == "BF16") c.dtype = shardmesh::Dtype::kBF16;
      const nlohmann::json answer = {{"call_s", shardmesh::bench::MedianSeconds(c, runs)}};
      std::cout << answer.dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bare_product_bench: " << error.what() << "\n";
    return 1;
  }
}

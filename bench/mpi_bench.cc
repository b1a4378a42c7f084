// Measures MPI's collectives as bench/collective_bench.cc measures ours: with the same sizes,
// numbers of calls and form of output.
//
//   mpirun -n RANKS mpi_bench [--ops OP,...] [--sizes BYTES,...]
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/collective_calls.h"

namespace {

struct Kind {
  const char* op;
  std::function<void()> run;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

float Element(int64_t rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 251); }

void Measure(int rank, int ranks, int64_t bytes, const Kind& kind) {
  const int64_t calls = shardmesh::bench::CallsFor(bytes);
  for (int64_t i = 0; i < calls / 10 + 1; ++i) kind.run();
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<double> times;
  double mean = 0;
  for (int64_t i = 0; i < calls; ++i) {
    if (shardmesh::bench::IsOneWay(kind.op)) MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    kind.run();
    times.push_back((MPI_Wtime() - start) * 1e6);
    mean += times.back() / static_cast<double>(calls);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double p) {
    return times[static_cast<size_t>(p * static_cast<double>(calls - 1))];
  };
  double slowest[3] = {at(0.5), at(0.99), mean};
  MPI_Allreduce(MPI_IN_PLACE, slowest, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank != 0) return;
  std::printf(
      "{\"system\": \"mpi\", \"op\": \"%s\", \"algorithm\": \"default\", \"ranks\": %d, \"bytes\": "
      "%lld, \"calls\": %lld, \"p50_us\": %f, \"p99_us\": %f, \"mean_us\": %f}\n",
      kind.op, ranks, static_cast<long long>(bytes), static_cast<long long>(calls), slowest[0],
      slowest[1], slowest[2]);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<std::string> ops;
  std::vector<int64_t> sizes = {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--ops") ops = Split(argv[i + 1]);
    if (std::string(argv[i]) == "--sizes") {
      sizes.clear();
      for (const std::string& size : Split(argv[i + 1])) sizes.push_back(std::atoll(size.c_str()));
    }
  }
  for (const int64_t bytes : sizes) {
    const int count = static_cast<int>(std::max<int64_t>(bytes / 4, 1));
    std::vector<float> in(static_cast<size_t>(count));
    std::vector<float> out(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) in[static_cast<size_t>(i)] = Element(rank, i);
    std::vector<int> parts(static_cast<size_t>(ranks), count / ranks);
    for (int i = 0; i < count % ranks; ++i) ++parts[static_cast<size_t>(i)];
    std::vector<int> begins = {0};
    for (const int part : parts) begins.push_back(begins.back() + part);
    const Kind kinds[] = {
        {"all-reduce",
         [&] { MPI_Allreduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }},
        {"all-gather",
         [&] {
           MPI_Allgatherv(in.data(), parts[static_cast<size_t>(rank)], MPI_FLOAT, out.data(),
                          parts.data(), begins.data(), MPI_FLOAT, MPI_COMM_WORLD);
         }},
        {"reduce-scatter",
         [&] {
           MPI_Reduce_scatter(in.data(), out.data(), parts.data(), MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD);
         }},
        {"all-to-all",
         [&] {
           MPI_Alltoall(in.data(), count / ranks, MPI_FLOAT, out.data(), count / ranks, MPI_FLOAT,
                        MPI_COMM_WORLD);
         }},
        {"broadcast", [&] { MPI_Bcast(in.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); }},
        {"barrier", [&] { MPI_Barrier(MPI_COMM_WORLD); }},
    };
    for (const Kind& kind : kinds) {
      const std::string op = kind.op;
      if (!ops.empty() && std::count(ops.begin(), ops.end(), op) == 0) continue;
      if (op == "barrier" && bytes != sizes.front()) continue;
      if (op == "broadcast") continue;  // runs after the other ops, because it overwrites `in`
      Measure(rank, ranks, int64_t{count} * 4, kind);
    }
    MPI_Allreduce(in.data(), out.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) {
      float sum = 0;
      for (int p = 0; p < ranks; ++p) sum += Element(p, i);
      if (out[static_cast<size_t>(i)] != sum) {
        std::fprintf(stderr, "mpi_bench: a wrong result\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    }
    if (ops.empty() || std::count(ops.begin(), ops.end(), "broadcast") > 0) {
      Measure(rank, ranks, int64_t{count} * 4, kinds[4]);
    }
  }
  MPI_Finalize();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Main(argc, argv); }

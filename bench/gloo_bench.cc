// Measures Gloo's collectives over TCP as bench/collective_bench.cc measures ours: with the same
// sizes, numbers of calls and form of output.
//
//   gloo_bench RANKS RANK FOLDER [--ops OP,...] [--sizes BYTES,...]     one rank; FOLDER is shared
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/collective_calls.h"

namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Kind {
  const char* op;
  const char* algorithm;
  std::function<void()> run;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

float Element(int64_t rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 251); }

void Barrier(const std::shared_ptr<gloo::Context>& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

void Measure(const std::shared_ptr<gloo::Context>& context, int64_t bytes, const Kind& kind) {
  const int64_t calls = shardmesh::bench::CallsFor(bytes);
  for (int64_t i = 0; i < calls / 10 + 1; ++i) kind.run();
  Barrier(context);
  std::vector<double> times;
  double mean = 0;
  for (int64_t i = 0; i < calls; ++i) {
    if (shardmesh::bench::IsOneWay(kind.op)) Barrier(context);
    const auto start = Clock::now();
    kind.run();
    times.push_back(MicrosecondsSince(start));
    mean += times.back() / static_cast<double>(calls);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double p) {
    return times[static_cast<size_t>(p * static_cast<double>(calls - 1))];
  };
  std::vector<double> slowest = {at(0.5), at(0.99), mean};
  gloo::AllreduceOptions options(context);
  options.setOutput(slowest.data(), slowest.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::max<double>));
  gloo::allreduce(options);
  if (context->rank != 0) return;
  std::printf(
      "{\"system\": \"gloo\", \"op\": \"%s\", \"algorithm\": \"%s\", \"ranks\": %d, \"bytes\": "
      "%lld, \"calls\": %lld, \"p50_us\": %f, \"p99_us\": %f, \"mean_us\": %f}\n",
      kind.op, kind.algorithm, context->size, static_cast<long long>(bytes),
      static_cast<long long>(calls), slowest[0], slowest[1], slowest[2]);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "gloo_bench: wrong arguments; see the head of its source\n");
    return 1;
  }
  const int ranks = std::atoi(argv[1]);
  const int rank = std::atoi(argv[2]);
  std::vector<std::string> ops;
  std::vector<int64_t> sizes = {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  for (int i = 4; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--ops") ops = Split(argv[i + 1]);
    if (std::string(argv[i]) == "--sizes") {
      sizes.clear();
      for (const std::string& size : Split(argv[i + 1])) sizes.push_back(std::atoll(size.c_str()));
    }
  }
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->setTimeout(std::chrono::seconds(60));
  context->connectFullMesh(store, device);

  for (const int64_t bytes : sizes) {
    const auto count = static_cast<size_t>(std::max<int64_t>(bytes / 4, 1));
    std::vector<float> in(count);
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) in[i] = Element(rank, static_cast<int64_t>(i));
    std::vector<size_t> parts(static_cast<size_t>(ranks), count / static_cast<size_t>(ranks));
    for (size_t i = 0; i < count % static_cast<size_t>(ranks); ++i) ++parts[i];
    const size_t own = parts[static_cast<size_t>(rank)];
    const auto reduce = [&](gloo::AllreduceOptions::Algorithm algorithm) {
      gloo::AllreduceOptions options(context);
      options.setAlgorithm(algorithm);
      options.setInput(in.data(), count);
      options.setOutput(out.data(), count);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    };
    // For Gloo's older interface, which works in place and keeps its buffers between calls.
    std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> halving;
    std::vector<float> in_place = in;
    if (ops.empty() || std::count(ops.begin(), ops.end(), "all-reduce") > 0) {
      halving = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
          context, std::vector<float*>{in_place.data()}, static_cast<int>(count));
    }
    std::vector<float> scattered = in;
    std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> scatter;
    if (ops.empty() || std::count(ops.begin(), ops.end(), "reduce-scatter") > 0) {
      scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context, std::vector<float*>{scattered.data()}, static_cast<int>(count),
          std::vector<int>(parts.begin(), parts.end()));
    }
    const std::vector<Kind> kinds = {
        {"all-reduce", "ring", [&] { reduce(gloo::AllreduceOptions::Algorithm::RING); }},
        {"all-reduce", "bcube", [&] { reduce(gloo::AllreduceOptions::Algorithm::BCUBE); }},
        {"all-reduce", "halving", [&] { halving->run(); }},
        {"all-gather", "ring",
         [&] {
           gloo::AllgathervOptions options(context);
           options.setInput(in.data(), own);
           options.setOutput(out.data(), parts);
           gloo::allgatherv(options);
         }},
        {"reduce-scatter", "halving", [&] { scatter->run(); }},
        {"all-to-all", "pairwise",
         [&] {
           const size_t even = count / static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
           gloo::AlltoallOptions options(context);
           options.setInput(in.data(), even);
           options.setOutput(out.data(), even);
           gloo::alltoall(options);
         }},
        {"broadcast", "binomial",
         [&] {
           gloo::BroadcastOptions options(context);
           options.setRoot(0);
           if (rank == 0) options.setInput(in.data(), count);
           options.setOutput(out.data(), count);
           gloo::broadcast(options);
         }},
        {"barrier", "dissemination", [&] { Barrier(context); }},
    };
    for (const Kind& kind : kinds) {
      const std::string op = kind.op;
      if (!ops.empty() && std::count(ops.begin(), ops.end(), op) == 0) continue;
      if (op == "barrier" && bytes != sizes.front()) continue;
      if ((op == "all-to-all" || op == "reduce-scatter") && count < static_cast<size_t>(ranks)) {
        continue;
      }
      Measure(context, static_cast<int64_t>(count) * 4, kind);
    }
    reduce(gloo::AllreduceOptions::Algorithm::RING);
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int p = 0; p < ranks; ++p) sum += Element(p, static_cast<int64_t>(i));
      if (out[i] != sum) {
        std::fprintf(stderr, "gloo_bench: a wrong result\n");
        return 1;
      }
    }
  }
  Barrier(context);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Main(argc, argv); }

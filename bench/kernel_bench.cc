// K1 of docs/benchmarks.md: the speed of the worker's matmul kernel, relative to a plain loop over
// one packed oneDNN product. K5-attention: attention relative to the worker's F32 products.
// K5-elementwise: functions of elements as one fused instruction, relative to the separate ops.
//
// The kernel and the plain loop alternate in one run; each sample is the mean of several calls. A
// figure is the ratio of two medians: that of the kernel's samples and that of the loop's samples.
// The run also compares the two products. Usage: kernel_bench [THREADS]
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/bare_product.h"
#include "program/step_plan.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"
#include "worker/kernel/kernel_speed.h"
#include "worker/kernel/matmul.h"
#include "worker/tensor_op/fused_ops.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh {
namespace {

using bench::BareProduct;
using bench::ProductCase;

constexpr double kTarget = 0.90;
constexpr int kSamples = 41;
constexpr double kSampleSeconds = 0.02;

// Products in the layers of a small encoder and of a 7-billion-parameter decoder, with different
// numbers of rows in a call.
constexpr ProductCase kCases[] = {
    {128, 384, 1536, Dtype::kF32},   {128, 1536, 384, Dtype::kF32},   {1, 4096, 4096, Dtype::kF32},
    {32, 4096, 11008, Dtype::kF32},  {512, 4096, 4096, Dtype::kF32},  {1, 4096, 4096, Dtype::kBF16},
    {32, 4096, 11008, Dtype::kBF16}, {512, 4096, 4096, Dtype::kBF16},
};

int64_t ElementsOfShape(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

double ValueAt(Dtype dtype, const char* at) {
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return BF16ToF32(bits);
}

double SecondsPerCall(const std::function<void()>& call, int64_t calls) {
  const absl::Time begin = absl::Now();
  for (int64_t i = 0; i < calls; ++i) call();
  return absl::ToDoubleSeconds(absl::Now() - begin) / static_cast<double>(calls);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Returns whether both results are equal up to rounding. oneDNN may use different block sizes for
// the two products, and rounds differently in this case.
bool Agree(Dtype dtype, const std::vector<char>& a, const std::vector<char>& b) {
  const double tolerance = dtype == Dtype::kF32 ? 1e-4 : 2e-2;
  for (size_t at = 0; at < a.size(); at += dtype == Dtype::kF32 ? 4 : 2) {
    const double left = ValueAt(dtype, a.data() + at), right = ValueAt(dtype, b.data() + at);
    if (!(std::abs(left - right) <= tolerance * (1 + std::abs(left)))) return false;
  }
  return true;
}

nlohmann::json Measure(const ProductCase& c, int threads) {
  std::vector<char> lhs = bench::RandomValues(c.dtype, c.rows * c.in, 1);
  std::vector<char> weights = bench::RandomValues(c.dtype, c.in * c.out, 2);
  std::vector<char> out(static_cast<size_t>(c.rows * c.out * BitsPerElement(c.dtype) / 8));
  std::vector<char> bare_out(out.size());

  worker::MatmulKernel kernel({.threads = threads});
  worker::MatmulSpec spec;
  spec.m = c.rows;
  spec.n = c.out;
  spec.k = c.in;
  spec.lhs_dtype = spec.rhs_dtype = spec.out_dtype = c.dtype;
  spec.transpose_rhs = true;
  const auto packed = kernel.Pack(spec, weights);
  if (!packed.ok()) {
    std::fprintf(stderr, "%s\n", packed.status().ToString().c_str());
    std::exit(1);
  }
  BareProduct bare(c, lhs, weights, bare_out);

  const auto run_ours = [&] {
    const absl::Status status = kernel.Run(spec, {lhs, {}, {}, absl::MakeSpan(out), packed->get()});
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  };
  const auto run_bare = [&] { bare.Run(); };

  const double once = std::max(SecondsPerCall(run_ours, 2), SecondsPerCall(run_bare, 2));
  if (!Agree(c.dtype, out, bare_out)) {
    std::fprintf(stderr, "the two products differ\n");
    std::exit(1);
  }
  const int64_t calls = std::max<int64_t>(1, static_cast<int64_t>(kSampleSeconds / once));
  std::vector<double> ours, theirs;
  for (int sample = 0; sample < kSamples; ++sample) {
    ours.push_back(SecondsPerCall(run_ours, calls));
    theirs.push_back(SecondsPerCall(run_bare, calls));
  }
  const double flops = 2.0 * static_cast<double>(c.rows * c.in * c.out);
  const double ours_rate = flops / Median(ours) / 1e9;
  const double bare_rate = flops / Median(theirs) / 1e9;
  const double ratio = ours_rate / bare_rate;
  return {{"id", "K1-first"},
          {"what",
           StrCat(DtypeName(c.dtype), " product ", c.rows, "x", c.in, "x", c.out, ", ", threads,
                  threads == 1 ? " thread" : " threads", ", against a bare packed oneDNN loop")},
          {"ours", ours_rate},
          {"peer", bare_rate},
          {"unit", "GFLOP/s"},
          {"ratio", ratio},
          {"target", kTarget},
          {"met", ratio >= kTarget}};
}

// One layer's attention. Query i sees the rows up to rows - queries + i.
struct AttentionCase {
  const char* what;
  Dtype dtype;
  int64_t batch, queries, rows, heads, key_heads, features;
};

constexpr AttentionCase kAttentionCases[] = {
    {"prefill of a 1.1 B Llama", Dtype::kBF16, 1, 512, 512, 32, 4, 64},
    {"prefill of a 1.1 B Llama", Dtype::kF32, 1, 512, 512, 32, 4, 64},
    {"decoding of a 1.1 B Llama", Dtype::kBF16, 1, 1, 2048, 32, 4, 64},
    {"decoding of a 1.1 B Llama", Dtype::kBF16, 8, 1, 2048, 32, 4, 64},
    {"a layer of MiniLM", Dtype::kF32, 32, 128, 128, 12, 12, 32},
};

// Returns the GFLOP/s of products of F32.
double F32Rate(worker::MatmulKernel* kernel) {
  constexpr int64_t kRows = 512;
  return 2e-9 * kRows /
         worker::MeasureProducts(kernel, Dtype::kF32, Dtype::kF32, 512, {kRows}).at(0);
}

worker::OpInput InputOf(Dtype dtype, const Shape& shape, const std::vector<char>& bytes) {
  return {.dtype = dtype, .shape = shape, .tile = Tile::Whole(shape), .bytes = bytes};
}

nlohmann::json MeasureAttention(const AttentionCase& c, int threads) {
  const Shape of_queries = {c.batch, c.queries, c.heads, c.features};
  const Shape of_rows = {c.batch, c.rows, c.key_heads, c.features};
  const std::vector<char> query = bench::RandomValues(c.dtype, ElementsOfShape(of_queries), 1);
  const std::vector<char> keys = bench::RandomValues(c.dtype, ElementsOfShape(of_rows), 2);
  const std::vector<char> values = bench::RandomValues(c.dtype, ElementsOfShape(of_rows), 3);
  std::vector<int32_t> numbers;
  double seen = 0;
  for (int64_t i = 0; i < c.queries; ++i) {
    numbers.push_back(static_cast<int32_t>(c.rows - c.queries + i));
    seen += numbers.back() + 1;
  }
  std::vector<char> positions(numbers.size() * sizeof(int32_t));
  std::memcpy(positions.data(), numbers.data(), positions.size());
  const AttentionOp op = {.positions = 3, .mask = std::nullopt, .scale = 0.125f};
  const std::vector<worker::OpInput> inputs = {
      InputOf(c.dtype, of_queries, query), InputOf(c.dtype, of_rows, keys),
      InputOf(c.dtype, of_rows, values), InputOf(Dtype::kI32, {c.queries}, positions)};
  std::vector<char> out(query.size());
  const worker::OpOutput output = {.dtype = c.dtype,
                                   .shape = of_queries,
                                   .tile = Tile::Whole(of_queries),
                                   .bytes = absl::MakeSpan(out)};
  worker::OpContext context;
  context.threads = threads;
  const auto run = [&] {
    const absl::Status status = worker::RunTensorOp(op, inputs, output, context);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  };
  worker::MatmulKernel kernel({.threads = threads});
  const int64_t calls =
      std::max<int64_t>(1, static_cast<int64_t>(kSampleSeconds / SecondsPerCall(run, 2)));
  std::vector<double> seconds, product_rates;
  for (int sample = 0; sample < kSamples; ++sample) {
    seconds.push_back(SecondsPerCall(run, calls));
    if (sample % 8 == 0) product_rates.push_back(F32Rate(&kernel));
  }
  // Two products of one multiplication and one addition for each query, row and feature.
  const double flops =
      4 * seen * static_cast<double>(c.batch * c.heads) * static_cast<double>(c.features);
  const double rate = flops / Median(seconds) / 1e9;
  const double product_rate = Median(product_rates);
  return {{"id", "K5-attention"},
          {"what",
           StrCat("attention: ", c.what, ", ", DtypeName(c.dtype), ", batch ", c.batch, ", ",
                  c.queries, c.queries == 1 ? " query, " : " queries, ", c.rows, " rows, ", threads,
                  threads == 1 ? " thread" : " threads", ", beside an F32 product 512x512x512")},
          {"ours", rate},
          {"peer", product_rate},
          {"unit", "GFLOP/s"},
          {"ratio", rate / product_rate},
          {"target", nullptr},
          {"met", nullptr}};
}

// Functions of the elements of a matrix, with a row of biases: silu(x * gain + bias) * gate.
struct ElementCase {
  const char* what;
  Dtype dtype;
  int64_t rows, columns;
};

constexpr ElementCase kElementCases[] = {
    {"within the caches", Dtype::kF32, 32, 2048},
    {"beyond the caches", Dtype::kF32, 2048, 5632},
    {"beyond the caches", Dtype::kBF16, 2048, 5632},
};

// The inputs are x, gain, bias and gate; the results of the ops follow.
FusedCompute GateOps() {
  return {.inputs = {0, 1, 2, 3},
          .ops = {{.op = MapOp{MapFunction::kMultiply, {0, 1}}, .label = "multiply"},
                  {.op = MapOp{MapFunction::kAdd, {4, 2}}, .label = "add"},
                  {.op = MapOp{MapFunction::kSilu, {5}}, .label = "silu"},
                  {.op = MapOp{MapFunction::kMultiply, {6, 3}}, .label = "multiply"}}};
}

void ExitUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

nlohmann::json MeasureElements(const ElementCase& c, int threads) {
  const Shape shape = {c.rows, c.columns};
  const Shape row = {c.columns};
  const int64_t elements = ElementsOfShape(shape);
  const std::vector<char> x = bench::RandomValues(c.dtype, elements, 1);
  const std::vector<char> gain = bench::RandomValues(c.dtype, 1, 2);
  const std::vector<char> bias = bench::RandomValues(c.dtype, c.columns, 3);
  const std::vector<char> gate = bench::RandomValues(c.dtype, elements, 4);
  const std::vector<worker::OpInput> inputs = {
      InputOf(c.dtype, shape, x), InputOf(c.dtype, {1}, gain), InputOf(c.dtype, row, bias),
      InputOf(c.dtype, shape, gate)};
  std::vector<char> out(x.size());
  std::vector<char> separate_out(x.size());
  const auto output_in = [&](std::vector<char>& bytes) {
    return worker::OpOutput{.dtype = c.dtype,
                            .shape = shape,
                            .tile = Tile::Whole(shape),
                            .bytes = absl::MakeSpan(bytes)};
  };
  worker::OpContext context;
  context.threads = threads;
  const FusedCompute fused = GateOps();
  const auto run_fused = [&] {
    ExitUnlessOk(worker::RunFusedOps(fused, inputs, output_in(out), context));
  };
  // As a plan without fusion: each op over the result of the one before it.
  const auto run_separate = [&] {
    const worker::OpOutput output = output_in(separate_out);
    const worker::OpInput made = InputOf(c.dtype, shape, separate_out);
    const std::vector<worker::OpInput> read[] = {
        {inputs[0], inputs[1]}, {made, inputs[2]}, {made}, {made, inputs[3]}};
    for (size_t i = 0; i < fused.ops.size(); ++i) {
      ExitUnlessOk(worker::RunTensorOp(fused.ops[i].op, read[i], output, context));
    }
  };
  const int64_t calls =
      std::max<int64_t>(1, static_cast<int64_t>(kSampleSeconds / SecondsPerCall(run_separate, 2)));
  std::vector<double> fused_seconds, separate_seconds;
  for (int sample = 0; sample < kSamples; ++sample) {
    fused_seconds.push_back(SecondsPerCall(run_fused, calls));
    separate_seconds.push_back(SecondsPerCall(run_separate, calls));
  }
  if (out != separate_out) ExitUnlessOk(absl::InternalError("fused ops have other bits"));
  const double rate = static_cast<double>(elements) / Median(fused_seconds) / 1e6;
  const double separate_rate = static_cast<double>(elements) / Median(separate_seconds) / 1e6;
  // Tensors of x's size that are read and written: fused x, gate and the result.
  const int64_t size_bytes = static_cast<int64_t>(x.size());
  return {{"id", "K5-elementwise"},
          {"what",
           StrCat("silu(x * gain + bias) * gate, ", c.what, ", ", DtypeName(c.dtype), " ", c.rows,
                  "x", c.columns, ", ", threads, threads == 1 ? " thread" : " threads", ", ",
                  3 * size_bytes, " bytes fused, beside the separate ops with ", 9 * size_bytes)},
          {"ours", rate},
          {"peer", separate_rate},
          {"unit", "M elements/s"},
          {"ratio", rate / separate_rate},
          {"target", nullptr},
          {"met", nullptr}};
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1) {
    std::fprintf(stderr, "usage: kernel_bench [THREADS], at least 1\n");
    return 2;
  }
  omp_set_num_threads(threads);
  try {
    for (const shardmesh::bench::ProductCase& c : shardmesh::kCases) {
      std::printf("%s\n", shardmesh::Measure(c, threads).dump().c_str());
      std::fflush(stdout);
    }
    for (const shardmesh::AttentionCase& c : shardmesh::kAttentionCases) {
      std::printf("%s\n", shardmesh::MeasureAttention(c, threads).dump().c_str());
      std::fflush(stdout);
    }
    for (const shardmesh::ElementCase& c : shardmesh::kElementCases) {
      std::printf("%s\n", shardmesh::MeasureElements(c, threads).dump().c_str());
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

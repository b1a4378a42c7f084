// Products against plain loops in double, over shapes, types, layouts and what is fused.
#include "worker/kernel/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/status_matchers.h"
#include "worker/kernel/epilogue.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                       Activation::kGeluTanh, Activation::kSilu};

// Elements of one type, and what they mean.
struct Matrix {
  Dtype dtype;
  std::vector<char> bytes;

  Matrix(Dtype type, int64_t elements, uint32_t seed)
      : dtype(type), bytes(static_cast<size_t>(elements * BitsPerElement(type) / 8)) {
    for (int64_t i = 0; i < elements; ++i) {
      seed = seed * 1664525u + 1013904223u;
      const int value = static_cast<int>(seed >> 16) % 201 - 100;
      Set(i, dtype == Dtype::kI8 ? value : value / 128.0);
    }
  }

  void Set(int64_t i, double value) {
    if (dtype == Dtype::kF32) {
      const auto typed = static_cast<float>(value);
      std::memcpy(bytes.data() + 4 * i, &typed, 4);
    } else if (dtype == Dtype::kI8) {
      bytes[static_cast<size_t>(i)] = static_cast<char>(static_cast<int8_t>(value));
    } else {
      const auto rounded = static_cast<float>(value);
      const uint16_t typed = dtype == Dtype::kF16 ? F32ToF16(rounded) : F32ToBF16(rounded);
      std::memcpy(bytes.data() + 2 * i, &typed, 2);
    }
  }

  double Get(int64_t i) const {
    if (dtype == Dtype::kF32) {
      float typed;
      std::memcpy(&typed, bytes.data() + 4 * i, 4);
      return typed;
    }
    if (dtype == Dtype::kI8) return static_cast<int8_t>(bytes[static_cast<size_t>(i)]);
    uint16_t typed;
    std::memcpy(&typed, bytes.data() + 2 * i, 2);
    return dtype == Dtype::kF16 ? F16ToF32(typed) : BF16ToF32(typed);
  }
};

double Plain(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kNone:
      break;
  }
  return x;
}

// Runs the product, plain and packed, and compares all elements, or some thousands of a large one.
void ExpectRight(MatmulKernel& kernel, const MatmulSpec& spec) {
  SCOPED_TRACE(StrCat("m=", spec.m, " n=", spec.n, " k=", spec.k, " ", DtypeName(spec.lhs_dtype),
                      "x", DtypeName(spec.rhs_dtype), "->", DtypeName(spec.out_dtype),
                      " transposes ", spec.transpose_lhs, ",", spec.transpose_rhs, " bias ",
                      spec.has_bias, " scale ", spec.scale, " activation ",
                      static_cast<int>(spec.activation)));
  const Matrix lhs(spec.lhs_dtype, spec.m * spec.k, 1);
  const Matrix rhs(spec.rhs_dtype, spec.k * spec.n, 2);
  const Matrix bias(spec.bias_dtype, spec.has_bias ? spec.n : 0, 3);
  const Matrix scales(Dtype::kF32, spec.has_scales ? spec.n : 0, 5);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs.bytes));
  for (const PackedWeights* weights : {static_cast<const PackedWeights*>(nullptr), packed.get()}) {
    Matrix out(spec.out_dtype, spec.m * spec.n, 4);
    ASSERT_THAT(kernel.Run(spec, {.lhs = lhs.bytes,
                                  .rhs = rhs.bytes,
                                  .bias = bias.bytes,
                                  .out = absl::MakeSpan(out.bytes),
                                  .packed = weights,
                                  .scales = scales.bytes}),
                IsOk());
    const int64_t stride = std::max<int64_t>(1, spec.m * spec.n / 4000) | 1;
    for (int64_t element = 0; element < spec.m * spec.n; element += stride) {
      const int64_t i = element / spec.n, j = element % spec.n;
      double sum = 0, magnitude = 0;
      for (int64_t l = 0; l < spec.k; ++l) {
        const double product = lhs.Get(spec.transpose_lhs ? l * spec.m + i : i * spec.k + l) *
                               rhs.Get(spec.transpose_rhs ? j * spec.k + l : l * spec.n + j);
        sum += product;
        magnitude += std::abs(product);
      }
      const double offset = spec.has_bias ? bias.Get(j) : 0;
      const double scale = spec.scale * (spec.has_scales ? scales.Get(j) : 1);
      const double expected = Plain(spec.activation, scale * sum + offset);
      const double rounding = spec.out_dtype == Dtype::kBF16  ? std::abs(expected) / 200
                              : spec.out_dtype == Dtype::kF16 ? std::abs(expected) / 2000
                                                              : 0;
      ASSERT_NEAR(out.Get(element), expected, 2e-6 * (1 + std::abs(scale) * magnitude) + rounding)
          << "element (" << i << ", " << j << ")" << (weights ? ", packed" : "");
    }
  }
}

MatmulSpec SpecOf(int64_t m, int64_t n, int64_t k, Dtype dtype = Dtype::kF32,
                  Dtype out = Dtype::kF32) {
  MatmulSpec spec;
  spec.m = m;
  spec.n = n;
  spec.k = k;
  spec.lhs_dtype = spec.rhs_dtype = dtype;
  spec.out_dtype = out;
  return spec;
}

TEST(MatmulTest, AgreesWithPlainLoopsOverShapesTypesAndLayouts) {
  MatmulKernel kernel({});
  const int64_t shapes[][3] = {{1, 1, 1},    {1, 7, 13},      {7, 1, 13},   {7, 13, 1},
                               {31, 37, 41}, {4096, 1, 1},    {1, 4096, 1}, {1, 1, 4096},
                               {1, 384, 96}, {128, 768, 384}, {65, 64, 257}};
  const std::pair<Dtype, Dtype> types[] = {
      {Dtype::kF32, Dtype::kF32}, {Dtype::kBF16, Dtype::kBF16}, {Dtype::kBF16, Dtype::kF32},
      {Dtype::kF16, Dtype::kF16}, {Dtype::kF16, Dtype::kF32},   {Dtype::kI8, Dtype::kF32}};
  for (const auto& [m, n, k] : shapes) {
    for (const auto& [in, out] : types) {
      for (const bool transpose_lhs : {false, true}) {
        for (const bool transpose_rhs : {false, true}) {
          MatmulSpec spec = SpecOf(m, n, k, in, out);
          spec.transpose_lhs = transpose_lhs;
          spec.transpose_rhs = transpose_rhs;
          ExpectRight(kernel, spec);
        }
      }
    }
  }
}

// Weights of I8 with a factor for each column, under each type of floats.
std::vector<MatmulSpec> QuantisedSpecs(int64_t m, int64_t n, int64_t k) {
  std::vector<MatmulSpec> specs;
  for (const Dtype lhs : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const Dtype out : {Dtype::kF32, lhs}) {
      if (out == Dtype::kF32 && lhs == Dtype::kF32 && !specs.empty()) continue;
      specs.push_back(SpecOf(m, n, k, lhs, out));
      specs.back().rhs_dtype = Dtype::kI8;
      specs.back().has_scales = true;
    }
  }
  return specs;
}

TEST(MatmulTest, MultipliesFloatsByI8WithAFactorForEachColumn) {
  MatmulKernel kernel({.threads = 1});
  MatmulKernel converting({.threads = 1, .flops_per_second = 1e7, .converts_all = true});
  // Below and above the most rows for which weights are converted in registers, and the ends of
  // panels and of blocks of rows.
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 63, 257},  {2, 65, 255}, {7, 129, 13},
                               {16, 33, 300}, {17, 33, 200}, {40, 130, 65}};
  for (const auto& [m, n, k] : shapes) {
    int round = static_cast<int>(m + n);
    for (MatmulSpec spec : QuantisedSpecs(m, n, k)) {
      for (const bool transpose_rhs : {false, true}) {
        ++round;
        spec.transpose_lhs = round % 3 == 0;
        spec.transpose_rhs = transpose_rhs;
        ASSERT_NO_FATAL_FAILURE(ExpectRight(kernel, spec));
        spec.has_bias = true;
        spec.bias_dtype = round % 2 == 0 ? Dtype::kF32 : spec.lhs_dtype;
        spec.activation = kActivations[round % 5];
        spec.scale = round % 4 < 2 ? 1.0F : 0.01F;
        ASSERT_NO_FATAL_FAILURE(ExpectRight(round % 3 == 1 ? converting : kernel, spec));
        spec.has_bias = false;
      }
    }
  }
  MatmulSpec unscaled = SpecOf(3, 5, 7);
  unscaled.rhs_dtype = Dtype::kI8;
  ExpectRight(kernel, unscaled);
}

// Up to 16 rows, and more: loops of our own read packed weights, which oneDNN's kernels read too.
TEST(MatmulTest, MultipliesFewRowsByPackedWeightsOfEachType) {
  MatmulKernel kernel({.threads = 1});
  // Panels of 64 columns, and checks for an abort after each.
  MatmulKernel slow({.threads = 1, .flops_per_second = 1e7, .bytes_per_second = 1e5});
  const int64_t shapes[][2] = {{1, 33}, {17, 64}, {64, 65}, {70, 1}, {130, 300}, {192, 67}};
  for (const auto& [lhs_dtype, dtype] :
       {std::pair(Dtype::kF32, Dtype::kF32), std::pair(Dtype::kBF16, Dtype::kBF16),
        std::pair(Dtype::kF16, Dtype::kF16), std::pair(Dtype::kF32, Dtype::kI8),
        std::pair(Dtype::kBF16, Dtype::kI8)}) {
    for (const int64_t m : {2, 3, 4, 5, 8, 15, 16, 17}) {
      for (const auto& [n, k] : shapes) {
        MatmulSpec spec = SpecOf(m, n, k, lhs_dtype, m % 2 == 0 ? lhs_dtype : Dtype::kF32);
        spec.rhs_dtype = dtype;
        spec.transpose_lhs = m == 3 || n == 64;
        spec.transpose_rhs = m != 5;
        spec.has_bias = m % 3 == 0;
        spec.bias_dtype = m == 15 ? lhs_dtype : Dtype::kF32;
        ASSERT_NO_FATAL_FAILURE(ExpectRight(k == 300 ? slow : kernel, spec));
      }
    }
  }
}

TEST(MatmulTest, FusesScaleBiasAndActivation) {
  MatmulKernel kernel({});
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kI8}) {
    for (const Activation activation : kActivations) {
      for (const float scale : {1.0f, 0.001f}) {
        MatmulSpec spec = SpecOf(33, 70, 50, dtype);
        spec.transpose_rhs = true;
        spec.has_bias = true;
        spec.scale = scale;
        spec.activation = activation;
        ExpectRight(kernel, spec);
      }
    }
  }
}

TEST(MatmulTest, AnEmptySumIsZeroAndAnEmptyResultIsNothing) {
  MatmulKernel kernel({});
  MatmulSpec spec = SpecOf(3, 5, 0);
  spec.has_bias = true;
  spec.activation = Activation::kGelu;
  ExpectRight(kernel, spec);
  ExpectRight(kernel, SpecOf(0, 5, 7));
  ExpectRight(kernel, SpecOf(3, 0, 7));
  ExpectRight(kernel, SpecOf(3, 5, 0, Dtype::kI8));
  for (MatmulSpec quantised : QuantisedSpecs(3, 5, 0)) {
    ExpectRight(kernel, quantised);
    quantised.m = 0;
    quantised.k = 7;
    ExpectRight(kernel, quantised);
    quantised.m = 3;
    quantised.n = 0;
    ExpectRight(kernel, quantised);
  }
}

TEST(MatmulTest, CutsLargeProductsIntoBlocksAndNoticesAnAbortBetweenThem) {
  MatmulKernel kernel({.threads = 1, .flops_per_second = 1e7});  // blocks of 1e6 operations
  MatmulSpec spec = SpecOf(150, 200, 130);
  spec.has_bias = true;
  spec.scale = 0.5;
  spec.activation = Activation::kSilu;
  ExpectRight(kernel, spec);
  spec.transpose_lhs = spec.transpose_rhs = true;
  ExpectRight(kernel, spec);

  const Matrix lhs(Dtype::kF32, spec.m * spec.k, 1), rhs(Dtype::kF32, spec.k * spec.n, 2),
      bias(Dtype::kF32, spec.n, 3);
  Matrix out(Dtype::kF32, spec.m * spec.n, 4);
  int asked = 0;
  EXPECT_THAT(kernel.Run(spec, {lhs.bytes, rhs.bytes, bias.bytes, absl::MakeSpan(out.bytes)},
                         [&asked]() -> absl::Status {
                           return ++asked < 3 ? absl::OkStatus() : absl::AbortedError("enough");
                         }),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(asked, 3);
}

TEST(MatmulTest, OnePackingServesEveryNumberOfRows) {
  MatmulKernel kernel({});
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    const Matrix rhs(dtype, 96 * 200, 2);
    MatmulSpec spec = SpecOf(64, 200, 96, dtype);
    spec.transpose_rhs = true;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs.bytes));
    EXPECT_GE(packed->size_bytes(), static_cast<int64_t>(rhs.bytes.size()));
    for (const int64_t m : {1, 2, 17, 64, 300}) {
      spec.m = m;
      const Matrix lhs(dtype, m * 96, 1);
      Matrix plain(Dtype::kF32, m * 200, 4), out(Dtype::kF32, m * 200, 5);
      ASSERT_THAT(kernel.Run(spec, {lhs.bytes, rhs.bytes, {}, absl::MakeSpan(plain.bytes)}),
                  IsOk());
      ASSERT_THAT(kernel.Run(spec, {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed.get()}),
                  IsOk());
      for (int64_t i = 0; i < m * 200; ++i) ASSERT_NEAR(out.Get(i), plain.Get(i), 1e-4);
    }
  }
}

// Any bytes, so also NaNs and padding that is not zero.
std::vector<char> AnyBytes(int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(count));
  uint32_t seed = 7;
  for (char& byte : bytes) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

TEST(MatmulTest, PackedWeightsGiveTheBytesOfThePlainOnesBack) {
  MatmulKernel kernel({.threads = 1});
  // The slow one packs panels of 64 columns where k is large.
  MatmulKernel slow({.threads = 1, .flops_per_second = 1e7});
  const int64_t shapes[][2] = {{1, 1},     {1, 1000},  {1000, 1}, {3, 17}, {17, 3},
                               {63, 65},   {65, 63},   {64, 128}, {0, 5},  {5, 0},
                               {1000, 63}, {33, 1000}, {300, 200}};
  for (MatmulKernel* each : {&kernel, &slow}) {
    for (const auto& [k, n] : shapes) {
      for (const auto& [lhs_dtype, dtype] :
           {std::pair(Dtype::kF32, Dtype::kF32), std::pair(Dtype::kBF16, Dtype::kBF16),
            std::pair(Dtype::kI8, Dtype::kI8), std::pair(Dtype::kF16, Dtype::kF16),
            std::pair(Dtype::kF32, Dtype::kI8)}) {
        for (const bool transpose : {false, true}) {
          SCOPED_TRACE(StrCat("k=", k, " n=", n, " ", DtypeName(dtype), " transposed ", transpose));
          MatmulSpec spec = SpecOf(4, n, k, lhs_dtype);
          spec.rhs_dtype = dtype;
          spec.transpose_rhs = transpose;
          const std::vector<char> rhs = AnyBytes(k * n * BitsPerElement(dtype) / 8);
          SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, each->Pack(spec, rhs));
          EXPECT_EQ(packed->packing(), PackingOf(spec));
          if (!packed->can_unpack()) {
            EXPECT_TRUE(dtype == lhs_dtype && dtype != Dtype::kF32 && dtype != Dtype::kF16)
                << "only weights that were converted cannot be unpacked";
            continue;
          }
          std::vector<char> plain(rhs.size());
          packed->Unpack(0, absl::MakeSpan(plain));
          ASSERT_EQ(plain, rhs);
        }
      }
    }
  }
}

TEST(MatmulTest, PackedWeightsGiveAnyRangeOfThePlainOnesBack) {
  MatmulKernel kernel({.threads = 1, .flops_per_second = 1e7});
  constexpr int64_t kRows = 130, kColumns = 300;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kI8}) {
    for (const bool transpose : {false, true}) {
      MatmulSpec spec = SpecOf(4, kColumns, kRows, dtype == Dtype::kI8 ? Dtype::kF32 : dtype);
      spec.rhs_dtype = dtype;
      spec.transpose_rhs = transpose;
      const std::vector<char> rhs = AnyBytes(kRows * kColumns * BitsPerElement(dtype) / 8);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs));
      ASSERT_TRUE(packed->can_unpack());
      for (const size_t piece_bytes : {size_t{4}, size_t{64}, size_t{1204}, size_t{8192}}) {
        std::vector<char> plain(rhs.size());
        for (size_t at = 0; at < plain.size(); at += piece_bytes) {
          packed->Unpack(static_cast<int64_t>(at), absl::MakeSpan(plain).subspan(at, piece_bytes));
        }
        ASSERT_EQ(plain, rhs) << "in pieces of " << piece_bytes << ", transposed " << transpose
                              << " " << DtypeName(dtype);
      }
    }
  }
}

TEST(MatmulTest, WeightsThatKeepTheirTypeHaveOnePackingForAllInputs) {
  MatmulSpec floats = SpecOf(4, 8, 16);
  floats.rhs_dtype = Dtype::kI8;
  MatmulSpec halves = SpecOf(2, 8, 16, Dtype::kBF16, Dtype::kBF16);
  halves.rhs_dtype = Dtype::kI8;
  halves.transpose_lhs = true;
  EXPECT_EQ(PackingOf(floats), PackingOf(halves));
  EXPECT_NE(PackingOf(floats), PackingOf(SpecOf(4, 8, 16, Dtype::kI8)));
  halves.transpose_rhs = true;
  EXPECT_NE(PackingOf(floats), PackingOf(halves));
}

TEST(MatmulTest, LargePackedWeightsTakeHardlyMoreMemoryThanPlainOnes) {
  MatmulKernel kernel({.threads = 1});
  for (const auto& [lhs_dtype, dtype] :
       {std::pair(Dtype::kF32, Dtype::kF32), std::pair(Dtype::kBF16, Dtype::kBF16),
        std::pair(Dtype::kI8, Dtype::kI8), std::pair(Dtype::kF16, Dtype::kF16),
        std::pair(Dtype::kBF16, Dtype::kI8)}) {
    MatmulSpec spec = SpecOf(4, 1000, 1000, lhs_dtype);
    spec.rhs_dtype = dtype;
    const std::vector<char> rhs = AnyBytes(spec.k * spec.n * BitsPerElement(dtype) / 8);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs));
    if (!packed->can_unpack()) continue;
    EXPECT_GE(packed->size_bytes(), kernel.LikelyPackedBytes(spec));
    EXPECT_LE(static_cast<double>(packed->size_bytes()), 1.1 * static_cast<double>(rhs.size()))
        << DtypeName(dtype);
  }
}

// The columns of a panel are padded, which the budget must know before weights are packed.
TEST(MatmulTest, TheMemoryOfNarrowWeightsThatKeepTheirTypeIsKnownBeforeTheyArePacked) {
  MatmulKernel kernel({.threads = 1});
  for (const int64_t n : {1, 15, 16, 17, 70}) {
    for (const Dtype dtype : {Dtype::kI8, Dtype::kF16}) {
      MatmulSpec spec = SpecOf(4, n, 300, dtype == Dtype::kI8 ? Dtype::kF32 : dtype);
      spec.rhs_dtype = dtype;
      const std::vector<char> rhs = AnyBytes(spec.k * n * BitsPerElement(dtype) / 8);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs));
      EXPECT_EQ(packed->size_bytes(), kernel.LikelyPackedBytes(spec)) << n << DtypeName(dtype);
    }
  }
}

TEST(MatmulTest, ConvertedWeightsAreNotUnpacked) {
  MatmulKernel kernel({.threads = 1, .converts_all = true});
  const Matrix rhs(Dtype::kBF16, 64 * 64, 2), floats(Dtype::kF32, 64 * 64, 2);
  EXPECT_FALSE((*kernel.Pack(SpecOf(4, 64, 64, Dtype::kBF16), rhs.bytes))->can_unpack());
  EXPECT_TRUE((*kernel.Pack(SpecOf(4, 64, 64), floats.bytes))->can_unpack());
}

TEST(MatmulTest, ARowHasTheSameBitsForAnyNumberOfRowsWhereTheKernelSaysSo) {
  MatmulKernel kernel({.threads = 2});
  MatmulKernel converting({.threads = 2, .converts_all = true});
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  int compared = 0;
  for (int round = 0; round < 48; ++round) {
    const Dtype dtype = round % 2 == 0 ? Dtype::kF32 : Dtype::kBF16;
    MatmulKernel& used = round % 5 == 0 ? converting : kernel;
    if (!used.KeepsBitsOfRows(dtype)) continue;
    ++compared;
    const auto extent = [&](int64_t most) { return 1 + static_cast<int64_t>(random()) % most; };
    const MatmulSpec whole = {.m = extent(round % 5 == 0   ? 200
                                          : round % 3 == 0 ? 16
                                                           : 40),
                              .n = round % 7 == 0 ? 1 : extent(100),
                              .k = extent(round % 8 < 2 ? 3000 : 200),
                              .lhs_dtype = dtype,
                              .rhs_dtype = dtype,
                              .bias_dtype = dtype,
                              .out_dtype = round % 3 == 0 ? Dtype::kF32 : dtype,
                              .transpose_rhs = round % 8 < 4,
                              .has_bias = round % 6 == 0,
                              .activation = round % 9 == 0 ? Activation::kGelu : Activation::kNone};
    SCOPED_TRACE(StrCat("m=", whole.m, " n=", whole.n, " k=", whole.k, " ", DtypeName(dtype),
                        " transpose_rhs ", whole.transpose_rhs));
    // Sums of these elements depend on the order of additions.
    const auto fill = [&](Matrix matrix, int64_t elements) {
      for (int64_t i = 0; i < elements; ++i) matrix.Set(i, static_cast<double>(normal(random)));
      return matrix;
    };
    const Matrix lhs = fill(Matrix(dtype, whole.m * whole.k, 1), whole.m * whole.k);
    const Matrix rhs = fill(Matrix(dtype, whole.k * whole.n, 2), whole.k * whole.n);
    const int64_t bias_elements = whole.has_bias ? whole.n : 0;
    const Matrix bias = fill(Matrix(dtype, bias_elements, 3), bias_elements);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, used.Pack(whole, rhs.bytes));
    for (const PackedWeights* weights :
         {static_cast<const PackedWeights*>(nullptr), packed.get()}) {
      // Computes the product in parts of at most `most` rows.
      const auto run = [&](int64_t most) {
        Matrix out(whole.out_dtype, whole.m * whole.n, 4);
        for (int64_t row = 0; row < whole.m;) {
          MatmulSpec part = whole;
          part.m = std::min(whole.m - row, most == whole.m ? most : extent(most));
          const auto rows_of = [&](auto span, int64_t rows, int64_t columns, Dtype type) {
            const auto row_bytes = static_cast<size_t>(columns * BitsPerElement(type) / 8);
            return span.subspan(static_cast<size_t>(row) * row_bytes,
                                static_cast<size_t>(rows) * row_bytes);
          };
          EXPECT_THAT(
              used.Run(part,
                       {.lhs = rows_of(absl::MakeConstSpan(lhs.bytes), part.m, whole.k, dtype),
                        .rhs = rhs.bytes,
                        .bias = bias.bytes,
                        .out = rows_of(absl::MakeSpan(out.bytes), part.m, whole.n, whole.out_dtype),
                        .packed = weights,
                        .scales = {},
                        .rows_of_whole = whole.m}),
              IsOk());
          row += part.m;
        }
        return out.bytes;
      };
      const std::vector<char> at_once = run(whole.m);
      ASSERT_TRUE(run(20) == at_once) << (weights == nullptr ? "plain" : "packed");
    }
  }
  if (compared == 0) GTEST_SKIP() << "this CPU's kernels give other bits to other numbers of rows";
}

TEST(MatmulTest, AnElementHasTheSameBitsForAnyRowsAndColumnsWhereTheKernelSaysSo) {
  MatmulKernel kernel({.threads = 2});
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  int compared = 0;
  for (int round = 0; round < 24; ++round) {
    const Dtype dtype = round % 2 == 0 ? Dtype::kF32 : Dtype::kBF16;
    if (!kernel.KeepsBitsOfParts(dtype)) continue;
    ++compared;
    const auto extent = [&](int64_t most) { return 1 + static_cast<int64_t>(random()) % most; };
    const MatmulSpec whole = {.m = extent(40),
                              .n = extent(200),
                              .k = extent(round % 4 == 0 ? 2000 : 200),
                              .lhs_dtype = dtype,
                              .rhs_dtype = dtype,
                              .out_dtype = round % 3 == 0 ? Dtype::kF32 : dtype,
                              .transpose_lhs = round % 6 < 3,
                              .transpose_rhs = true};
    SCOPED_TRACE(StrCat("m=", whole.m, " n=", whole.n, " k=", whole.k, " ", DtypeName(dtype),
                        " transpose_lhs ", whole.transpose_lhs));
    const auto fill = [&](Matrix matrix, int64_t elements) {
      for (int64_t i = 0; i < elements; ++i) matrix.Set(i, static_cast<double>(normal(random)));
      return matrix;
    };
    const Matrix lhs = fill(Matrix(dtype, whole.m * whole.k, 1), whole.m * whole.k);
    const Matrix rhs = fill(Matrix(dtype, whole.k * whole.n, 2), whole.k * whole.n);
    const auto run = [&](const MatmulSpec& spec, absl::Span<const char> columns) {
      Matrix out(spec.out_dtype, spec.m * spec.n, 3);
      EXPECT_THAT(
          kernel.Run(
              spec,
              {.lhs = lhs.bytes, .rhs = columns, .bias = {}, .out = absl::MakeSpan(out.bytes)}),
          IsOk());
      return out.bytes;
    };
    const std::vector<char> at_once = run(whole, rhs.bytes);
    // The columns of a transposed right operand follow one another.
    MatmulSpec part = whole;
    const int64_t first = extent(whole.n) - 1;
    part.n = extent(whole.n - first);
    const auto column_bytes = static_cast<size_t>(whole.k * BitsPerElement(dtype) / 8);
    const std::vector<char> columns = run(
        part, absl::MakeConstSpan(rhs.bytes).subspan(static_cast<size_t>(first) * column_bytes,
                                                     static_cast<size_t>(part.n) * column_bytes));
    const auto element_bytes = static_cast<size_t>(BitsPerElement(whole.out_dtype) / 8);
    const size_t part_bytes = static_cast<size_t>(part.n) * element_bytes;
    for (int64_t row = 0; row < whole.m; ++row) {
      const char* const expected =
          at_once.data() + static_cast<size_t>(row * whole.n + first) * element_bytes;
      ASSERT_EQ(
          std::memcmp(columns.data() + static_cast<size_t>(row) * part_bytes, expected, part_bytes),
          0)
          << "row " << row << ", columns from " << first << " on";
    }
  }
  if (compared == 0) GTEST_SKIP() << "this CPU's kernels give other bits to other sizes";
}

TEST(MatmulTest, OperandsAreConvertedBlockByBlockWithinTheBudget) {
  // Whole, the operands take a megabyte as F32.
  MemoryBudget budget(256 << 10);
  MatmulKernel kernel({.threads = 1,
                       .flops_per_second = 1e7,
                       .pool = BufferPool::Create(&budget, 0),
                       .converts_all = true});
  MatmulSpec quantised = SpecOf(300, 400, 130, Dtype::kBF16);
  quantised.rhs_dtype = Dtype::kI8;
  quantised.has_scales = true;
  ExpectRight(kernel, quantised);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kI8}) {
    MatmulSpec spec = SpecOf(300, 400, 130, dtype);
    spec.out_dtype = Dtype::kBF16;
    spec.has_bias = true;
    if (dtype == Dtype::kBF16) spec.bias_dtype = Dtype::kBF16;
    ExpectRight(kernel, spec);
    spec.transpose_lhs = spec.transpose_rhs = true;
    ExpectRight(kernel, spec);
    spec.out_dtype = Dtype::kF32;
    ExpectRight(kernel, spec);
    const Matrix rhs(dtype, spec.k * spec.n, 2);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs.bytes));
    EXPECT_GE(packed->size_bytes(), kernel.LikelyPackedBytes(spec));
    EXPECT_GE(kernel.LikelyPackedBytes(spec), spec.k * spec.n * 4);
  }
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(MatmulTest, ConvertedOperandsThatFindNoMemoryAreRefusedAndAnAbortIsNoticed) {
  MemoryBudget budget(4 << 10);
  MatmulKernel kernel({.threads = 1,
                       .flops_per_second = 1e7,
                       .pool = BufferPool::Create(&budget, 0),
                       .converts_all = true});
  const MatmulSpec spec = SpecOf(300, 400, 130, Dtype::kBF16);
  const Matrix lhs(Dtype::kBF16, spec.m * spec.k, 1), rhs(Dtype::kBF16, spec.k * spec.n, 2);
  Matrix out(spec.out_dtype, spec.m * spec.n, 4);
  const MatmulOperands operands = {lhs.bytes, rhs.bytes, {}, absl::MakeSpan(out.bytes)};
  EXPECT_THAT(kernel.Run(spec, operands), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(kernel.Pack(spec, rhs.bytes), StatusIs(absl::StatusCode::kResourceExhausted));
  MatmulKernel other({.threads = 1, .flops_per_second = 1e7, .converts_all = true});
  int asked = 0;
  EXPECT_THAT(other.Run(spec, operands,
                        [&asked]() -> absl::Status {
                          return ++asked < 3 ? absl::OkStatus() : absl::AbortedError("enough");
                        }),
              StatusIs(absl::StatusCode::kAborted));
}

TEST(MatmulTest, PackingsOfOneShapeDoNotPushOneAnotherOut) {
  MatmulKernel kernel({.threads = 1});
  const int64_t m = 16, n = 256, k = 256;
  const Matrix lhs(Dtype::kF32, m * k, 1), rhs(Dtype::kF32, k * n, 2);
  Matrix out(Dtype::kF32, m * n, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto narrow, kernel.Pack(SpecOf(1, n, k), rhs.bytes));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto wide, kernel.Pack(SpecOf(512, n, k), rhs.bytes));
  for (int round = 0; round < 4; ++round) {
    for (const PackedWeights* packed : {narrow.get(), wide.get()}) {
      EXPECT_THAT(
          kernel.Run(SpecOf(m, n, k), {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed}),
          IsOk());
    }
  }
  EXPECT_LE(kernel.compilations(), 2);
}

TEST(MatmulTest, AConvertedPanelAndAPanelOfAWiderOperandDoNotServeEachOther) {
  // Panels of 64 columns, each with all rows: one lies by itself, the other within its operand.
  for (const bool converts_first : {false, true}) {
    SCOPED_TRACE(converts_first);
    MatmulKernel kernel({.threads = 1, .flops_per_second = 1e7, .converts_all = true});
    for (const bool converts : {converts_first, !converts_first}) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectRight(kernel, SpecOf(32, 160, 64, converts ? Dtype::kBF16 : Dtype::kF32)));
    }
  }
}

TEST(MatmulTest, PackingAndASkinnyProductGoInBlocksThatAnAbortEnds) {
  // A tenth of a second reads 64 KiB here: the weights are 16 times that.
  MatmulKernel kernel({.threads = 1, .bytes_per_second = 10.0 * (64 << 10)});
  const int64_t n = 2048, k = 128;
  const Matrix lhs(Dtype::kF32, k, 1), rhs(Dtype::kF32, k * n, 2);
  Matrix out(Dtype::kF32, n, 3);
  int asked = 0;
  const auto third_time = [&asked] {
    return ++asked == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  };
  EXPECT_THAT(kernel.Pack(SpecOf(1, n, k), rhs.bytes, third_time).status(),
              StatusIs(absl::StatusCode::kCancelled));
  asked = 0;
  EXPECT_THAT(kernel.Run(SpecOf(1, n, k), {lhs.bytes, rhs.bytes, {}, absl::MakeSpan(out.bytes)},
                         third_time),
              StatusIs(absl::StatusCode::kCancelled));
  asked = 100;
  EXPECT_THAT(kernel.Run(SpecOf(1, n, k), {lhs.bytes, rhs.bytes, {}, absl::MakeSpan(out.bytes)},
                         third_time),
              IsOk());
  EXPECT_EQ(asked, 100 + 15) << "between 16 blocks";
}

TEST(MatmulTest, AStreamedProductGoesInBlocksThatAnAbortEnds) {
  MatmulKernel kernel({.threads = 1, .bytes_per_second = 10.0 * (64 << 10)});
  MatmulSpec spec = SpecOf(1, 2048, 512);
  spec.rhs_dtype = Dtype::kI8;
  const Matrix lhs(Dtype::kF32, spec.k, 1), rhs(Dtype::kI8, spec.k * spec.n, 2);
  Matrix out(Dtype::kF32, spec.n, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs.bytes));
  int asked = 0;
  EXPECT_THAT(kernel.Run(spec, {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed.get()},
                         [&asked] {
                           return ++asked == 3 ? absl::CancelledError("enough") : absl::OkStatus();
                         }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(kernel.compilations(), 0);
}

TEST(MatmulTest, StreamedProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  MatmulSpec spec = SpecOf(5, 300, 700, Dtype::kF16);
  const Matrix lhs(spec.lhs_dtype, spec.m * spec.k, 1), rhs(spec.rhs_dtype, spec.k * spec.n, 2);
  std::vector<char> first;
  for (const int threads : {1, 2, 5}) {
    MatmulKernel kernel({.threads = threads});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(spec, rhs.bytes));
    Matrix out(spec.out_dtype, spec.m * spec.n, 3);
    ASSERT_THAT(kernel.Run(spec, {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed.get()}),
                IsOk());
    if (first.empty()) first = out.bytes;
    EXPECT_EQ(out.bytes, first);
  }
  EXPECT_FALSE(MatmulKernel({}).KeepsBitsOfRows(Dtype::kF16));
}

TEST(MatmulTest, KeepsCompiledKernelsUpToABound) {
  MatmulKernel kernel({.cache_capacity = 2});
  const auto run = [&kernel](int64_t m) {
    const Matrix lhs(Dtype::kF32, m * 3, 1), rhs(Dtype::kF32, 6, 2);
    Matrix out(Dtype::kF32, m * 2, 3);
    EXPECT_THAT(kernel.Run(SpecOf(m, 2, 3), {lhs.bytes, rhs.bytes, {}, absl::MakeSpan(out.bytes)}),
                IsOk());
  };
  for (const int64_t m : {1, 2, 1, 2}) run(m);
  EXPECT_EQ(kernel.compilations(), 2);
  run(3);  // pushes out 1
  run(2);
  EXPECT_EQ(kernel.compilations(), 3);
  run(1);
  EXPECT_EQ(kernel.compilations(), 4);
  EXPECT_EQ(kernel.cached_kernels(), 2u);
}

// The products of a decoder's layer for one token, of one sequence and of eight.
TEST(MatmulTest, DecodingCompilesNothingAfterItsFirstToken) {
  for (const auto& [lhs_dtype, dtype] :
       {std::pair(Dtype::kF32, Dtype::kF32), std::pair(Dtype::kBF16, Dtype::kBF16),
        std::pair(Dtype::kF16, Dtype::kF16), std::pair(Dtype::kBF16, Dtype::kI8)}) {
    for (const int64_t batch : {1, 8}) {
      MatmulKernel kernel({.threads = 1});
      int64_t compiled = 0;
      std::vector<std::shared_ptr<const PackedWeights>> packed;
      for (int token = 0; token < 64; ++token) {
        size_t number = 0;
        for (const auto& [n, k] : {std::pair(96, 48), std::pair(48, 48), std::pair(130, 48),
                                   std::pair(48, 130), std::pair(200, 48)}) {
          MatmulSpec spec = SpecOf(batch, n, k, lhs_dtype);
          spec.rhs_dtype = dtype;
          const Matrix lhs(lhs_dtype, batch * k, static_cast<uint32_t>(token));
          if (token == 0) {
            const Matrix rhs(dtype, k * n, 2);
            SHARDMESH_ASSERT_OK_AND_ASSIGN(auto weights, kernel.Pack(spec, rhs.bytes));
            packed.push_back(std::move(weights));
          }
          Matrix out(spec.out_dtype, batch * n, 3);
          ASSERT_THAT(
              kernel.Run(spec,
                         {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed[number++].get()}),
              IsOk());
        }
        if (token == 0) compiled = kernel.compilations();
      }
      EXPECT_EQ(kernel.compilations(), compiled) << DtypeName(dtype) << ", batch " << batch;
    }
  }
}

TEST(MatmulTest, RunsOnSeveralThreadsAtOnce) {
  MatmulKernel kernel({.threads = 1});
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&kernel, thread] {
      for (int64_t m = 1; m < 12; ++m) ExpectRight(kernel, SpecOf(m + thread, 24, 40));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MatmulTest, RefusesWhatDoesNotFit) {
  MatmulKernel kernel({});
  std::vector<char> bytes(64);
  const auto run = [&](const MatmulSpec& spec, size_t lhs, size_t rhs, size_t out) {
    return kernel.Run(spec, {absl::MakeConstSpan(bytes).first(lhs),
                             absl::MakeConstSpan(bytes).first(rhs),
                             {},
                             absl::MakeSpan(bytes).first(out)});
  };
  const auto kShape = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch);
  const auto kType = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype);
  EXPECT_THAT(run(SpecOf(2, 2, 2), 12, 16, 16), kShape);
  EXPECT_THAT(run(SpecOf(2, 2, 2), 16, 12, 16), kShape);
  EXPECT_THAT(run(SpecOf(2, 2, 2), 16, 16, 12), kShape);
  EXPECT_THAT(run(SpecOf(-1, 2, 2), 16, 16, 16), kShape);
  EXPECT_THAT(run(SpecOf(2, int64_t{1} << 62, 2), 16, 16, 16), kShape);
  EXPECT_THAT(run(SpecOf(2, 2, 2, Dtype::kF64, Dtype::kF64), 32, 32, 32), kType);
  EXPECT_THAT(run(SpecOf(2, 2, 2, Dtype::kF32, Dtype::kBF16), 16, 16, 8), kType);
  MatmulSpec i8_by_floats = SpecOf(2, 2, 2);
  i8_by_floats.lhs_dtype = Dtype::kI8;
  const absl::Status refused = run(i8_by_floats, 4, 16, 16);
  EXPECT_THAT(refused, kType);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("I8 and F32"));
  MatmulSpec scaled_floats = SpecOf(2, 2, 2);
  scaled_floats.has_scales = true;
  EXPECT_THAT(run(scaled_floats, 16, 16, 16), kType);
  MatmulSpec without_scales = SpecOf(2, 2, 2);
  without_scales.rhs_dtype = Dtype::kI8;
  without_scales.has_scales = true;
  EXPECT_THAT(run(without_scales, 16, 4, 16), kShape);

  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto packed, kernel.Pack(SpecOf(2, 2, 2), absl::MakeConstSpan(bytes).first(16)));
  EXPECT_THAT(kernel.Run(SpecOf(2, 2, 3), {absl::MakeConstSpan(bytes).first(24),
                                           {},
                                           {},
                                           absl::MakeSpan(bytes).first(16),
                                           packed.get()}),
              kShape);
}

// Weights of I8 are packed in one way for I8, and in another for floats.
TEST(MatmulTest, RefusesWeightsThatArePackedForAnotherLeftOperand) {
  MatmulKernel kernel({.threads = 1});
  for (const int64_t m : {int64_t{1}, int64_t{20}}) {
    MatmulSpec floats = SpecOf(m, 5, 7);
    floats.rhs_dtype = Dtype::kI8;
    MatmulSpec integers = SpecOf(m, 5, 7, Dtype::kI8);
    const Matrix rhs(Dtype::kI8, 5 * 7, 2);
    for (const auto& [packed_for, used_for] :
         {std::pair(&floats, &integers), std::pair(&integers, &floats)}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto packed, kernel.Pack(*packed_for, rhs.bytes));
      const Matrix lhs(used_for->lhs_dtype, m * 7, 1);
      Matrix out(Dtype::kF32, m * 5, 3);
      const absl::Status refused =
          kernel.Run(*used_for, {lhs.bytes, {}, {}, absl::MakeSpan(out.bytes), packed.get()});
      EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
      EXPECT_THAT(std::string(refused.message()), HasSubstr("for a left operand of "));
    }
  }
}

TEST(EpilogueTest, AppliesBiasAndActivationToReducedSums) {
  for (const Dtype out_dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const Activation activation : kActivations) {
      constexpr int64_t kRows = 3, kColumns = 1030;
      const Matrix in(Dtype::kF32, kRows * kColumns, 1), bias(Dtype::kBF16, kColumns, 2);
      Matrix out(out_dtype, kRows * kColumns, 3);
      ASSERT_THAT(ApplyEpilogue({.rows = kRows,
                                 .columns = kColumns,
                                 .bias_dtype = Dtype::kBF16,
                                 .out_dtype = out_dtype,
                                 .has_bias = true,
                                 .activation = activation},
                                in.bytes, bias.bytes, absl::MakeSpan(out.bytes)),
                  IsOk());
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        const double expected = Plain(activation, in.Get(i) + bias.Get(i % kColumns));
        ASSERT_NEAR(out.Get(i), expected,
                    1e-6 + (out_dtype == Dtype::kBF16 ? std::abs(expected) / 200 : 0));
      }
    }
  }
}

TEST(EpilogueTest, RefusesWhatDoesNotFit) {
  std::vector<char> bytes(16);
  EXPECT_THAT(ApplyEpilogue({.rows = 2, .columns = 3}, bytes, {}, absl::MakeSpan(bytes)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(ApplyEpilogue({.rows = 2, .columns = 2, .in_dtype = Dtype::kI32}, bytes, {},
                            absl::MakeSpan(bytes)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
}

}  // namespace
}  // namespace shardmesh::worker

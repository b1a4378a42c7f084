// Activations: how exact they are, and equal bits on all instruction sets.
#include "worker/kernel/activation_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

constexpr Activation kEachActivation[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                          Activation::kGeluTanh, Activation::kSilu};

constexpr float kInfiniteInput = std::numeric_limits<float>::infinity();

float FloatFrom(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }

// The activation of a finite number with at least the bits of F64 and some to spare.
long double ExactActivation(Activation activation, long double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0L));
    case Activation::kGeluTanh: {
      const long double u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
      return x / (1 + std::exp(-2 * u));
    }
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kNone:
      break;
  }
  return x;
}

// Numbers of every sign and exponent, zeros, and many of those for which activations bend.
std::vector<float> ActivationInputs() {
  std::vector<float> inputs = {0.0f, -0.0f, FloatFrom(1), FloatFrom(0x80000001), 3.4e38f, -3.4e38f};
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 26'449) {
    const float value = FloatFrom(static_cast<uint32_t>(bits));
    if (std::isfinite(value)) inputs.push_back(value);
  }
  for (float value = -16; value < 16; value += 0x1.2345p-12f) inputs.push_back(value);
  return inputs;
}

std::vector<float> Activated(Activation activation, std::vector<float> values) {
  ActivationLoop(activation)(nullptr, values.data(), values.size());
  return values;
}

TEST(ActivationLoopsTest, AreLessThan51HundredthsOfTheLastPlaceOff) {
  const std::vector<float> inputs = ActivationInputs();
  for (const Activation activation : kEachActivation) {
    const bool is_exact = activation == Activation::kNone || activation == Activation::kRelu;
    const std::vector<float> outputs = Activated(activation, inputs);
    long double largest = 0;
    float at = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const long double exact = ExactActivation(activation, inputs[i]);
      ASSERT_TRUE(std::isfinite(outputs[i])) << inputs[i];
      const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
      const long double off = std::fabs(outputs[i] - exact) / std::ldexp(1.0L, exponent - 23);
      if (off > largest) at = inputs[i];
      largest = std::max(largest, off);
    }
    EXPECT_LT(largest, is_exact ? 1e-9L : 0.51L)
        << "activation " << static_cast<int>(activation) << " of " << at;
  }
}

TEST(ActivationLoopsTest, SpecialNumbers) {
  OnEachInstructionSet([](const std::string&) {
    for (const Activation activation : kEachActivation) {
      // So many that some are in a whole vector, and some are left over.
      for (const size_t count : {1u, 5u, 67u}) {
        const auto of = [&](float value) {
          const std::vector<float> out = Activated(activation, std::vector<float>(count, value));
          for (const float each : out) EXPECT_EQ(FloatBits(each), FloatBits(out[0]));
          return out[0];
        };
        EXPECT_EQ(FloatBits(of(0.0f)), FloatBits(0.0f));
        EXPECT_EQ(FloatBits(of(-0.0f)), FloatBits(-0.0f));
        EXPECT_EQ(of(kInfiniteInput), kInfiniteInput);
        EXPECT_EQ(FloatBits(of(FloatFrom(0x7FC01234))), 0x7FC01234u);
        EXPECT_EQ(FloatBits(of(FloatFrom(0xFFC01234))), 0xFFC01234u);
        if (activation == Activation::kNone) {
          EXPECT_EQ(of(-kInfiniteInput), -kInfiniteInput);
        } else {
          EXPECT_EQ(of(-kInfiniteInput), 0.0f);
          EXPECT_EQ(of(-3e38f), 0.0f);
        }
      }
    }
  });
}

TEST(ActivationLoopsTest, AllInstructionSetsGiveTheSameBits) {
  std::vector<float> inputs = ActivationInputs();
  inputs.insert(inputs.end(),
                {kInfiniteInput, -kInfiniteInput, FloatFrom(0x7FC01234), FloatFrom(0xFFC01234)});
  std::vector<std::vector<float>> first;
  OnEachInstructionSet([&](const std::string&) {
    for (size_t i = 0; i < std::size(kEachActivation); ++i) {
      std::vector<float> outputs = Activated(kEachActivation[i], inputs);
      if (first.size() <= i) {
        first.push_back(std::move(outputs));
        continue;
      }
      for (size_t j = 0; j < inputs.size(); ++j) {
        ASSERT_EQ(FloatBits(outputs[j]), FloatBits(first[i][j]))
            << "activation " << static_cast<int>(kEachActivation[i]) << " of " << inputs[j];
      }
    }
  });
  EXPECT_EQ(first.size(), std::size(kEachActivation));
}

TEST(ActivationLoopsTest, TheBiasIsAddedFirst) {
  OnEachInstructionSet([](const std::string&) {
    for (const Activation activation : kEachActivation) {
      const std::vector<float> inputs = ActivationInputs();
      std::vector<float> bias(inputs.rbegin(), inputs.rend());
      std::vector<float> sums(inputs.size());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = inputs[i] + bias[i];
      std::vector<float> values = inputs;
      ActivationLoop(activation)(bias.data(), values.data(), values.size());
      const std::vector<float> expected = Activated(activation, sums);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(FloatBits(values[i]), FloatBits(expected[i])) << inputs[i] << " + " << bias[i];
      }

      std::vector<float> nans(19, FloatFrom(0x7FC00001));
      ActivationLoop(activation)(std::vector<float>(19, FloatFrom(0xFFC00002)).data(), nans.data(),
                                 nans.size());
      for (const float nan : nans) EXPECT_EQ(FloatBits(nan), 0x7FC00001u);
    }
  });
}

}  // namespace
}  // namespace shardmesh::worker

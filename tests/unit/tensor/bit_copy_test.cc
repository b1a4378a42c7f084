// Copies of bits, against copies of one bit after the other, and by several threads.
#include "tensor/bit_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace shardmesh {
namespace {

int BitOf(const std::string& bytes, int64_t bit) {
  return bytes[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1;
}

void SetBit(std::string* bytes, int64_t bit, int value) {
  char& byte = (*bytes)[static_cast<size_t>(bit / 8)];
  byte = static_cast<char>((byte & ~(1 << (bit % 8))) | value << (bit % 8));
}

std::string RandomBytesOf(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(BitCopyTest, CopiesWhatACopyOfEachBitDoesAndNothingElse) {
  std::mt19937 random(1);
  for (int round = 0; round < 10'000; ++round) {
    const auto bits = static_cast<int64_t>(random() % (round % 4 == 0 ? 400 : 40));
    const auto from_bit = static_cast<int64_t>(random() % 20);
    const auto to_bit = static_cast<int64_t>(random() % 20);
    // No byte beyond the last bit exists, so that sanitizers see a read or a write behind it.
    const std::string from = RandomBytesOf(random, static_cast<size_t>((from_bit + bits + 7) / 8));
    std::string to = RandomBytesOf(random, static_cast<size_t>((to_bit + bits + 7) / 8));
    std::string expected = to;
    for (int64_t i = 0; i < bits; ++i) SetBit(&expected, to_bit + i, BitOf(from, from_bit + i));
    CopyBits(to.data(), to_bit, from.data(), from_bit, bits);
    ASSERT_EQ(to, expected) << bits << " bits from " << from_bit << " to " << to_bit;
  }
}

TEST(BitCopyTest, ClearsBitsOfOneByte) {
  for (int64_t begin = 0; begin < 8; ++begin) {
    for (int64_t bits = 0; begin + bits <= 8; ++bits) {
      std::string bytes(3, '\xff');
      std::string expected = bytes;
      for (int64_t i = 0; i < bits; ++i) SetBit(&expected, 8 + begin + i, 0);
      ClearBits(bytes.data(), 8 + begin, bits);
      ASSERT_EQ(bytes, expected) << bits << " bits from " << begin;
    }
  }
}

TEST(BitCopyTest, ThreadsWriteNeighbouringBitsAtTheSameTime) {
  constexpr int64_t kThreads = 4;
  constexpr int64_t kBits = 3;  // of each run: all threads write bits of the same bytes
  constexpr int64_t kRuns = 2'000;
  std::mt19937 random(2);
  const std::string from = RandomBytesOf(random, kThreads * kBits * kRuns / 8);
  std::string to = RandomBytesOf(random, from.size());
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t run = 0; run < kRuns; ++run) {
        const int64_t bit = (run * kThreads + thread) * kBits;
        CopyBits(to.data(), bit, from.data(), bit, kBits);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace shardmesh

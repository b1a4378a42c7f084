// CopyBytes for sizes and places around what it does differently.
#include "tensor/copy.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace shardmesh {
namespace {

TEST(CopyTest, CopiesEveryByteAndNoOtherWhateverTheAlignment) {
  std::mt19937 random(3);
  std::string source(kStreamedCopyBytes + 512, '\0');
  for (char& byte : source) byte = static_cast<char>(random());
  for (const size_t size_bytes :
       {size_t{0}, size_t{1}, size_t{4097}, kStreamedCopyBytes - 1, kStreamedCopyBytes,
        kStreamedCopyBytes + 1, kStreamedCopyBytes + 255}) {
    for (const size_t from : {0, 1, 17, 64}) {
      for (const size_t to : {0, 5, 48, 63}) {
        std::string target(size_bytes + 128, 'x');
        CopyBytes(target.data() + to, source.data() + from, size_bytes);
        const std::string expected =
            std::string(to, 'x') + source.substr(from, size_bytes) + std::string(128 - to, 'x');
        EXPECT_TRUE(target == expected) << size_bytes << " from " << from << " to " << to;
      }
    }
  }
  for (const size_t size_bytes : {0, 1, 63, 64, 65, 200}) {
    std::string target(size_bytes + 3, 'x');
    CopyBytesStreamed(target.data() + 1, source.data(), size_bytes);
    EXPECT_EQ(target, "x" + source.substr(0, size_bytes) + "xx");
  }
  CopyBytes(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace shardmesh

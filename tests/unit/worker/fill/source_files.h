// Files that tests let workers read, and the bytes that a tile of a tensor must have.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_FILL_SOURCE_FILES_H_
#define SHARDMESH_TESTS_UNIT_WORKER_FILL_SOURCE_FILES_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "process/roots/read_root.h"
#include "sharding/digest.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"

namespace shardmesh::test {

// A KeepGoing of work that nobody ends.
inline absl::Status GoOn() { return absl::OkStatus(); }

// A folder of files, with a read root above it.
class SourceFolder {
 public:
  SourceFolder() {
    path_ = ::testing::TempDir() + "sources_XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    roots_ = *ReadRoots::Open({path_});
  }
  ~SourceFolder() { std::filesystem::remove_all(path_); }
  SourceFolder(const SourceFolder&) = delete;
  SourceFolder& operator=(const SourceFolder&) = delete;

  const std::string& path() const { return path_; }
  const ReadRoots& roots() const { return roots_; }

  // Writes a file, and returns it as a client would find it.
  SourceFile Write(const std::string& name, std::string_view bytes, int64_t head_bytes = 0) {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return Identify(path, bytes.substr(0, static_cast<size_t>(head_bytes)));
  }
  static SourceFile Identify(const std::string& path, std::string_view head) {
    const absl::StatusOr<InputFile> file = OpenInputFile(path);
    EXPECT_TRUE(file.ok());
    return *IdentifyFile(*file, path, head);
  }

 private:
  std::string path_;
  ReadRoots roots_;
};

// Random bytes.
template <typename Random>
std::string RandomText(int64_t size_bytes, Random& random) {
  std::string bytes(static_cast<size_t>(size_bytes), '\0');
  std::independent_bits_engine<std::mt19937, 8, uint32_t> engine(random());
  for (char& byte : bytes) byte = static_cast<char>(engine());
  return bytes;
}

// The bytes of a tile, found bit by bit.
inline std::string PlainTile(Dtype dtype, const Shape& shape, const Tile& tile,
                             std::string_view tensor) {
  const int64_t bits = BitsPerElement(dtype);
  std::string out(static_cast<size_t>((tile.element_count() * bits + 7) / 8), '\0');
  const Shape tile_shape = tile.shape();
  for (int64_t i = 0; i < tile.element_count(); ++i) {
    int64_t rest = i;
    int64_t index = 0;
    int64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      index += (tile.ranges[d].start + rest % tile_shape[d]) * stride;
      rest /= tile_shape[d];
      stride *= shape[d];
    }
    if (bits % 8 == 0) {
      out.replace(static_cast<size_t>(i * bits / 8), static_cast<size_t>(bits / 8), tensor,
                  static_cast<size_t>(index * bits / 8), static_cast<size_t>(bits / 8));
      continue;
    }
    for (int64_t b = 0; b < bits; ++b) {
      const int64_t from = index * bits + b;
      const int64_t to = i * bits + b;
      const int bit = tensor[static_cast<size_t>(from / 8)] >> (from % 8) & 1;
      out[static_cast<size_t>(to / 8)] =
          static_cast<char>(out[static_cast<size_t>(to / 8)] | bit << (to % 8));
    }
  }
  return out;
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_UNIT_WORKER_FILL_SOURCE_FILES_H_

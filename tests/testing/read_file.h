// All bytes of a file.
#pragma once

#include <fstream>
#include <string>

namespace shardmesh::test {

// Empty if it cannot be read. A block at a time: byte by byte takes minutes for a large file under
// the sanitizers.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  std::string block(size_t{1} << 16, '\0');
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    bytes.append(block, 0, static_cast<size_t>(file.gcount()));
  }
  return bytes;
}

}  // namespace shardmesh::test

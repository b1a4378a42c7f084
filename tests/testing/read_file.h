// Reads all bytes of a file.
#pragma once

#include <fstream>
#include <string>

namespace shardmesh::test {

// Returns the file's bytes; empty if the file cannot be read. Reads block by block: under the
// sanitizers, reading a large file byte by byte takes minutes.
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

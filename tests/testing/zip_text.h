// Writes zip files and .npy files for tests, with every fault that a reader should find.
#ifndef SHARDMESH_TESTS_TESTING_ZIP_TEXT_H_
#define SHARDMESH_TESTS_TESTING_ZIP_TEXT_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/checkpoint/zip_file.h"

namespace shardmesh::test {

// A member of a zip file that ZipText writes.
struct ZipTextMember {
  std::string name;
  std::string data = {};
  uint16_t method = 0;
  uint16_t flags = 0;
  std::optional<uint32_t> crc32 = std::nullopt;           // default: that of the data
  std::optional<uint64_t> claimed_bytes = std::nullopt;   // default: that of the data
  std::optional<uint64_t> claimed_offset = std::nullopt;  // default: where the header is
  std::string local_name = {};                            // default: name
  std::string local_extra = {};                           // as padding that aligns the data
};

struct ZipTextOptions {
  // Writes sizes and offsets to zip64 fields, and the record of the directory.
  bool zip64 = false;
  std::string comment = {};
};

inline void AppendNumber(std::string* text, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) text->push_back(static_cast<char>(number >> (8 * i)));
}

inline std::string ZipText(const std::vector<ZipTextMember>& members,
                           const ZipTextOptions& options = {}) {
  std::string text;
  std::string directory;
  for (const ZipTextMember& member : members) {
    const uint64_t offset = member.claimed_offset.value_or(text.size());
    const uint64_t size = member.claimed_bytes.value_or(member.data.size());
    const uint32_t crc = member.crc32.value_or(Crc32(member.data));
    const std::string& local_name = member.local_name.empty() ? member.name : member.local_name;
    std::string extra;
    if (options.zip64) {
      AppendNumber(&extra, 0x7075, 2);  // another field first, which is skipped
      AppendNumber(&extra, 3, 2);
      extra += "abc";
      AppendNumber(&extra, 1, 2);
      AppendNumber(&extra, 24, 2);
      AppendNumber(&extra, size, 8);
      AppendNumber(&extra, size, 8);
      AppendNumber(&extra, offset, 8);
    }
    const auto numbers = [&](std::string* out) {
      AppendNumber(out, member.flags, 2);
      AppendNumber(out, member.method, 2);
      AppendNumber(out, 0, 4);  // time
      AppendNumber(out, crc, 4);
      AppendNumber(out, options.zip64 ? 0xFFFFFFFF : size, 4);
      AppendNumber(out, options.zip64 ? 0xFFFFFFFF : size, 4);
    };
    AppendNumber(&text, 0x04034b50, 4);
    AppendNumber(&text, 45, 2);
    numbers(&text);
    AppendNumber(&text, local_name.size(), 2);
    AppendNumber(&text, member.local_extra.size(), 2);
    text += local_name + member.local_extra + member.data;

    AppendNumber(&directory, 0x02014b50, 4);
    AppendNumber(&directory, 45, 2);
    AppendNumber(&directory, 45, 2);
    numbers(&directory);
    AppendNumber(&directory, member.name.size(), 2);
    AppendNumber(&directory, extra.size(), 2);
    AppendNumber(&directory, 0, 2);  // comment
    AppendNumber(&directory, 0, 2);  // disk
    AppendNumber(&directory, 0, 6);  // attributes
    AppendNumber(&directory, options.zip64 ? 0xFFFFFFFF : offset, 4);
    directory += member.name + extra;
  }
  const uint64_t start = text.size();
  text += directory;
  if (options.zip64) {
    const uint64_t record = text.size();
    AppendNumber(&text, 0x06064b50, 4);
    AppendNumber(&text, 44, 8);
    AppendNumber(&text, 45, 2);
    AppendNumber(&text, 45, 2);
    AppendNumber(&text, 0, 8);  // disks
    AppendNumber(&text, members.size(), 8);
    AppendNumber(&text, members.size(), 8);
    AppendNumber(&text, directory.size(), 8);
    AppendNumber(&text, start, 8);
    AppendNumber(&text, 0x07064b50, 4);
    AppendNumber(&text, 0, 4);
    AppendNumber(&text, record, 8);
    AppendNumber(&text, 1, 4);
  }
  AppendNumber(&text, 0x06054b50, 4);
  AppendNumber(&text, 0, 4);
  AppendNumber(&text, options.zip64 ? 0xFFFF : members.size(), 2);
  AppendNumber(&text, options.zip64 ? 0xFFFF : members.size(), 2);
  AppendNumber(&text, options.zip64 ? 0xFFFFFFFF : directory.size(), 4);
  AppendNumber(&text, options.zip64 ? 0xFFFFFFFF : start, 4);
  AppendNumber(&text, options.comment.size(), 2);
  return text + options.comment;
}

// Returns the text of a .npy file with this NumPy type, order and shape, such as "(2, 3)".
inline std::string NpyText(std::string_view type, std::string_view shape, std::string_view data,
                           bool fortran_order = false) {
  std::string header = "{'descr': '" + std::string(type) +
                       "', 'fortran_order': " + (fortran_order ? "True" : "False") +
                       ", 'shape': " + std::string(shape) + ", }\n";
  std::string text = "\x93NUMPY";
  text.append({'\x01', '\x00', static_cast<char>(header.size() & 0xFF),
               static_cast<char>(header.size() >> 8)});
  return text + header + std::string(data);
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_ZIP_TEXT_H_

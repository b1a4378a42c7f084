// Reads the directory at the end of a zip file (APPNOTE.TXT 6.3).
#include "tensor/checkpoint/zip_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr int64_t kLocalHeaderBytes = 30;
constexpr int64_t kDirectoryEntryBytes = 46;
constexpr int64_t kDirectoryEndBytes = 22;
constexpr int64_t kZip64EndBytes = 56;
constexpr int64_t kZip64LocatorBytes = 20;
constexpr int64_t kMaxCommentBytes = 65'535;
// Values of 16 and 32 bits that mean "see the zip64 field".
constexpr uint64_t kSeeZip64Short = 0xFFFF;
constexpr uint64_t kSeeZip64 = 0xFFFFFFFF;
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

std::string QuotedMember(std::string_view name) {
  return StrCat("\"", absl::Utf8SafeCHexEscape(ToAbsl(name.substr(0, 200))), "\"");
}

// The bytes of a file, with checked offsets.
class ZipBytes {
 public:
  ZipBytes(std::string_view source, absl::Span<const char> file) : source_(source), file_(file) {}

  int64_t size() const { return static_cast<int64_t>(file_.size()); }

  // Whether [offset, offset + count) is within the file.
  bool Holds(uint64_t offset, uint64_t count) const {
    return offset <= file_.size() && count <= file_.size() - offset;
  }

  // Returns the little-endian number at `offset`, which must be within the file.
  template <typename Number>
  Number At(int64_t offset) const {
    Number number;
    std::memcpy(&number, file_.data() + offset, sizeof(number));
    return number;
  }

  std::string_view Text(int64_t offset, int64_t count) const {
    return {file_.data() + offset, static_cast<size_t>(count)};
  }

  absl::Status Bad(std::string_view what) const {
    return InvalidArgument(Reason::kBadFile, StrCat(source_, ": ", what), {{fact::kFile, source_}});
  }

 private:
  const std::string_view source_;
  const absl::Span<const char> file_;
};

// Where the directory lies.
struct Directory {
  int64_t offset = 0;
  int64_t end = 0;
  int64_t members = 0;
};

// Returns the offset of the record that ends the file.
absl::StatusOr<int64_t> FindEnd(const ZipBytes& file) {
  const int64_t lowest = std::max<int64_t>(0, file.size() - kDirectoryEndBytes - kMaxCommentBytes);
  for (int64_t at = file.size() - kDirectoryEndBytes; at >= lowest; --at) {
    if (file.At<uint32_t>(at) == kDirectoryEnd &&
        at + kDirectoryEndBytes + file.At<uint16_t>(at + 20) == file.size()) {
      return at;
    }
  }
  return file.Bad(
      "the zip file has no directory at its end: the file is cut off, or it is no zip file");
}

absl::StatusOr<Directory> FindDirectory(const ZipBytes& file) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t end, FindEnd(file));
  uint64_t members = file.At<uint16_t>(end + 10);
  uint64_t size = file.At<uint32_t>(end + 12);
  uint64_t offset = file.At<uint32_t>(end + 16);
  int64_t directory_end = end;
  if (members == kSeeZip64Short || size == kSeeZip64 || offset == kSeeZip64) {
    const int64_t locator = end - kZip64LocatorBytes;
    if (locator < 0 || file.At<uint32_t>(locator) != kZip64Locator) {
      return file.Bad("the zip file lacks the record of zip64 sizes: it is damaged");
    }
    const uint64_t record = file.At<uint64_t>(locator + 8);
    if (record > static_cast<uint64_t>(locator) || !file.Holds(record, kZip64EndBytes) ||
        file.At<uint32_t>(static_cast<int64_t>(record)) != kZip64End) {
      return file.Bad("the zip file's record of zip64 sizes is not where the file says");
    }
    directory_end = static_cast<int64_t>(record);
    members = file.At<uint64_t>(directory_end + 32);
    size = file.At<uint64_t>(directory_end + 40);
    offset = file.At<uint64_t>(directory_end + 48);
  }
  if (!file.Holds(offset, size) || offset + size > static_cast<uint64_t>(directory_end)) {
    return file.Bad(StrCat("the zip file's directory of ", size, " bytes at ", offset,
                           " is not within the file: bytes are missing or were added in front"));
  }
  if (members > static_cast<uint64_t>(kMaxZipMembers) || members > size / kDirectoryEntryBytes) {
    return file.Bad(StrCat("the zip file claims ", members, " members in a directory of ", size,
                           " bytes; at most ", kMaxZipMembers, " are read"));
  }
  return Directory{static_cast<int64_t>(offset), static_cast<int64_t>(offset + size),
                   static_cast<int64_t>(members)};
}

// The numbers of a directory entry that may be in its zip64 field.
struct WideNumbers {
  uint64_t full_size = 0;
  uint64_t size = 0;
  uint64_t header_offset = 0;
};

// Replaces numbers that do not fit 32 bits by those of the zip64 field in [begin, end), if it has
// them. Returns false if the fields are malformed or a number is missing.
bool ReadZip64Field(const ZipBytes& file, int64_t begin, int64_t end, WideNumbers* numbers) {
  const bool wanted = numbers->full_size == kSeeZip64 || numbers->size == kSeeZip64 ||
                      numbers->header_offset == kSeeZip64;
  while (wanted && end - begin >= 4) {
    const uint16_t kind = file.At<uint16_t>(begin);
    const int64_t field_end = begin + 4 + file.At<uint16_t>(begin + 2);
    begin += 4;
    if (field_end > end) return false;
    if (kind != kZip64Field) {
      begin = field_end;
      continue;
    }
    for (uint64_t* number : {&numbers->full_size, &numbers->size, &numbers->header_offset}) {
      if (*number != kSeeZip64) continue;
      if (field_end - begin < 8) return false;
      *number = file.At<uint64_t>(begin);
      begin += 8;
    }
    return true;
  }
  return !wanted;
}

// Parses the directory entry at `at`, and the member's own header.
absl::StatusOr<ZipMember> ReadMember(const ZipBytes& file, int64_t at, int64_t entry_end) {
  ZipMember member;
  const int64_t name_bytes = file.At<uint16_t>(at + 28);
  const int64_t extra_bytes = file.At<uint16_t>(at + 30);
  const int64_t extra = at + kDirectoryEntryBytes + name_bytes;
  member.name = std::string(file.Text(at + kDirectoryEntryBytes, name_bytes));
  const std::string where = StrCat("member ", QuotedMember(member.name), " of the zip file ");
  const uint16_t method = file.At<uint16_t>(at + 10);
  if ((file.At<uint16_t>(at + 8) & kEncrypted) != 0) {
    return file.Bad(StrCat(where, "is encrypted; write the file without a password"));
  }
  if (method != kStored && method != kDeflated) {
    return file.Bad(StrCat(where, "is compressed by method ", method,
                           ", which is not read; write it uncompressed"));
  }
  member.is_deflated = method == kDeflated;
  member.crc32 = file.At<uint32_t>(at + 16);
  WideNumbers numbers{file.At<uint32_t>(at + 24), file.At<uint32_t>(at + 20),
                      file.At<uint32_t>(at + 42)};
  if (!ReadZip64Field(file, extra, std::min(extra + extra_bytes, entry_end), &numbers)) {
    return file.Bad(StrCat(where, "has no readable sizes: the directory is damaged"));
  }
  if (!member.is_deflated && numbers.size != numbers.full_size) {
    return file.Bad(StrCat(where, "is not compressed, but claims ", numbers.size, " bytes of ",
                           numbers.full_size));
  }
  if (!file.Holds(numbers.header_offset, kLocalHeaderBytes) ||
      file.At<uint32_t>(static_cast<int64_t>(numbers.header_offset)) != kLocalHeader) {
    return file.Bad(
        StrCat(where, "has no header at byte ", numbers.header_offset, ": the file is damaged"));
  }
  const int64_t header = static_cast<int64_t>(numbers.header_offset);
  const int64_t own_name_bytes = file.At<uint16_t>(header + 26);
  const uint64_t data =
      numbers.header_offset +
      static_cast<uint64_t>(kLocalHeaderBytes + own_name_bytes + file.At<uint16_t>(header + 28));
  if (!file.Holds(data, numbers.size)) {
    return file.Bad(StrCat(where, "has ", numbers.size, " bytes at ", data,
                           ", which are not within the ", file.size(), " bytes of the file"));
  }
  if (file.Text(header + kLocalHeaderBytes, own_name_bytes) != member.name) {
    return file.Bad(StrCat(where, "has another name in its own header: the file is damaged"));
  }
  member.offset_bytes = static_cast<int64_t>(data);
  member.size_bytes = static_cast<int64_t>(numbers.size);
  return member;
}

// Tables for eight bytes at a time: table[k][b] is the CRC of byte b followed by k zeros.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeCrcTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xFF];
    }
  }
  return tables;
}

constexpr std::array<std::array<uint32_t, 256>, 8> kCrcTables = MakeCrcTables();

}  // namespace

bool LooksLikeZip(absl::Span<const char> bytes) {
  if (bytes.size() < 4) return false;
  uint32_t magic = 0;
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  return magic == kLocalHeader || magic == kDirectoryEnd;
}

absl::StatusOr<std::vector<ZipMember>> ParseZip(std::string_view source,
                                                absl::Span<const char> bytes) {
  const ZipBytes file(source, bytes);
  SHARDMESH_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(file));
  std::vector<ZipMember> members;
  members.reserve(static_cast<size_t>(directory.members));
  absl::flat_hash_set<std::string> names;
  int64_t at = directory.offset;
  for (int64_t i = 0; i < directory.members; ++i) {
    if (directory.end - at < kDirectoryEntryBytes || file.At<uint32_t>(at) != kDirectoryEntry) {
      return file.Bad(StrCat("entry ", i, " of the zip file's directory is damaged"));
    }
    const int64_t entry_end = at + kDirectoryEntryBytes + file.At<uint16_t>(at + 28) +
                              file.At<uint16_t>(at + 30) + file.At<uint16_t>(at + 32);
    if (entry_end > directory.end) {
      return file.Bad(StrCat("entry ", i, " of the zip file's directory is cut off"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(ZipMember member, ReadMember(file, at, entry_end));
    if (!names.insert(member.name).second) {
      return file.Bad(StrCat("the zip file has two members named ", QuotedMember(member.name)));
    }
    members.push_back(std::move(member));
    at = entry_end;
  }
  std::vector<const ZipMember*> by_offset;
  by_offset.reserve(members.size());
  for (const ZipMember& member : members) by_offset.push_back(&member);
  std::sort(by_offset.begin(), by_offset.end(), [](const ZipMember* a, const ZipMember* b) {
    return a->offset_bytes < b->offset_bytes;
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const ZipMember& before = *by_offset[i - 1];
    if (before.offset_bytes + before.size_bytes > by_offset[i]->offset_bytes) {
      return file.Bad(StrCat("members ", QuotedMember(before.name), " and ",
                             QuotedMember(by_offset[i]->name), " of the zip file overlap"));
    }
  }
  return members;
}

uint32_t Crc32(absl::Span<const char> bytes) {
  uint32_t crc = 0xFFFFFFFF;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = kCrcTables[7][low & 0xFF] ^ kCrcTables[6][low >> 8 & 0xFF] ^
          kCrcTables[5][low >> 16 & 0xFF] ^ kCrcTables[4][low >> 24] ^ kCrcTables[3][high & 0xFF] ^
          kCrcTables[2][high >> 8 & 0xFF] ^ kCrcTables[1][high >> 16 & 0xFF] ^
          kCrcTables[0][high >> 24];
  }
  for (; left > 0; --left, ++at) {
    crc = crc >> 8 ^ kCrcTables[0][(crc ^ static_cast<unsigned char>(*at)) & 0xFF];
  }
  return ~crc;
}

}  // namespace shardmesh

// Zip directories: what is read, and every kind of damage.
#include "tensor/checkpoint/zip_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/zip_text.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::ZipText;
using ::shardmesh::test::ZipTextMember;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string DataOf(const std::string& file, const ZipMember& member) {
  return file.substr(static_cast<size_t>(member.offset_bytes),
                     static_cast<size_t>(member.size_bytes));
}

TEST(ZipFileTest, ChecksumIsThatOfZip) {
  EXPECT_EQ(Crc32(std::string("123456789")), 0xCBF43926);
  EXPECT_EQ(Crc32({}), 0u);
  // Of any length and alignment, against one bit at a time.
  std::string bytes;
  std::minstd_rand random(1);
  for (int i = 0; i < 100; ++i) bytes.push_back(static_cast<char>(random()));
  for (size_t begin = 0; begin < 9; ++begin) {
    uint32_t crc = ~0u;
    for (size_t end = begin; end < bytes.size(); ++end) {
      EXPECT_EQ(Crc32(absl::MakeConstSpan(bytes).subspan(begin, end - begin)), ~crc);
      crc ^= static_cast<unsigned char>(bytes[end]);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc % 2 != 0 ? 0xEDB88320u : 0u);
    }
  }
}

TEST(ZipFileTest, ReadsMembersWithAndWithoutZip64AndComment) {
  for (const bool zip64 : {false, true}) {
    for (const char* comment :
         {"", "a comment with PK\x05\x06 in it, and more than enough bytes"}) {
      const std::string file =
          ZipText({{.name = "a", .data = "12345"},
                   {.name = "empty", .data = ""},
                   {.name = "b/c", .data = std::string(70'000, 'x'), .local_extra = "padding"}},
                  {.zip64 = zip64, .comment = comment});
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<ZipMember> members, ParseZip("f", file));
      ASSERT_EQ(members.size(), 3u);
      EXPECT_EQ(members[0].name, "a");
      EXPECT_EQ(DataOf(file, members[0]), "12345");
      EXPECT_EQ(members[1].size_bytes, 0);
      EXPECT_EQ(members[2].name, "b/c");
      EXPECT_EQ(DataOf(file, members[2]), std::string(70'000, 'x'));
      EXPECT_EQ(members[2].crc32, Crc32(std::string(70'000, 'x')));
    }
  }
  EXPECT_THAT(*ParseZip("f", ZipText({})), IsEmpty());
  EXPECT_TRUE(LooksLikeZip(ZipText({})));
  EXPECT_TRUE(LooksLikeZip(ZipText({{.name = "a"}})));
  EXPECT_FALSE(LooksLikeZip(std::string("PK")));
  EXPECT_FALSE(LooksLikeZip(std::string(8, '\0')));
}

TEST(ZipFileTest, RefusesEveryFileThatIsCutOff) {
  for (const bool zip64 : {false, true}) {
    const std::string file =
        ZipText({{.name = "a", .data = "12345"}, {.name = "b", .data = "6"}}, {.zip64 = zip64});
    for (size_t size = 0; size < file.size(); ++size) {
      EXPECT_THAT(ParseZip("f", file.substr(0, size)), StatusIs(kInvalid, Reason::kBadFile))
          << size;
    }
  }
}

TEST(ZipFileTest, SaysWhatIsWrong) {
  const ZipTextMember plain{.name = "a", .data = "12345"};
  const struct {
    std::string file;
    const char* message;
  } cases[] = {
      {"no zip", "it is no zip file"},
      {ZipText({plain, plain}), "two members named \"a\""},
      {ZipText({{.name = "a", .data = "1", .flags = 1}}), "is encrypted"},
      {ZipText({{.name = "a", .data = "1", .method = 12}}), "compressed by method 12"},
      {ZipText({{.name = "a", .data = "1", .claimed_bytes = 9'000}}), "are not within the "},
      {ZipText({{.name = "a", .data = "1", .claimed_offset = 3}}), "has no header at byte 3"},
      {ZipText({{.name = "a", .data = "1", .claimed_offset = uint64_t{1} << 60}}, {.zip64 = true}),
       "has no header at byte 1152921504606846976"},
      {ZipText({{.name = "a", .data = "1", .claimed_bytes = ~uint64_t{0}}}, {.zip64 = true}),
       "are not within the "},
      {ZipText({{.name = "a", .data = "1", .local_name = "b"}}), "another name in its own header"},
      {ZipText({plain, {.name = "a2", .data = "x", .claimed_offset = 0, .local_name = "a2"}}),
       "another name"},
      {"xx" + ZipText({plain}), "directory is damaged"},
  };
  for (const auto& c : cases) {
    const auto members = ParseZip("f.npz", c.file);
    EXPECT_THAT(members, StatusIs(kInvalid, Reason::kBadFile)) << c.message;
    EXPECT_THAT(members.status().message(), HasSubstr(c.message));
    EXPECT_THAT(members.status().message(), HasSubstr("f.npz: "));
  }
}

TEST(ZipFileTest, RefusesMembersThatOverlap) {
  // The data of the first member contain a second member, with a header of its own.
  const std::string inner = ZipText({{.name = "b", .data = "1234"}});
  const std::string inner_header = inner.substr(0, 30 + 1 + 4);
  const std::string file = ZipText(
      {{.name = "a", .data = inner_header}, {.name = "b", .data = "1234", .claimed_offset = 31}});
  EXPECT_THAT(ParseZip("f", file).status().message(), HasSubstr("overlap"));
}

TEST(ZipFileTest, NoChangedByteIsReadBeyondTheFile) {
  const std::string file = ZipText({{.name = "a", .data = "12345"}, {.name = "b", .data = "6"}},
                                   {.zip64 = true, .comment = "c"});
  for (size_t at = 0; at < file.size(); ++at) {
    for (const char value : {'\0', '\x01', '\x7F', '\xFF'}) {
      std::string changed = file;
      changed[at] = value;
      const auto members = ParseZip("f", changed);
      if (!members.ok()) continue;
      for (const ZipMember& member : *members) {
        ASSERT_LE(member.offset_bytes + member.size_bytes, static_cast<int64_t>(file.size()));
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh

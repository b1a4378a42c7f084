// Tests of status/utf8.h.
#include "status/utf8.h"

#include <gtest/gtest.h>

namespace shardmesh {
namespace {

TEST(Utf8Test, DecodesWhatItEncodes) {
  const std::u32string text = {0,      'a',    0x7F,   0x80,    0x7FF,   0x800,
                               0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
  std::string encoded;
  for (const char32_t c : text) {
    AppendUtf8(c, encoded);
  }
  EXPECT_EQ(encoded.size(), 3 * 1 + 2 * 2 + 4 * 3 + 2 * 4);
  EXPECT_EQ(DecodeUtf8(encoded), text);
  EXPECT_EQ(DecodeUtf8(""), U"");
}

TEST(Utf8Test, RefusesWhatIsNotUtf8) {
  for (const std::string text : {
           "\x80",              // a continuation alone
           "\xC3",              // cut off
           "\xE2\x82",          // cut off
           "\xC3(",             // no continuation
           "\xC0\x80",          // over-long
           "\xE0\x80\x80",      // over-long
           "\xF0\x80\x80\x80",  // over-long
           "\xED\xA0\x80",      // a surrogate
           "\xF4\x90\x80\x80",  // above U+10FFFF
           "\xFF",
       }) {
    EXPECT_EQ(DecodeUtf8("a" + text), std::nullopt) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace shardmesh

// Converts UTF-8 to code points and back, for code that inspects characters instead of bytes.
#ifndef SHARDMESH_STATUS_UTF8_H_
#define SHARDMESH_STATUS_UTF8_H_

#include <optional>
#include <string>
#include <string_view>

namespace shardmesh {

// Returns the code points of `text`, or nullopt if `text` is not UTF-8. Over-long forms, surrogates
// and values above U+10FFFF are not UTF-8.
std::optional<std::u32string> DecodeUtf8(std::string_view text);

// Appends one code point of at most U+10FFFF. A surrogate becomes the three bytes of its value,
// which is not UTF-8.
void AppendUtf8(char32_t code_point, std::string& out);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_UTF8_H_

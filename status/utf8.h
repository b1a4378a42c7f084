// UTF-8 to code points and back, for what has to look at characters instead of bytes.
#ifndef SHARDMESH_STATUS_UTF8_H_
#define SHARDMESH_STATUS_UTF8_H_

#include <optional>
#include <string>
#include <string_view>

namespace shardmesh {

// The code points of `text`; nullopt if it is not UTF-8 (over-long forms, surrogates and values
// above U+10FFFF are not).
std::optional<std::u32string> DecodeUtf8(std::string_view text);

// Appends one code point of at most U+10FFFF. A surrogate gets the three bytes that its value would
// have, which is not UTF-8.
void AppendUtf8(char32_t code_point, std::string& out);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_UTF8_H_

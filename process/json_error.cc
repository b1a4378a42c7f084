// Error texts of the JSON parser, for messages.
#include "process/json_error.h"

#include "absl/strings/escaping.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {

std::string JsonErrorText(std::string_view what) {
  const size_t end = what.find("] ");
  const std::string_view text = what.substr(end == std::string_view::npos ? 0 : end + 2);
  const std::string escaped = DecodeUtf8(text).has_value() ? absl::Utf8SafeCHexEscape(ToAbsl(text))
                                                           : absl::CHexEscape(ToAbsl(text));
  std::string out;
  out.reserve(escaped.size());
  for (size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] == '\\' && i + 1 < escaped.size() &&
        std::string_view("\\'\"").find(escaped[i + 1]) != std::string_view::npos) {
      ++i;
    }
    out += escaped[i];
  }
  return out;
}

}  // namespace shardmesh

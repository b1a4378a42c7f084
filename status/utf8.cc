// Decodes UTF-8 with every check of its definition, and encodes code points.
#include "status/utf8.h"

#include <cstddef>

namespace shardmesh {

std::optional<std::u32string> DecodeUtf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      out.push_back(lead);
      continue;
    }
    // The number of continuation bytes that the lead byte announces, and the least code point that
    // needs this number. A smaller code point in as many bytes is an over-long form.
    int continuations = 0;
    char32_t value = 0;
    char32_t least = 0;
    if ((lead & 0xE0) == 0xC0) {
      continuations = 1, value = lead & 0x1F, least = 0x80;
    } else if ((lead & 0xF0) == 0xE0) {
      continuations = 2, value = lead & 0x0F, least = 0x800;
    } else if ((lead & 0xF8) == 0xF0) {
      continuations = 3, value = lead & 0x07, least = 0x10000;
    } else {
      return std::nullopt;
    }
    for (; continuations > 0; --continuations) {
      if (i == text.size()) {
        return std::nullopt;
      }
      const auto byte = static_cast<unsigned char>(text[i++]);
      if ((byte & 0xC0) != 0x80) {
        return std::nullopt;
      }
      value = value << 6 | (byte & 0x3F);
    }
    if (value < least || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return std::nullopt;
    }
    out.push_back(value);
  }
  return out;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto continuation = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3F)));
  };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code_point >> 6));
    continuation(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code_point >> 12));
    continuation(6);
    continuation(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | code_point >> 18));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace shardmesh

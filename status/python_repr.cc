// Escapes of Python's repr.
#include "status/python_repr.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_format.h"
#include "re2/re2.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

// Returns whether Python prints a character beyond ASCII unescaped. Such a character is assigned,
// and is no separator and no control, format, surrogate or private character.
bool IsPrintable(char32_t code_point) {
  static const RE2& kPrintable = *new RE2("[\\pL\\pM\\pN\\pP\\pS]");
  std::string character;
  AppendUtf8(code_point, character);
  return RE2::FullMatch(character, kPrintable);
}

// Appends one character, escaped as Python's repr does between `quote`s.
void AppendPythonEscaped(char32_t code_point, char quote, std::string& out) {
  if (code_point == static_cast<char32_t>(quote) || code_point == '\\') {
    out += '\\';
    out += static_cast<char>(code_point);
  } else if (code_point == '\n') {
    out += "\\n";
  } else if (code_point == '\r') {
    out += "\\r";
  } else if (code_point == '\t') {
    out += "\\t";
  } else if (code_point >= 0x80 ? IsPrintable(code_point)
                                : code_point >= 0x20 && code_point != 0x7f) {
    AppendUtf8(code_point, out);
  } else if (code_point <= 0xff) {
    absl::StrAppendFormat(&out, "\\x%02x", static_cast<uint32_t>(code_point));
  } else if (code_point <= 0xffff) {
    absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(code_point));
  } else {
    absl::StrAppendFormat(&out, "\\U%08x", static_cast<uint32_t>(code_point));
  }
}

}  // namespace

std::string PythonRepr(std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '\'' && c != '\\';
  });
  if (is_plain) {
    return StrCat("'", text, "'");
  }
  // Python prefers single quotes and uses double quotes only to save escapes.
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  const std::optional<std::u32string> code_points = DecodeUtf8(text);
  if (code_points.has_value()) {
    for (const char32_t code_point : *code_points) AppendPythonEscaped(code_point, quote, out);
  } else {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        AppendPythonEscaped(byte, quote, out);
      } else {
        out += c;
      }
    }
  }
  out += quote;
  return out;
}

}  // namespace shardmesh

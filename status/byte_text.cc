// Texts for numbers of bytes, for people.
#include "status/byte_text.h"

#include <array>
#include <cstddef>
#include <limits>

#include "absl/strings/str_format.h"
#include "status/str_cat.h"

namespace shardmesh {

std::string FormatThreeDigits(double value) {
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 0 && bytes > std::numeric_limits<int64_t>::min()) {
    return StrCat("-", FormatBytes(-bytes));
  }
  if (bytes < 1024) {
    return StrCat(bytes, " B");
  }
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // From 999.5 on, use the next larger unit: `1000 KiB` would have four digits.
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1024;
  }
  return StrCat(FormatThreeDigits(value), " ", kUnits[unit]);
}

std::pair<std::string, std::string> FormatBytesApart(int64_t one, int64_t other) {
  std::pair<std::string, std::string> texts = {FormatBytes(one), FormatBytes(other)};
  if (one != other && texts.first == texts.second) {
    texts = {StrCat(one, " B"), StrCat(other, " B")};
  }
  return texts;
}

}  // namespace shardmesh

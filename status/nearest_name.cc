// Bounded edit distance (optimal string alignment), and the nearest name by that distance.
#include "status/nearest_name.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr size_t kMaxBytes = 255;

}  // namespace

int64_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMaxBytes);
  b = b.substr(0, kMaxBytes);
  // rows[i % 3][j] is the distance between the first i bytes of `a` and the first j of `b`.
  std::array<std::array<int64_t, kMaxBytes + 1>, 3> rows;
  for (size_t j = 0; j <= b.size(); ++j) {
    rows[0][j] = static_cast<int64_t>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i - 1) % 3];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::optional<std::string_view> NearestName(std::string_view name,
                                            absl::Span<const std::string_view> known) {
  std::optional<std::string_view> nearest;
  int64_t least = 0;
  for (const std::string_view candidate : known) {
    // EditDistance compares at most kMaxBytes of each name. Limit the longer name's length to
    // kMaxBytes as well.
    const auto longer =
        static_cast<int64_t>(std::min(kMaxBytes, std::max(name.size(), candidate.size())));
    const int64_t distance =
        absl::EqualsIgnoreCase(ToAbsl(name), ToAbsl(candidate)) ? 0 : EditDistance(name, candidate);
    const bool is_near = distance < longer && distance <= std::max<int64_t>(1, longer / 3);
    if (is_near && (!nearest.has_value() || distance < least)) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

std::string DidYouMean(std::string_view name, absl::Span<const std::string_view> known) {
  const std::optional<std::string_view> nearest = NearestName(name, known);
  return nearest.has_value() ? StrCat("; did you mean \"", *nearest, "\"?") : std::string();
}

}  // namespace shardmesh

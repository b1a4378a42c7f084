// StrCat, StrAppend and StrJoin that also take std::string_view, and conversions for other Abseil
// functions.
//
// In Debian's build of Abseil, absl::string_view is a class of its own, and std::string_view does
// not convert to it. The project uses std::string_view everywhere, and builds texts with the
// functions below.
#ifndef SHARDMESH_STATUS_STR_CAT_H_
#define SHARDMESH_STATUS_STR_CAT_H_

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace shardmesh {

// Convert between Abseil's view type and the standard one. The result refers to the same bytes as
// the argument.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

namespace str_cat_internal {

template <typename T>
decltype(auto) Argument(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

}  // namespace str_cat_internal

// StrCat, StrAppend and StrJoin are function objects. For functions, argument-dependent lookup
// would find Abseil's functions as well, and calls would be ambiguous.

// See absl::StrCat.
inline constexpr auto StrCat = [](const auto&... pieces) -> std::string {
  return absl::StrCat(str_cat_internal::Argument(pieces)...);
};

// See absl::StrAppend. No piece may be a view into `*out`.
inline constexpr auto StrAppend = [](std::string* out, const auto&... pieces) {
  absl::StrAppend(out, str_cat_internal::Argument(pieces)...);
};

// See absl::StrJoin; the formatter is void(std::string* out, const Element&), StrAppend by default.
inline constexpr auto StrJoin = [](const auto& range, std::string_view separator,
                                   const auto&... formatter) -> std::string {
  static_assert(sizeof...(formatter) <= 1);
  if constexpr (sizeof...(formatter) == 0) {
    return absl::StrJoin(range, ToAbsl(separator), StrAppend);
  } else {
    return absl::StrJoin(range, ToAbsl(separator), formatter...);
  }
};

// Joins the first `most` elements as StrJoin does, and counts the others: `a, b and 3 more`.
inline constexpr auto StrJoinFirst = [](size_t most, const auto& range, std::string_view separator,
                                        const auto&... formatter) -> std::string {
  static_assert(sizeof...(formatter) <= 1);
  const size_t size = std::size(range);
  const auto begin = std::begin(range);
  const auto end = std::next(begin, static_cast<std::ptrdiff_t>(std::min(size, most)));
  std::string text;
  if constexpr (sizeof...(formatter) == 0) {
    text = absl::StrJoin(begin, end, ToAbsl(separator), StrAppend);
  } else {
    text = absl::StrJoin(begin, end, ToAbsl(separator), formatter...);
  }
  if (size > most) StrAppend(&text, " and ", size - most, " more");
  return text;
};

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_STR_CAT_H_

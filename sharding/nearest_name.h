// The known name that a mistyped one was probably meant to be, for error messages.
#ifndef SHARDMESH_SHARDING_NEAREST_NAME_H_
#define SHARDMESH_SHARDING_NEAREST_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace shardmesh {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, in bytes.
// Only the first 255 bytes of each are looked at, so the cost is bounded for any input.
int64_t EditDistance(std::string_view a, std::string_view b);

// The name in `known` with the least distance from `name`, the first of equals; nullopt unless it
// is near enough to be worth naming: at most a third of the longer one's bytes differ, or one byte,
// or nothing but case.
std::optional<std::string_view> NearestName(std::string_view name,
                                            absl::Span<const std::string_view> known);

// `; did you mean "tp"?` for the nearest name, else nothing: the end of a sentence.
std::string DidYouMean(std::string_view name, absl::Span<const std::string_view> known);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_NEAREST_NAME_H_

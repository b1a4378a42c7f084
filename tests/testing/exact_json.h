// Reads JSON as Python does: with integers of any size, and, where it matters, the order of an
// object's keys.
#ifndef SHARDMESH_TESTS_TESTING_EXACT_JSON_H_
#define SHARDMESH_TESTS_TESTING_EXACT_JSON_H_

#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace shardmesh::test {

// Parses one document. Encodes the values that nlohmann::json would lose:
// - an integer beyond 64 bits, which nlohmann::json would round, as {"__int__": "DIGITS"};
// - an object within members of the names in `ordered`, at any depth, as
//   {"__dict__": [[KEY, VALUE], ...]}, because nlohmann::json would sort its keys.
//
// Throws nlohmann::json::exception for invalid JSON, and for values nested deeper than `max_depth`.
nlohmann::json ParseExactJson(std::string_view text, absl::Span<const std::string_view> ordered,
                              int max_depth);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_EXACT_JSON_H_

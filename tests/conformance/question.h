// What the conformance runner can ask: one function of the originals by name, and who answers it.
#ifndef SHARDMESH_TESTS_CONFORMANCE_QUESTION_H_
#define SHARDMESH_TESTS_CONFORMANCE_QUESTION_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shardmesh::conformance {

using Json = nlohmann::json;

// Answers one case: the value as the case encodes it, or an error that carries the exact class of
// the original's exception (PythonTypeOf). May throw Json::exception for an input of another form.
using Ask = std::function<absl::StatusOr<Json>(const Json& input)>;

// By the name of the function, as a case's `fn` has it.
using Questions = std::map<std::string, Ask, std::less<>>;

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_QUESTION_H_

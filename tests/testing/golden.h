// Golden answers, recorded from the Python originals: reads them, decodes their values, and
// compares the project's answers with them.
#ifndef SHARDMESH_TESTS_TESTING_GOLDEN_H_
#define SHARDMESH_TESTS_TESTING_GOLDEN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "sharding/axis_value.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh::test {

using Json = nlohmann::json;

// One line of a golden file; tests/data/goldens/README.md describes the fields.
struct Golden {
  std::string id;
  std::string fn;
  Json input;
  std::optional<Json> expect;  // absent exactly if an error is expected
  std::string py_type;         // the expected error's exact Python class
};

// Reads one line. Throws Json::exception with a description for a line that is no JSON, nests
// deeper than kMaxGoldenDepth, or lacks a field. A line needs either `expect` or `error`.
inline constexpr int kMaxGoldenDepth = 64;
Golden ParseGolden(std::string_view line);

// Returns whether `got` is the result that `golden` expects: an equal value, or an error with the
// same Python class.
bool Agrees(const Golden& golden, const absl::StatusOr<Json>& got);
// Return the expected and the actual result, each on one line; bytes that are not UTF-8 are
// replaced.
std::string ExpectedText(const Golden& golden);
std::string AnswerText(const absl::StatusOr<Json>& got);

// All lines of tests/data/goldens/<file>. A file that is missing or malformed ends the program.
std::vector<Golden> LoadGoldens(std::string_view file);
// A golden file that is one JSON document, such as presets.json.
Json LoadGoldenDocument(std::string_view file);

// Answers one question: the value as the golden encodes it, or the error.
using Answer = std::function<absl::StatusOr<Json>(const Json& input)>;

// Passes every question about function `fn` in `file` to `answer`. Reports each line that differs,
// with its id, the expected and the actual result. If the golden expects an error, `answer` must
// return an error with the same PythonTypeOf. `count` is the number of questions, which detects
// lines that are silently lost. Asks every `stride`-th question only, from the first one on.
void ExpectGoldens(std::string_view file, std::string_view fn, int64_t count, const Answer& answer,
                   int64_t stride = 1);

// Decoders. For a value that does not have the form in tests/data/goldens/README.md, they throw
// Json::exception. For a value that the Python libraries themselves refuse, such as a nested tuple
// in a spec, they return the project's error.

// Throws Json's exception for a value of the wrong type.
[[noreturn]] void ThrowWrongForm(std::string_view message);

// What a plain JSON array means: a tuple in fields and specs, but a list among semantic axes.
enum class ArrayMeans { kTuple, kList };
AxisValue DecodeAxisValue(const Json& value, ArrayMeans array_means = ArrayMeans::kTuple);
absl::StatusOr<PartitionSpec> DecodeSpec(const Json& value);
// Decodes a mesh; null is the empty mesh. Accepts the meshes that JAX accepts
// (MeshOptions::allow_degenerate).
absl::StatusOr<Mesh> DecodeMesh(const Json& value);
// Decodes a number without a fraction that fits 64 bits.
int64_t DecodeInteger(const Json& value);
Shape DecodeShape(const Json& value);

// Encoders to the form of golden files. Lists and tuples both become arrays.
Json EncodeAxisValue(const AxisValue& value);
Json EncodeSpec(const PartitionSpec& spec);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_GOLDEN_H_

// Prints the answer about one tensor's spec, as text and as JSON.
#ifndef SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_
#define SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/cli/command_line.h"
#include "client/types/layout_questions.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh::client {

// Prints specs, tile, corrections with their fixes, and the chain of reasons to standard output.
// `mode`: the mode in which logical axes were resolved; nullopt if the question had no logical
// axes. `mesh`: see MeshOfCorrections.
void PrintSpecAnswer(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                     std::optional<RuntimeMode> mode = std::nullopt);
Json SpecAnswerJson(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                    std::optional<RuntimeMode> mode = std::nullopt);
// Prints a line for each correction, with its fixes below it.
void PrintCorrections(const std::vector<Correction>& corrections, const std::vector<Fix>& fixes,
                      const std::optional<Mesh>& mesh);
// Prints only the chain of reasons.
void PrintExplanation(const SpecAnswer& answer, const std::optional<Mesh>& mesh,
                      std::optional<RuntimeMode> mode);
Json ExplanationJson(const std::vector<ExplanationStep>& steps);
// An array with an object {"kind", "correction", "spec", "shape", "text"} for each fix.
Json FixesJson(const std::vector<Fix>& fixes);

// A tensor or an array whose spec was corrected.
struct CorrectedTensor {
  std::string name;
  std::vector<Correction> corrections;
  std::optional<Mesh> mesh = std::nullopt;  // see MeshOfCorrections
  PartitionSpec effective = {};             // the spec with these corrections
  Shape shape = {};
};
// Whether --strict is the cause of an error: the error is about corrections.
bool IsOfStrict(const absl::Status& status);
// Returns `refusal`, the error of --strict, which is about the first corrected tensor only. Its
// message gets the corrections of all tensors: a line for each group of tensors with equal requests
// and equal corrections, at most ten lines, and below each line the specs that would mend the
// group. These specs need the mesh, the effective spec and the shape of the tensors. Unchanged if
// no tensor was corrected.
absl::Status WithAllCorrected(const absl::Status& refusal,
                              absl::Span<const CorrectedTensor> corrected);
// Whether WithAllCorrected has changed the error. The fixes in the details of such an error are
// about the first tensor only.
bool HasAllCorrected(const absl::Status& status);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

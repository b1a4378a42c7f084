// Prints the answer about one tensor's spec, as text and as JSON.
#ifndef SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_
#define SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

#include <optional>
#include <vector>

#include "client/cli/command_line.h"
#include "client/types/layout_questions.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"

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

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

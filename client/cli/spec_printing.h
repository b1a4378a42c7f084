// The answer about one tensor's spec, as text and as JSON.
#ifndef SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_
#define SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

#include "client/cli/command_line.h"
#include "client/layout.h"

namespace shardmesh::client {

// Specs, tile, corrections with their fixes, and the chain of reasons, to standard output.
void PrintSpecAnswer(const SpecAnswer& answer);
Json SpecAnswerJson(const SpecAnswer& answer);
// {"kind", "correction", "spec", "shape", "text"} each.
Json FixesJson(const std::vector<Fix>& fixes);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_SPEC_PRINTING_H_

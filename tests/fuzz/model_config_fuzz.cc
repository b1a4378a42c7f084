// Fuzzes config.json: no exception comes out, and what was read is written so that it is read as
// the same.
#include "client/models/model_config.h"

#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const absl::StatusOr<client::ModelConfig> config = client::ParseModelConfig("config.json", input);
  if (!config.ok()) {
    Require(config.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const auto again = client::ParseModelConfig("again", client::FormatModelConfig(*config));
  Require(again.ok() && *again == *config);
}

}  // namespace shardmesh::fuzz

// Facts and retry delays that a status carries beside its message, for programs to read.
#ifndef SHARDMESH_STATUS_DETAIL_H_
#define SHARDMESH_STATUS_DETAIL_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "status/fact_keys.h"

namespace shardmesh {

// Attaches a fact such as ("rank", "3"). `key` is an identifier in snake_case; a new value of a key
// replaces the old one. An OK status stays unchanged.
absl::Status WithFact(absl::Status status, std::string_view key, std::string_view value);
// Attaches each fact whose value is not empty. An OK status stays unchanged.
absl::Status WithFacts(absl::Status status, Facts facts);
// Attaches the facts of `from` to `status`, which is the same error with another message.
absl::Status WithFactsOf(absl::Status status, const absl::Status& from);
// Returns the value of the fact `key`; nullopt if the status has no such fact.
std::optional<std::string> FactOf(const absl::Status& status, std::string_view key);
std::optional<std::string> FactOf(const absl::Status& status, FactKey key);
// Returns all facts of the status, sorted by key.
std::vector<std::pair<std::string, std::string>> FactsOf(const absl::Status& status);

// Attaches the time that a caller should wait before it repeats the call. An OK status stays
// unchanged.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
// Returns the delay that WithRetryDelay attached; nullopt if the status has no such delay.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_DETAIL_H_

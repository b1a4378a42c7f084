// Payloads of a status, one for each fact.
#include "status/detail.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Prefix of the type URL of a fact's payload; the fact's key follows. The payload is the fact's
// value.
constexpr std::string_view kFactPrefix = "shardmesh/fact/";
// Type URL of the retry delay. The payload is a duration as absl::FormatDuration writes it.
constexpr absl::string_view kRetryDelayUrl = "shardmesh/retry_delay";

}  // namespace

absl::Status WithFact(absl::Status status, std::string_view key, std::string_view value) {
  if (!status.ok()) {
    status.SetPayload(ToAbsl(StrCat(kFactPrefix, key)), absl::Cord(ToAbsl(value)));
  }
  return status;
}

absl::Status WithFacts(absl::Status status, Facts facts) {
  for (const Fact& each : facts) {
    if (!each.value.empty()) status = WithFact(std::move(status), each.key.name(), each.value);
  }
  return status;
}

absl::Status WithFactsOf(absl::Status status, const absl::Status& from) {
  for (const auto& [key, value] : FactsOf(from)) {
    status = WithFact(std::move(status), key, value);
  }
  return status;
}

std::optional<std::string> FactOf(const absl::Status& status, FactKey key) {
  return FactOf(status, key.name());
}

std::optional<std::string> FactOf(const absl::Status& status, std::string_view key) {
  const auto payload = status.GetPayload(ToAbsl(StrCat(kFactPrefix, key)));
  return payload.has_value() ? std::optional(std::string(*payload)) : std::nullopt;
}

std::vector<std::pair<std::string, std::string>> FactsOf(const absl::Status& status) {
  std::vector<std::pair<std::string, std::string>> facts;
  status.ForEachPayload([&facts](absl::string_view url, const absl::Cord& payload) {
    const std::string_view text = ToStd(url);
    if (text.substr(0, kFactPrefix.size()) == kFactPrefix) {
      facts.emplace_back(text.substr(kFactPrefix.size()), std::string(payload));
    }
  });
  std::sort(facts.begin(), facts.end());
  return facts;
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  if (!status.ok()) {
    status.SetPayload(kRetryDelayUrl, absl::Cord(absl::FormatDuration(delay)));
  }
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryDelayUrl);
  absl::Duration delay;
  if (!payload.has_value() || !absl::ParseDuration(std::string(*payload), &delay)) {
    return std::nullopt;
  }
  return delay;
}

}  // namespace shardmesh

// Compares the flags of an `up` with those that the record of the cluster has.
#include "client/cli/local/recorded_flags.h"

#include <map>
#include <set>

#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using FlagValues = std::map<std::string, std::set<std::string>>;

FlagValues ByName(const std::vector<std::string>& flags) {
  FlagValues values;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    values[flag.substr(0, equals)].insert(equals == std::string::npos ? std::string()
                                                                      : flag.substr(equals + 1));
  }
  return values;
}

}  // namespace

std::string RecordedFlags::Merge(std::string_view name, const std::string& recorded,
                                 const std::string& given) {
  if (!given.empty() && given != recorded) {
    differences_.push_back(StrCat(name, " ", given,
                                  recorded.empty() ? std::string(" (the cluster has none)")
                                                   : StrCat(" (the cluster has ", recorded, ")")));
  } else if (given.empty() && !recorded.empty()) {
    taken_.push_back(StrCat(name, " ", recorded));
  }
  return recorded;
}

std::vector<std::string> RecordedFlags::Merge(
    const std::optional<std::vector<std::string>>& recorded,
    const std::vector<std::string>& given) {
  if (!recorded.has_value()) return given;
  FlagValues recorded_values = ByName(*recorded);
  const FlagValues given_values = ByName(given);
  for (const auto& [name, values] : given_values) {
    Merge(name, StrJoin(recorded_values[name], ", "), StrJoin(values, ", "));
  }
  for (const auto& [name, values] : recorded_values) {
    if (given_values.count(name) == 0) Merge(name, StrJoin(values, ", "), "");
  }
  return *recorded;
}

}  // namespace shardmesh::client

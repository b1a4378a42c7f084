// Compares the flags of an `up` with those that the record of the cluster has.
#include "client/cli/local/recorded_flags.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using FlagValues = std::map<std::string, std::set<std::string>>;

FlagValues ByName(const std::vector<std::string>& flags) {
  FlagValues values;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    const std::string name = flag.substr(0, equals);
    values[name].insert(equals == std::string::npos ? std::string()
                                                    : RecordedForm(name, flag.substr(equals + 1)));
  }
  return values;
}

}  // namespace

std::string ExactSize(int64_t bytes) {
  for (const auto& [unit, unit_bytes] :
       {std::pair("GiB", int64_t{1} << 30), std::pair("MiB", int64_t{1} << 20),
        std::pair("KiB", int64_t{1} << 10)}) {
    if (bytes % unit_bytes == 0) return StrCat(bytes / unit_bytes, unit);
  }
  return StrCat(bytes);
}

std::string RecordedForm(std::string_view name, const std::string& value) {
  if (value.empty()) return value;
  if (name == "--memory") {
    int64_t bytes = 0;
    const bool is_number = std::all_of(value.begin(), value.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    return is_number && absl::SimpleAtoi(value, &bytes) ? ExactSize(bytes) : value;
  }
  if (name == "--data-dir" || name == "--tls" || name == "--read-root" || name == "--write-root") {
    const std::filesystem::path path = std::filesystem::path(value).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).string();
  }
  return value;
}

std::string RecordedFlags::Merge(std::string_view name, const std::string& recorded,
                                 const std::string& given) {
  if (given.empty()) {
    if (!recorded.empty()) taken_.push_back(StrCat(name, " ", recorded));
    return recorded;
  }
  std::string meant = recorded;
  if (const auto known = defaults_.find(name); meant.empty() && known != defaults_.end()) {
    meant = known->second;
  }
  if (RecordedForm(name, given) == RecordedForm(name, meant)) return recorded;
  differences_.push_back(StrCat(name, " ", given,
                                meant.empty() ? std::string(" (the cluster has none)")
                                              : StrCat(" (the cluster has ", meant, ")")));
  return on_difference_ == OnDifference::kTakeGiven ? given : recorded;
}

std::vector<std::string> RecordedFlags::Merge(
    const std::optional<std::vector<std::string>>& recorded,
    const std::vector<std::string>& given) {
  if (!recorded.has_value()) return given;
  FlagValues recorded_values = ByName(*recorded);
  const FlagValues given_values = ByName(given);
  std::set<std::string> replaced;  // the names of the flags with given values
  for (const auto& [name, values] : given_values) {
    const std::string before = StrJoin(recorded_values[name], ", ");
    if (Merge(name, before, StrJoin(values, ", ")) != before) replaced.insert(name);
  }
  for (const auto& [name, values] : recorded_values) {
    if (given_values.count(name) == 0) Merge(name, StrJoin(values, ", "), "");
  }
  std::vector<std::string> merged;
  for (const auto& [flags, are_given] : {std::pair(&*recorded, false), std::pair(&given, true)}) {
    for (const std::string& flag : *flags) {
      if ((replaced.count(flag.substr(0, flag.find('='))) > 0) == are_given) merged.push_back(flag);
    }
  }
  return merged;
}

}  // namespace shardmesh::client

// Compares the flags of an `up` with those that the record of the cluster has.
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_RECORDED_FLAGS_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_RECORDED_FLAGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardmesh::client {

// Returns a size in the largest unit of which it is a whole number: `96MiB`.
std::string ExactSize(int64_t bytes);

// Returns the form in which `up` records a flag's value: a `--memory` in the largest exact unit,
// folders without a slash at their end. Older builds recorded the number of bytes, and folders as
// they were given. `name` is that of the flag, such as `--memory`. The values of other flags are
// unchanged.
std::string RecordedForm(std::string_view name, const std::string& value);

// The flags of an `up` over a recorded cluster. Not thread-safe.
//
// A flag that the `up` does not give keeps its recorded value. A flag that the `up` gives with
// another value than the recorded one is a difference. A flag that the record lacks has its
// default. Values are compared in their RecordedForm. Example: recorded `--memory=1048576`, given
// `--memory=2097152 --transport=auto`, where `auto` is the default of `--transport`: the merged
// flags are the recorded ones, and differences() is `--memory 2MiB (the cluster has 1MiB)`.
class RecordedFlags {
 public:
  // The value that a merged flag has if there is a difference.
  enum class OnDifference { kKeepRecorded, kTakeGiven };

  // `defaults` has the values of flags that are not given, by their names, such as
  // {"--transport", "auto"}.
  explicit RecordedFlags(std::map<std::string, std::string, std::less<>> defaults = {},
                         OnDifference on_difference = OnDifference::kKeepRecorded)
      : defaults_(std::move(defaults)), on_difference_(on_difference) {}

  // Compares one flag that has at most one value. An empty value means that the flag is not given.
  // Returns the merged value; empty means that the flag has its default.
  std::string Merge(std::string_view name, const std::string& recorded, const std::string& given);
  // Compares flags of the form `--name=value`, which may repeat in any order. Returns the merged
  // flags. If `recorded` is nullopt, returns `given`: an older build wrote the record.
  std::vector<std::string> Merge(const std::optional<std::vector<std::string>>& recorded,
                                 const std::vector<std::string>& given);

  // The flags whose given value is not the recorded one, each with both values.
  const std::vector<std::string>& differences() const { return differences_; }
  // The recorded flags that the `up` does not give, such as `--memory 1MiB`.
  const std::vector<std::string>& taken() const { return taken_; }

 private:
  const std::map<std::string, std::string, std::less<>> defaults_;
  const OnDifference on_difference_;
  std::vector<std::string> differences_;
  std::vector<std::string> taken_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_RECORDED_FLAGS_H_

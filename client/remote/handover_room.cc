// Reads limits and use of memory from /proc/self/cgroup and /sys/fs/cgroup.
#include "client/remote/handover_room.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// The files of one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* use;
  const char* dropped_first;  // line of memory.stat: pages of files that nobody has read for long
};
constexpr GroupFiles kFilesV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                 "total_inactive_file"};
constexpr GroupFiles kFilesV2 = {"/memory.max", "/memory.current", "inactive_file"};
// Version 1 has a limit of about this much where there is none.
constexpr int64_t kNoMemoryLimit = int64_t{1} << 60;

std::optional<int64_t> ReadCount(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  int64_t count = 0;
  if (!std::getline(file, line) || !absl::SimpleAtoi(line, &count)) return std::nullopt;
  return count;
}

int64_t StatisticOf(const std::string& folder, std::string_view name) {
  std::ifstream file(folder + "/memory.stat");
  std::string word;
  int64_t count = 0;
  while (file >> word >> count) {
    if (word == name) return count;
  }
  return 0;
}

// Lowers `left` to what is left of the group of the folder `mount` + `path`, and of each of its
// ancestors. In a container, `path` may be the path on the host, so that some of the folders do not
// exist here.
void LowerByGroups(const std::string& mount, std::string path, const GroupFiles& files,
                   std::optional<int64_t>* left) {
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const std::string folder = mount + path;
    const std::optional<int64_t> limit = ReadCount(folder + files.limit);
    const std::optional<int64_t> use = ReadCount(folder + files.use);
    if (limit.has_value() && use.has_value() && *limit < kNoMemoryLimit) {
      const int64_t held = std::max<int64_t>(*use - StatisticOf(folder, files.dropped_first), 0);
      const int64_t room = std::max<int64_t>(*limit - held, 0);
      *left = left->has_value() ? std::min(**left, room) : room;
    }
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

std::optional<int64_t> MemoryLeftInGroup(const std::string& root) {
  std::optional<int64_t> left;
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  // Each line is hierarchy:controllers:path. A line of version 2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      LowerByGroups(mount, parts[2], kFilesV2, &left);
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      LowerByGroups(mount + "/memory", parts[2], kFilesV1, &left);
    }
  }
  return left;
}

absl::Status HandoverRoom::Take(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (left_bytes_.has_value() && taken_bytes_ + bytes > *left_bytes_ / 2) {
    refusal_ = absl::ResourceExhaustedError(
        StrCat("this put has handed over ", taken_bytes_, " bytes, and a tile of ", bytes,
               " bytes more would be more than half of the ", *left_bytes_,
               " bytes that were left below the memory limit of this client's control group, which "
               "counts them; raise that limit, or ask for `--handover on`"));
    return refusal_;
  }
  taken_bytes_ += bytes;
  return absl::OkStatus();
}

void HandoverRoom::GiveBack(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  taken_bytes_ -= bytes;
}

absl::Status HandoverRoom::refusal() const {
  absl::MutexLock lock(&mutex_);
  return refusal_;
}

}  // namespace shardmesh::client

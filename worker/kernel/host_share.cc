// Reads a HostShare from sched_getaffinity, /proc/self/cgroup and /sys/fs/cgroup. Binds the process
// to cores with hwloc.
#include "worker/kernel/host_share.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// A memory limit of this value or more means no limit. Version 1 of control groups reports the
// largest multiple of the page size if there is no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  const std::optional<std::string> line = FirstLine(path);
  int64_t number = 0;
  if (!line.has_value() || !absl::SimpleAtoi(*line, &number)) return std::nullopt;
  return number;
}

template <typename T>
void Lower(std::optional<T>& limit, T value) {
  limit = limit.has_value() ? std::min(*limit, value) : value;
}

// Returns the folder of a control group below its hierarchy's folder `mount`, and the folders of
// the group's ancestors. In a container, `path` may be the path on the host, so some of these
// folders may not exist here; readers skip them.
std::vector<std::string> Folders(const std::string& mount, std::string_view path) {
  std::vector<std::string> folders;
  std::string folder = StrCat(mount, path);
  while (folder.size() > mount.size()) {
    if (folder.back() != '/') folders.push_back(folder);
    folder.resize(folder.find_last_of('/'));
  }
  folders.push_back(mount);
  return folders;
}

void ReadV2(const std::string& folder, HostShare* share) {
  if (const auto line = FirstLine(folder + "/cpu.max"); line.has_value()) {
    const std::vector<std::string> words = absl::StrSplit(*line, ' ');
    int64_t quota = 0;
    int64_t period = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &quota) &&
        absl::SimpleAtoi(words[1], &period) && quota > 0 && period > 0) {
      Lower(share->quota_cores, static_cast<double>(quota) / static_cast<double>(period));
    }
  }
  if (const auto limit = NumberIn(folder + "/memory.max"); limit.has_value()) {
    Lower(share->memory_bytes, *limit);
  }
}

void ReadCpuV1(const std::string& folder, HostShare* share) {
  const std::optional<int64_t> quota = NumberIn(folder + "/cpu.cfs_quota_us");
  const std::optional<int64_t> period = NumberIn(folder + "/cpu.cfs_period_us");
  if (quota.has_value() && period.has_value() && *quota > 0 && *period > 0) {
    Lower(share->quota_cores, static_cast<double>(*quota) / static_cast<double>(*period));
  }
}

void ReadMemoryV1(const std::string& folder, HostShare* share) {
  const std::optional<int64_t> limit = NumberIn(folder + "/memory.limit_in_bytes");
  if (limit.has_value() && *limit < kNoLimit) Lower(share->memory_bytes, *limit);
}

int CoresOfThisProcess() {
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(cores, 1);
}

}  // namespace

int HostShare::Threads() const {
  const double quota = quota_cores.value_or(cores);
  return std::max(1, static_cast<int>(std::floor(std::min<double>(quota, cores))));
}

std::vector<std::string> HostShare::MisfitsOf(int64_t memory, int threads) const {
  std::vector<std::string> misfits;
  if (memory_bytes.has_value() && memory > *memory_bytes) {
    misfits.push_back(StrCat("--memory is ", memory,
                             " bytes, the memory limit of its control group ", *memory_bytes));
  }
  if (threads > cores) {
    misfits.push_back(StrCat(threads, " threads for kernels, ", cores, " cores"));
  }
  if (quota_cores.has_value() && threads > 1 && threads > *quota_cores) {
    misfits.push_back(StrCat(threads, " threads for kernels, a quota of ",
                             absl::StrFormat("%.2f", *quota_cores), " cores"));
  }
  return misfits;
}

HostShare HostShare::OfThisProcess() { return Read("", CoresOfThisProcess()); }

HostShare HostShare::Read(const std::string& root, int cores) {
  HostShare share{.cores = cores};
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  // Each line is hierarchy:controllers:path. A line of version 2 has hierarchy 0 and no
  // controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      for (const std::string& folder : Folders(mount, parts[2])) ReadV2(folder, &share);
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "cpu") {
        for (const std::string& folder : Folders(mount + "/cpu", parts[2])) {
          ReadCpuV1(folder, &share);
        }
      } else if (controller == "memory") {
        for (const std::string& folder : Folders(mount + "/memory", parts[2])) {
          ReadMemoryV1(folder, &share);
        }
      }
    }
  }
  return share;
}

absl::StatusOr<HostPart> HostPart::Parse(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, '/');
  HostPart part;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &part.index) ||
      !absl::SimpleAtoi(words[1], &part.count) || part.index < 0 || part.index >= part.count) {
    return absl::InvalidArgumentError(StrCat(
        "\"", text, "\" is no part of a host; say INDEX/COUNT, as 0/4 for the first of four"));
  }
  return part;
}

int HostPart::Threads(const HostShare& share) const {
  const auto parts = static_cast<double>(count);
  double cores = static_cast<double>(share.cores) / (is_bound ? 1 : parts);
  if (share.quota_cores.has_value()) cores = std::min(cores, *share.quota_cores / parts);
  return std::max(1, static_cast<int>(std::floor(cores)));
}

absl::StatusOr<bool> BindToPart(const HostPart& part) {
  if (part.count <= 1) return false;
  hwloc_topology_t loaded = nullptr;
  if (hwloc_topology_init(&loaded) != 0) return absl::InternalError("hwloc does not start");
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(
      loaded, &hwloc_topology_destroy);
  hwloc_topology_set_flags(
      loaded, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  if (hwloc_topology_load(loaded) != 0) return absl::InternalError("hwloc reads no topology");
  const int cores = hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_PU);
  if (cores / part.count < HostPart::kLeastBoundCores || part.count > INT_MAX) return false;
  std::vector<hwloc_cpuset_t> sets(static_cast<size_t>(part.count), nullptr);
  hwloc_obj_t whole = hwloc_get_root_obj(loaded);
  if (hwloc_distrib(loaded, &whole, 1, sets.data(), static_cast<unsigned>(part.count), INT_MAX,
                    0) != 0) {
    return absl::InternalError("hwloc cannot divide the cores");
  }
  const int bound =
      hwloc_set_cpubind(loaded, sets[static_cast<size_t>(part.index)], HWLOC_CPUBIND_PROCESS);
  for (hwloc_cpuset_t set : sets) hwloc_bitmap_free(set);
  if (bound != 0) return absl::InternalError("the process cannot be bound to its cores");
  return true;
}

}  // namespace shardmesh::worker

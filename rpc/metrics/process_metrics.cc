// Reads this process's figures from /proc/self, as proc(5) describes them.
#include "rpc/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace shardmesh::rpc {
namespace {

struct ProcessStat {
  double cpu_seconds = 0;
  double start_seconds = 0;  // after boot
  double virtual_bytes = 0;
  double resident_bytes = 0;
};

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<ProcessStat> ReadStat() {
  // Indexes of the fields, counted from the field with the process's state. The fields before that
  // field are the pid, and the name in parentheses, which may contain spaces.
  constexpr size_t kUserTicks = 11;
  constexpr size_t kSystemTicks = 12;
  constexpr size_t kStartTicks = 19;
  constexpr size_t kVirtualBytes = 20;
  constexpr size_t kResidentPages = 21;
  const std::string text = ReadFile("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text).substr(name_end + 1), ' ', absl::SkipEmpty());
  if (fields.size() <= kResidentPages) return std::nullopt;
  bool valid = true;
  const auto number = [&](size_t field) {
    uint64_t value = 0;
    valid = absl::SimpleAtoi(fields[field], &value) && valid;
    return static_cast<double>(value);
  };
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const ProcessStat stat{
      .cpu_seconds = (number(kUserTicks) + number(kSystemTicks)) / ticks_per_second,
      .start_seconds = number(kStartTicks) / ticks_per_second,
      .virtual_bytes = number(kVirtualBytes),
      .resident_bytes = number(kResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE))};
  return valid ? std::optional(stat) : std::nullopt;
}

// Returns the time of the system's start, in seconds since the epoch; nullopt if /proc lacks it.
std::optional<double> BootTime() {
  for (const absl::string_view line : absl::StrSplit(ReadFile("/proc/stat"), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    int64_t seconds = 0;
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtoi(words[1], &seconds)) {
      return static_cast<double>(seconds);
    }
  }
  return std::nullopt;
}

std::optional<int64_t> CountDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return std::nullopt;
  int64_t entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  constexpr int64_t kNotOurs = 3;  // `.`, `..`, and the descriptor of the open folder
  return entries - kNotOurs;
}

}  // namespace

void AddProcessMetrics(Metrics* metrics) {
  const Counter cpu = metrics->AddCounter("process_cpu_seconds_total",
                                          "Processor time of the process, user and system.");
  const Gauge open_descriptors =
      metrics->AddGauge("process_open_fds", "File descriptors that are open.");
  const Gauge max_descriptors =
      metrics->AddGauge("process_max_fds", "Limit of open file descriptors.");
  const Gauge resident =
      metrics->AddGauge("process_resident_memory_bytes", "Memory of the process in RAM.");
  const Gauge virtual_memory =
      metrics->AddGauge("process_virtual_memory_bytes", "Address space of the process.");
  const Gauge start = metrics->AddGauge("process_start_time_seconds",
                                        "When the process started, in seconds since 1970.");
  const std::optional<double> boot = BootTime();
  metrics->OnScrape([=] {
    if (const std::optional<ProcessStat> stat = ReadStat(); stat.has_value()) {
      cpu.RaiseTo(stat->cpu_seconds);
      resident.Set(stat->resident_bytes);
      virtual_memory.Set(stat->virtual_bytes);
      if (boot.has_value()) start.Set(*boot + stat->start_seconds);
    }
    if (const std::optional<int64_t> count = CountDescriptors(); count.has_value()) {
      open_descriptors.Set(static_cast<double>(*count));
    }
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      max_descriptors.Set(static_cast<double>(limit.rlim_cur));
    }
  });
}

}  // namespace shardmesh::rpc

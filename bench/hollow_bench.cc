// Measures what many attached workers cost their coordinator: attaching, memory, heartbeats, one
// membership change, and a restart.
//
// clang-format off
//   hollow_bench WORKERS...    runs the program shardmesh-coordinator of its own folder
// clang-format on
//
// Prints one line of JSON per result; its id ends in the number of workers.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/listener.h"
#include "status/str_cat.h"
#include "tests/testing/hollow_workers.h"

extern char** environ;

namespace shardmesh {
namespace {

using test::HollowWorkers;

constexpr absl::Duration kTimeout = absl::Minutes(10);
// The benchmark waits until the workers have received no membership page for this time.
constexpr absl::Duration kQuiet = absl::Seconds(3);

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "hollow_bench: " << what << "\n";
  std::exit(1);
}

// A coordinator process, whose state is in a folder.
class Coordinator {
 public:
  Coordinator(std::string program, std::string folder, int64_t workers)
      : program_(std::move(program)), folder_(std::move(folder)), workers_(workers) {
    Start("127.0.0.1:0");
  }
  ~Coordinator() { Kill(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  const std::string& address() const { return address_; }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Restart() {
    Kill();
    Start(address_);
  }
  // Returns the processor time of all threads of the coordinator, user and system.
  double CpuSeconds() const {
    std::ifstream file(StrCat("/proc/", pid_, "/stat"));
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  int64_t ResidentBytes() const {
    std::ifstream file(StrCat("/proc/", pid_, "/statm"));
    int64_t size = 0;
    int64_t resident = 0;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

 private:
  void Start(const std::string& listen) {
    const std::string log = folder_ + "/log";
    std::filesystem::remove(log);
    std::vector<std::string> command = {program_, "--listen=" + listen,
                                        "--http-listen=", "--data-dir=" + folder_ + "/data",
                                        StrCat("--mesh=dp=", workers_)};
    std::vector<char*> arguments;
    for (std::string& each : command) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (posix_spawn(&pid_, program_.c_str(), &files, nullptr, arguments.data(), environ) != 0) {
      Fail("cannot start " + program_);
    }
    posix_spawn_file_actions_destroy(&files);
    static constexpr char kListening[] = "shardmesh-coordinator listening on ";
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      std::ifstream file(log);
      std::string line;
      while (std::getline(file, line)) {
        if (line.starts_with(kListening)) {
          address_ = line.substr(sizeof(kListening) - 1);
          return;
        }
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    Fail("the coordinator does not listen; see " + log);
  }

  const std::string program_;
  const std::string folder_;
  const int64_t workers_;
  pid_t pid_ = 0;
  std::string address_;
};

// Targets for one membership change: upper bounds on the processor time of the coordinator, and on
// the bytes that all workers together receive.
constexpr double kMostChangeMilliseconds = 50;
constexpr double kMostChangeBytes = 10e6;

void Print(int64_t workers, std::string_view what, double ours, std::string_view unit,
           double most = 0) {
  nlohmann::json line = {{"id", StrCat("G1-", workers)},
                         {"what", what},
                         {"ours", ours},
                         {"peer", nullptr},
                         {"unit", unit},
                         {"ratio", nullptr},
                         {"target", nullptr},
                         {"met", nullptr}};
  if (most > 0) {
    line["ratio"] = ours / most;
    line["target"] = StrCat("<= ", static_cast<int64_t>(most), " ", unit);
    line["met"] = ours <= most;
  }
  std::cout << line.dump() << std::endl;
}

// Waits until the coordinator has sent the workers no membership page for kQuiet.
HollowWorkers::Totals AwaitQuiet(HollowWorkers& workers) {
  HollowWorkers::Totals last = workers.totals();
  absl::Time since = absl::Now();
  while (absl::Now() - since < kQuiet) {
    absl::SleepFor(absl::Milliseconds(50));
    const HollowWorkers::Totals now = workers.totals();
    if (now.membership_pages != last.membership_pages || now.members != last.members) {
      since = absl::Now();
    }
    last = now;
  }
  return last;
}

void Measure(const std::string& program, int64_t count) {
  std::string folder = (std::filesystem::temp_directory_path() / "hollow_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) Fail("cannot make a folder");
  const auto print = [count](std::string_view what, double ours, std::string_view unit,
                             double most = 0) { Print(count, what, ours, unit, most); };
  {
    Coordinator coordinator(program, folder, count);
    const int64_t empty_bytes = coordinator.ResidentBytes();
    double cpu = coordinator.CpuSeconds();
    absl::Time started = absl::Now();
    auto workers = HollowWorkers::Start({.coordinator = coordinator.address(), .count = count});
    if (!workers.ok()) Fail(workers.status().ToString());
    const auto await = [&](int64_t members) {
      if (!(*workers)->AwaitMembers(members, kTimeout)) {
        Fail(StrCat((*workers)->totals().members, " of ", members,
                    " workers are members: ", (*workers)->totals().last_end));
      }
    };
    await(count);
    print("all attach at once, and know of one another",
          absl::ToDoubleSeconds(absl::Now() - started), "s");
    HollowWorkers::Totals before = AwaitQuiet(**workers);
    print("processor time of it", coordinator.CpuSeconds() - cpu, "s");
    print("what they are told of one another meanwhile",
          static_cast<double>(before.membership_bytes), "bytes");
    print("memory of the coordinator for each",
          static_cast<double>((coordinator.ResidentBytes() - empty_bytes) / count), "bytes");

    // Measure the cost of only the heartbeats, while the membership does not change.
    cpu = coordinator.CpuSeconds();
    started = absl::Now();
    absl::SleepFor(absl::Seconds(10));
    const double idle =
        (coordinator.CpuSeconds() - cpu) / absl::ToDoubleSeconds(absl::Now() - started);
    print("processor time of their heartbeats", 1e3 * idle, "ms a second");

    // Measure one membership change: a worker is lost. The heartbeats continue, and their cost is
    // subtracted.
    cpu = coordinator.CpuSeconds();
    started = absl::Now();
    (*workers)->Leave(0);
    await(count - 1);
    const HollowWorkers::Totals after = AwaitQuiet(**workers);
    const double seconds = absl::ToDoubleSeconds(absl::Now() - started);
    print("one is lost: processor time until all have said that they know",
          1e3 * (coordinator.CpuSeconds() - cpu - idle * seconds), "ms", kMostChangeMilliseconds);
    print("one is lost: what all are told",
          static_cast<double>(after.membership_bytes - before.membership_bytes), "bytes",
          kMostChangeBytes);
    (*workers)->Return(0);
    await(count);
    AwaitQuiet(**workers);

    started = absl::Now();
    coordinator.Restart();
    // Wait until workers have attached to the new process. Do not wait for `members`, which still
    // has the old count.
    const int64_t attaches = (*workers)->totals().attaches;
    const bool is_back = (*workers)->Await(
        [&](const HollowWorkers::Totals& now) {
          return now.attaches >= attaches + count / 2 && now.members == count;
        },
        kTimeout);
    if (!is_back) Fail("not all workers came back: " + (*workers)->totals().last_end);
    print("all are back after a kill of the coordinator",
          absl::ToDoubleSeconds(absl::Now() - started), "s");
  }
  std::filesystem::remove_all(folder);
}

int Main(int argc, char** argv) {
  rpc::RaiseDescriptorLimit();
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "shardmesh-coordinator")
          .string();
  if (argc < 2) Fail("name numbers of workers, such as 256 1024");
  for (int i = 1; i < argc; ++i) {
    const int64_t count = std::atoll(argv[i]);
    if (count < 2) Fail(StrCat(argv[i], " is no number of workers from 2 on"));
    Measure(program, count);
  }
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) { return shardmesh::Main(argc, argv); }

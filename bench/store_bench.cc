// Measures the cost of an acknowledged write to the coordinator's store, compared with a plain
// fdatasync, and the writes per second with 32 waiting writers. Usage: store_bench [FOLDER]; prints
// one line of JSON per result.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/store/sqlite_store.h"
#include "server/store/store.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int kRounds = 9;
constexpr int kWritesPerRound = 300;
constexpr int kWriters = 32;
constexpr int kWritesPerWriter = 500;
constexpr size_t kValueBytes = 200;  // about the size of an array's record in the store

[[noreturn]] void Fail(std::string_view what) {
  std::fprintf(stderr, "store_bench: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void CommitOne(Store& store, const std::string& key) {
  const absl::StatusOr<Revision> revision =
      CommitAndWait(store, {.puts = {{key, std::string(kValueBytes, 'v')}}});
  if (!revision.ok()) Fail(revision.status().ToString());
}

// Makes a round of calls; returns the median time of a call in microseconds.
template <typename Call>
double RoundMedian(Call call) {
  std::vector<double> times;
  for (int i = 0; i < kWritesPerRound; ++i) {
    const absl::Time start = absl::Now();
    call(i);
    times.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  return Median(std::move(times));
}

void Print(const std::string& what, double ours, nlohmann::json peer, const std::string& unit,
           double ratio, const std::string& target, bool met) {
  const nlohmann::json line = {{"id", "S2"},   {"what", what},   {"ours", ours},     {"peer", peer},
                               {"unit", unit}, {"ratio", ratio}, {"target", target}, {"met", met}};
  std::printf("%s\n", line.dump().c_str());
}

int Main(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<Store>> opened = OpenSqliteStore({.folder = folder + "/store"});
  if (!opened.ok()) Fail(opened.status().ToString());
  Store& store = **opened;

  // Measure the cost of only the disk: write and sync a block of a file whose blocks are already
  // allocated. SQLite's write-ahead log is such a file, because each checkpoint starts the log
  // again at its beginning.
  const std::string file = folder + "/fdatasync";
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) Fail(StrCat("cannot write ", file));
  const std::string block(4096, 'b');
  for (int i = 0; i < kWritesPerRound; ++i) {
    if (write(fd, block.data(), block.size()) < 0) Fail(StrCat("cannot write ", file));
  }
  fsync(fd);
  std::vector<double> ours;
  std::vector<double> peer;
  for (int round = 0; round < kRounds; ++round) {  // so that both kinds of write see the same disk
    peer.push_back(RoundMedian([&](int i) {
      if (pwrite(fd, block.data(), block.size(), i * 4096) < 0 || fdatasync(fd) != 0)
        Fail("fdatasync failed");
    }));
    ours.push_back(RoundMedian([&](int i) { CommitOne(store, StrCat("latency/", i)); }));
  }
  close(fd);
  const double ratio = Median(ours) / Median(peer);
  Print("acknowledged write p50, beside write and fdatasync of 4 KiB", Median(ours), Median(peer),
        "us", ratio, "ratio <= 1.5", ratio <= 1.5);

  const absl::Time start = absl::Now();
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&store, w] {
      for (int i = 0; i < kWritesPerWriter; ++i) CommitOne(store, StrCat("writer/", w, "/", i));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const double rate = kWriters * kWritesPerWriter / absl::ToDoubleSeconds(absl::Now() - start);
  Print("acknowledged writes per second with 32 writers", rate, nullptr, "writes/s", rate / 5000,
        ">= 5000 writes/s", rate >= 5000);
  return 0;
}

}  // namespace
}  // namespace shardmesh::server

int main(int argc, char** argv) {
  std::string folder = (std::filesystem::temp_directory_path() / "store_bench_XXXXXX").string();
  if (argc > 1) folder = std::string(argv[1]) + "/store_bench_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "store_bench: cannot make a folder like %s\n", folder.c_str());
    return 1;
  }
  const int code = shardmesh::server::Main(folder);
  std::filesystem::remove_all(folder);
  return code;
}

// Second loads of a checkpoint: nothing of it moves, whichever process was restarted meanwhile, and
// also after its arrays were released.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/tensor_source.h"
#include "tensor/npy.h"
#include "tensor/source_file.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/eventually.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kWorkers = 4;

class ReuseTest : public ::testing::Test {
 protected:
  ~ReuseTest() override {
    cluster_.reset();
    std::filesystem::remove_all(files_);
  }

  // Without repairs, which would bring back what the tests damage.
  void StartCluster(std::vector<std::string> worker_flags = {}) {
    worker_flags.push_back("--read-root=" + files_);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start(
            {.durable = true, .coordinator_flags = {"--no-repair"}, .worker_flags = worker_flags}));
    rules_ = WriteFile(files_ + "/rules.yaml", "rules:\n- {pattern: '.*', spec: [tp, fsdp]}\n");
    columns_ = WriteFile(files_ + "/columns.yaml", "rules:\n- {pattern: '.*', spec: [null, tp]}\n");
  }
  // Writes a checkpoint of 87 MiB, and waits until a later change cannot have its change time.
  void Write(int seed = 1) {
    ASSERT_THAT(cluster_->Run({"make-checkpoint", "--out", model_, StrCat("--seed=", seed)}),
                Succeeded());
    AwaitOld();
  }
  void AwaitOld() const { AwaitOld(model_); }
  static void AwaitOld(const std::string& path) {
    struct stat state = {};
    ASSERT_EQ(::stat(path.c_str(), &state), 0);
    const absl::Time changed = absl::TimeFromTimespec(state.st_ctim);
    ASSERT_TRUE(Eventually([&] { return !MayChangeUnseen(changed, absl::Now()); }));
  }
  json Load(std::vector<std::string> flags = {}) {
    std::vector<std::string> command = {"load", model_, "--quiet", "--output=json"};
    const bool has_rules = std::any_of(flags.begin(), flags.end(), [](const std::string& flag) {
      return flag.starts_with("--rules=");
    });
    if (!has_rules) command.push_back("--rules=" + rules_);
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult result = cluster_->Run(command);
    EXPECT_EQ(result.exit_code, 0) << StrJoin(command, " ") << "\n" << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json();
  }
  // Makes a change, calls `put`, and returns its report. Repeats both, a few times at most, if more
  // than `most_bytes` were sent: if workers give no digests in time, the client sends what they may
  // have.
  static json PutAfter(const std::function<void()>& change, const std::function<json()>& put,
                       int64_t most_bytes) {
    constexpr int kMaxPuts = 4;
    json result;
    for (int puts = 0; puts < kMaxPuts && !HasFatalFailure(); ++puts) {
      change();
      result = put();
      if (result.is_null() || result["sent_bytes"] <= most_bytes) break;
    }
    return result;
  }
  // The bytes that all workers filled so far, by where the bytes came from.
  int64_t Filled(const std::string& from) {
    int64_t sum = 0;
    const std::vector<std::string> addresses = cluster_->metrics_addresses();
    for (size_t i = 1; i < addresses.size(); ++i) {
      sum +=
          Metric(addresses[i], StrCat("shardmesh_worker_filled_bytes_total{from=\"", from, "\"}"));
    }
    return sum;
  }
  static int64_t Metric(const std::string& address, const std::string& series) {
    const auto values = MetricValues(address);
    EXPECT_THAT(values, IsOk()) << address;
    if (!values.ok()) return -1;
    const auto found = values->find(series);
    EXPECT_NE(found, values->end()) << address << " has no " << series;
    return found == values->end() ? -1 : static_cast<int64_t>(found->second);
  }
  void Restart(const std::vector<std::string>& identities) {
    for (const std::string& identity : identities) ASSERT_THAT(cluster_->Kill(identity), IsOk());
    for (const std::string& identity : identities) ASSERT_THAT(cluster_->Restart(identity), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  }
  json Status() { return json::parse(cluster_->Run({"status", "-ojson"}).out); }
  // Removes all names.
  void Remove() {
    const CommandResult removed = cluster_->Run({"rm", "--tree="});
    ASSERT_EQ(removed.exit_code, 0) << removed.err;
  }
  static std::vector<std::string> AllWorkers() {
    std::vector<std::string> workers;
    for (int i = 0; i < kWorkers; ++i) workers.push_back(StrCat("worker-", i));
    return workers;
  }
  // Whether the arrays have the bytes of the file, below a prefix of their names.
  bool HasTheFilesBytes(const std::string& prefix = "") {
    const auto source = TensorSource::Open(model_);
    EXPECT_THAT(source, IsOk());
    for (const SourceTensor& tensor : source->tensors()) {
      const auto gathered =
          cluster_->client().arrays().Gather(client::ArraySelector::ByName(prefix + tensor.name));
      EXPECT_THAT(gathered, IsOk());
      if (!gathered.ok() || gathered->view().bytes() != tensor.view.bytes()) return false;
    }
    return true;
  }

  const std::string files_ = std::filesystem::canonical(MakeTestFolder("reuse")).string();
  const std::string model_ = files_ + "/model.safetensors";
  std::string rules_;
  std::string columns_;
  std::unique_ptr<TestCluster> cluster_;
};

void ExpectNothingMoved(const json& load) {
  EXPECT_EQ(load["sent_bytes"], 0);
  EXPECT_EQ(load["moved_bytes"], 0);
  EXPECT_EQ(load["reused_bytes"], load["tile_bytes"]);
  EXPECT_EQ(load["reused_tensors"], load["tensors"].size());
}

TEST_F(ReuseTest, ASecondLoadMovesNothingAfterAnyRestart) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  EXPECT_EQ(first["reused_bytes"], 0);
  EXPECT_EQ(Filled("files"), first["tile_bytes"]);
  std::vector<std::string> all = AllWorkers();
  all.push_back("coordinator");
  const std::vector<std::vector<std::string>> restarts = {{}, AllWorkers(), {"coordinator"}, all};
  for (const std::vector<std::string>& restarted : restarts) {
    ASSERT_NO_FATAL_FAILURE(Restart(restarted));
    const int64_t before = Filled("files");
    for (const std::string source : {"auto", "workers", "client"}) {
      const json second = Load({"--source=" + source});
      ExpectNothingMoved(second);
      EXPECT_EQ(second["durability"], first["durability"]);
    }
    EXPECT_EQ(Filled("files"), before);
    EXPECT_EQ(Filled("workers"), 0);
  }
  EXPECT_TRUE(HasTheFilesBytes());
  EXPECT_THAT(cluster_->Run({"load", model_, "--rules", rules_, "--quiet"}).out,
              AllOf(HasSubstr("all on the workers already"), HasSubstr("--no-reuse")));
  const json anew = Load({"--no-reuse"});
  EXPECT_EQ(anew["reused_bytes"], 0);
  EXPECT_EQ(Filled("files"), anew["tile_bytes"]);
  EXPECT_THAT(cluster_->Run({"load", model_, "--rules", rules_, "--quiet", "--no-reuse"}).out,
              AllOf(HasSubstr("read by the workers"), Not(HasSubstr("already"))));
  const std::string coordinator = cluster_->metrics_addresses()[0];
  EXPECT_EQ(Metric(coordinator, "shardmesh_put_reused_bytes_total"),
            4 * first["tile_bytes"].get<int64_t>())
      << "of the loads since its last restart";
}

TEST_F(ReuseTest, WhatTheClientSentIsReusedToo) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load({"--source=client"});
  EXPECT_EQ(first["sent_bytes"], first["tile_bytes"]);
  ExpectNothingMoved(Load({"--source=client"}));
  ExpectNothingMoved(Load());
  // A conversion is a part of the origin.
  const json converted = Load({"--dtype=BF16"});
  EXPECT_EQ(converted["reused_tensors"], 1) << "the integers, which are not converted";
  EXPECT_EQ(converted["read_by"], "workers");
  ASSERT_NO_FATAL_FAILURE(Restart({"coordinator"}));
  // Client and workers give converted elements the same origin.
  ExpectNothingMoved(Load({"--dtype=BF16"}));
  ExpectNothingMoved(Load({"--dtype=BF16", "--source=client"}));
  EXPECT_EQ(Load({"--dtype=F16"})["reused_tensors"], 1);
}

TEST_F(ReuseTest, OtherNamesShareAndOtherLayoutsCopy) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  Load();
  const std::string map =
      WriteFile(files_ + "/map.yaml", "tensors:\n- {pattern: '^', replace: 'other/'}\n");
  ExpectNothingMoved(Load({"--map=" + map}));
  EXPECT_TRUE(HasTheFilesBytes("other/"));
  const int64_t read = Filled("files");
  const json columns = Load({"--rules=" + columns_});
  EXPECT_EQ(columns["sent_bytes"], 0);
  EXPECT_EQ(columns["reused_bytes"], columns["tile_bytes"]);
  EXPECT_EQ(Filled("files"), read);
  EXPECT_EQ(columns["moved_bytes"], Filled("workers"));
  EXPECT_EQ(columns["tile_bytes"], Filled("workers") + Filled("own"));
  EXPECT_GT(Filled("own"), 0) << "a region that is there does not travel";
  EXPECT_TRUE(HasTheFilesBytes());
  EXPECT_TRUE(HasTheFilesBytes("other/"));
  ExpectNothingMoved(Load({"--rules=" + columns_}));
  // The text does not say that all was there beside a number of bytes that moved.
  const std::string whole =
      WriteFile(files_ + "/whole.yaml", "rules:\n- {pattern: '.*', spec: []}\n");
  EXPECT_THAT(
      cluster_->Run({"load", model_, "--rules", whole, "--quiet"}).out,
      AllOf(HasSubstr("copied from arrays on the workers, "), HasSubstr(" between workers; "),
            HasSubstr("were not read: the workers had their elements, some in another "),
            Not(HasSubstr("already"))));
}

TEST_F(ReuseTest, AReleasedCheckpointComesBackFromTheCacheAfterAnyRestart) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  const auto tensors = std::ssize(first["tensors"]);
  EXPECT_EQ(Status()["cached_arrays"], 0);
  std::vector<std::string> all = AllWorkers();
  all.push_back("coordinator");
  for (const std::vector<std::string>& restarted : {std::vector<std::string>{}, all}) {
    ASSERT_NO_FATAL_FAILURE(Remove());
    ASSERT_NO_FATAL_FAILURE(Restart(restarted));
    const json status = Status();
    EXPECT_EQ(status["arrays"], 0);
    EXPECT_EQ(status["cached_arrays"], tensors);
    EXPECT_EQ(status["cached_bytes"], first["tile_bytes"]);
    EXPECT_EQ(json::parse(cluster_->Run({"ls", "-ojson"}).out).size(), 0U);
    EXPECT_THAT(cluster_->Run({"status"}).out, HasSubstr("admin cache drop"));
    ExpectNothingMoved(Load());
    EXPECT_EQ(Status()["cached_arrays"], 0);
    EXPECT_TRUE(HasTheFilesBytes());
  }
  // In another layout, and under other names.
  ASSERT_NO_FATAL_FAILURE(Remove());
  const int64_t read = Filled("files");
  const json columns = Load({"--rules=" + columns_});
  EXPECT_EQ(columns["sent_bytes"], 0);
  EXPECT_EQ(columns["reused_bytes"], columns["tile_bytes"]);
  EXPECT_EQ(Filled("files"), read);
  EXPECT_TRUE(HasTheFilesBytes());
  EXPECT_EQ(Status()["cached_arrays"], tensors) << "those in the first layout";
  const std::string map =
      WriteFile(files_ + "/map.yaml", "tensors:\n- {pattern: '^', replace: 'other/'}\n");
  ExpectNothingMoved(Load({"--map=" + map}));
  EXPECT_TRUE(HasTheFilesBytes("other/"));

  ASSERT_NO_FATAL_FAILURE(Remove());
  EXPECT_EQ(Status()["cached_arrays"], 2 * tensors);
  const CommandResult dropped = cluster_->Run({"admin", "cache", "drop", "-ojson"});
  ASSERT_EQ(dropped.exit_code, 0) << dropped.err;
  EXPECT_EQ(json::parse(dropped.out)["arrays"], 2 * tensors);
  EXPECT_EQ(Status()["cached_bytes"], 0);
  EXPECT_EQ(Load()["reused_tensors"], 0);
  EXPECT_TRUE(HasTheFilesBytes());
  const std::string coordinator = cluster_->metrics_addresses()[0];
  EXPECT_EQ(Metric(coordinator, "shardmesh_cache_evictions_total"), 2 * tensors);
  EXPECT_GE(Metric(coordinator, "shardmesh_cache_hits_total"), 2 * tensors);
}

TEST_F(ReuseTest, OfAReleasedCheckpointOfTwoReplicasOnlyTheSecondOnesAreCopiedAgain) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load({"--replicas=2"});
  const auto tensors = std::ssize(first["tensors"]);
  const int64_t copied = Filled("workers");
  ASSERT_GT(copied, 0);
  const auto complete = [&](const json& tensor) -> int64_t {
    const auto array = cluster_->client().arrays().DescribeArray(
        client::ArraySelector::ByName(tensor["name"].get<std::string>()));
    EXPECT_THAT(array, IsOk());
    return array.ok() && array->replicas.has_value() ? array->replicas->complete : 0;
  };
  std::vector<std::string> all = AllWorkers();
  all.push_back("coordinator");
  for (const std::vector<std::string>& restarted : {std::vector<std::string>{}, all}) {
    ASSERT_NO_FATAL_FAILURE(Remove());
    ASSERT_NO_FATAL_FAILURE(Restart(restarted));
    const json status = Status();
    EXPECT_EQ(status["arrays"], 0);
    EXPECT_EQ(status["cached_arrays"], tensors);
    EXPECT_EQ(status["cached_bytes"], first["tile_bytes"]) << "the second replicas are released";
    const int64_t read_before = Filled("files");
    const int64_t copied_before = Filled("workers");
    ExpectNothingMoved(Load({"--replicas=2"}));
    EXPECT_EQ(Filled("files"), read_before);
    EXPECT_EQ(Filled("workers"), copied_before + copied);
    for (const json& tensor : first["tensors"]) EXPECT_EQ(complete(tensor), 2) << tensor["name"];
    EXPECT_TRUE(HasTheFilesBytes());
  }
  // Without the option, the arrays come back with one replica.
  ASSERT_NO_FATAL_FAILURE(Remove());
  const int64_t copied_before = Filled("workers");
  ExpectNothingMoved(Load());
  for (const json& tensor : first["tensors"]) EXPECT_EQ(complete(tensor), 0) << tensor["name"];
  EXPECT_EQ(Filled("workers"), copied_before);
  EXPECT_TRUE(HasTheFilesBytes());
}

TEST_F(ReuseTest, WhatIsCachedIsNeverMoreThanItsLimitAndGoesWithItsTiles) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--cache-bytes=8MiB"}));
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  ASSERT_NO_FATAL_FAILURE(Remove());
  json status = Status();
  EXPECT_GT(status["cached_arrays"], 0);
  for (const json& worker : status["workers"]) {
    EXPECT_LE(worker["cached_bytes"], 8 << 20) << worker["identity"];
    EXPECT_GT(worker["cached_bytes"], 0) << worker["identity"];
  }
  const json second = Load();
  EXPECT_GT(second["reused_tensors"], 0);
  EXPECT_LT(second["reused_tensors"], second["tensors"].size());
  EXPECT_TRUE(HasTheFilesBytes());

  // A worker that has lost its folder meanwhile takes all out of the cache.
  ASSERT_NO_FATAL_FAILURE(Remove());
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  const std::string arrays = cluster_->folder() + "/data/worker-1/arrays";
  std::filesystem::remove_all(arrays);
  std::filesystem::create_directory(arrays);
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(Status()["cached_arrays"], 0);
  EXPECT_EQ(Load()["reused_tensors"], 0);
  EXPECT_TRUE(HasTheFilesBytes());
}

TEST_F(ReuseTest, AnotherCheckpointAndAStepTakeTheMemoryOfTheCache) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--memory=64MiB", "--cache-bytes=64MiB"}));
  for (int seed = 1; seed <= 3; ++seed) {
    ASSERT_NO_FATAL_FAILURE(Write(seed));
    EXPECT_EQ(Load()["reused_tensors"], 0) << seed;
    EXPECT_TRUE(HasTheFilesBytes()) << seed;
    ASSERT_NO_FATAL_FAILURE(Remove());
  }
  const json before = Status();
  EXPECT_GT(before["cached_arrays"], 0);
  // 24 MiB of memory on each worker for the operand, and as much for the result.
  const std::string big = files_ + "/big.npy";
  const std::vector<std::vector<std::string>> commands = {
      {"make-tensor", "--shape=3072,2048", "--out=" + big},
      {"put", big, "--as=big", "--spec=-,-"},
      {"collective", "all-reduce", "big", "--axes=tp", "--as=sum"}};
  for (const std::vector<std::string>& command : commands) {
    const CommandResult done = cluster_->Run(command);
    ASSERT_EQ(done.exit_code, 0) << StrJoin(command, " ") << "\n" << done.err;
  }
  EXPECT_LT(Status()["cached_bytes"], before["cached_bytes"]);
}

TEST_F(ReuseTest, AReshardKeepsTheOrigin) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  Load();
  const CommandResult moved = cluster_->Run({"reshard", "--tree=", "--rules", columns_});
  ASSERT_EQ(moved.exit_code, 0) << moved.err;
  ExpectNothingMoved(Load({"--rules=" + columns_}));
  EXPECT_TRUE(HasTheFilesBytes());
}

TEST_F(ReuseTest, AFileThatWasWrittenAgainIsReadAnew) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  Load();
  const auto size_bytes = std::filesystem::file_size(model_);
  const auto time = std::filesystem::last_write_time(model_);
  const std::vector<std::function<void()>> changes = {
      [&] { Write(2); },
      [&] {  // in place, and its time set back
        std::fstream file(model_, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-1, std::ios::end);
        file.put('!');
        file.close();
        std::filesystem::last_write_time(model_, time);
      },
      [&] {  // another file of the same time, renamed
        const std::string other = model_ + ".new";
        std::filesystem::copy_file(model_, other);
        std::fstream file(other, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-2, std::ios::end);
        file.put('?');
        file.close();
        std::filesystem::last_write_time(other, time);
        std::filesystem::rename(other, model_);
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    changes[i]();
    ASSERT_EQ(std::filesystem::file_size(model_), size_bytes);
    ASSERT_NO_FATAL_FAILURE(AwaitOld());
    const json load = Load({i == 1 ? "--source=client" : "--source=auto"});
    if (i == 1) {  // the client compares the content
      EXPECT_GT(load["reused_tensors"], 0);
      EXPECT_GT(load["sent_bytes"], 0);
    } else {
      EXPECT_EQ(load["reused_tensors"], 0) << "change " << i;
    }
    EXPECT_TRUE(HasTheFilesBytes()) << "change " << i;
    ExpectNothingMoved(Load());
  }
}

// A load by the client of the same bytes from another place.
TEST_F(ReuseTest, TheContentOfACopiedTouchedOrRenamedFileIsNotSentAgain) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  int64_t read = Filled("files");
  // Tensors below 64 KiB are sent without a question.
  const auto small = [&] {
    int64_t bytes = 0;
    const auto source = TensorSource::Open(model_);
    EXPECT_THAT(source, IsOk());
    for (const SourceTensor& tensor : source->tensors()) {
      if (tensor.view.size_bytes() < 64 << 10) bytes += tensor.view.size_bytes();
    }
    return bytes;
  }();
  const auto expect_reused = [&](const json& load, const std::string& what) {
    EXPECT_LE(load["sent_bytes"], kWorkers * small) << what;
    EXPECT_GE(load["reused_bytes"], load["tile_bytes"].get<int64_t>() - kWorkers * small) << what;
    EXPECT_EQ(Filled("files"), read) << what;
  };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"touched",
       [&] {
         std::filesystem::last_write_time(
             model_, std::filesystem::last_write_time(model_) + std::chrono::hours(1));
       }},
      {"copied",
       [&] {
         std::filesystem::copy_file(model_, model_ + ".copy");
         std::filesystem::rename(model_ + ".copy", model_);
       }},
      {"elsewhere", [&] {
         std::filesystem::rename(model_, files_ + "/renamed.safetensors");
         std::filesystem::copy_file(files_ + "/renamed.safetensors", model_);
       }}};
  for (const auto& [what, change] : changes) {
    change();
    ASSERT_NO_FATAL_FAILURE(AwaitOld());
    const json load = Load({"--source=client"});
    expect_reused(load, what);
    EXPECT_EQ(load["moved_bytes"], 0) << what;
    EXPECT_TRUE(HasTheFilesBytes()) << what;
    ExpectNothingMoved(Load());  // by its origin from now on
  }
  // Under other names, and in another layout.
  std::filesystem::copy_file(model_, model_ + ".copy");
  std::filesystem::rename(model_ + ".copy", model_);
  ASSERT_NO_FATAL_FAILURE(AwaitOld());
  const std::string map =
      WriteFile(files_ + "/map.yaml", "tensors:\n- {pattern: '^', replace: 'other/'}\n");
  expect_reused(Load({"--source=client", "--map=" + map}), "other names");
  EXPECT_TRUE(HasTheFilesBytes("other/"));
  std::filesystem::copy_file(model_, model_ + ".copy");
  std::filesystem::rename(model_ + ".copy", model_);
  ASSERT_NO_FATAL_FAILURE(AwaitOld());
  const json columns = Load({"--source=client", "--rules=" + columns_});
  expect_reused(columns, "columns");
  EXPECT_GT(columns["moved_bytes"], 0);
  EXPECT_TRUE(HasTheFilesBytes());
  EXPECT_TRUE(HasTheFilesBytes("other/"));

  // From the cache, also after a restart of all processes.
  ASSERT_NO_FATAL_FAILURE(Remove());
  std::vector<std::string> all = AllWorkers();
  all.push_back("coordinator");
  ASSERT_NO_FATAL_FAILURE(Restart(all));
  read = 0;  // the counts have begun anew
  std::filesystem::last_write_time(model_, std::filesystem::last_write_time(model_));
  ASSERT_NO_FATAL_FAILURE(AwaitOld());
  expect_reused(Load({"--source=client"}), "cached");
  EXPECT_TRUE(HasTheFilesBytes());
  const json anew = Load({"--source=client", "--no-reuse"});
  EXPECT_EQ(anew["sent_bytes"], first["tile_bytes"]);
}

// Workers read a copy again, unless there is no room for it beside the arrays that have its
// content.
TEST_F(ReuseTest, ACopyThatWorkersHaveNoRoomToReadIsComparedWithTheArrays) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--memory=40MiB"}));
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  EXPECT_GT(first["tile_bytes"], int64_t{84} << 20) << "more than half of the memory";
  EXPECT_EQ(Filled("files"), first["tile_bytes"]);
  std::filesystem::last_write_time(
      model_, std::filesystem::last_write_time(model_) + std::chrono::hours(1));
  ASSERT_NO_FATAL_FAILURE(AwaitOld());
  const CommandResult anew =
      cluster_->Run({"load", model_, "--rules", rules_, "--quiet", "--no-reuse"});
  EXPECT_NE(anew.exit_code, 0) << anew.out;
  EXPECT_THAT(anew.err, HasSubstr("start workers with more --memory"));
  EXPECT_EQ(Filled("files"), first["tile_bytes"]);

  const json copy = Load();
  EXPECT_EQ(copy["sent_bytes"], 0);
  EXPECT_EQ(copy["moved_bytes"], 0);
  EXPECT_GT(copy["read_bytes"], 0) << "of tensors below 64 KiB";
  EXPECT_LT(copy["read_bytes"], first["tile_bytes"].get<int64_t>() / 16);
  EXPECT_EQ(copy["read_bytes"].get<int64_t>() + copy["reused_bytes"].get<int64_t>(),
            copy["tile_bytes"]);
  EXPECT_EQ(Filled("files") - first["tile_bytes"].get<int64_t>(), copy["read_bytes"]);
  EXPECT_EQ(copy["read_by"], "workers");
  EXPECT_TRUE(HasTheFilesBytes());
  ExpectNothingMoved(Load());  // by its origin from now on
}

TEST_F(ReuseTest, OfAContentThatDiffersByOneByteOnlyThatTileIsSent) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(Write());
  const json first = Load();
  // The largest tensor has four tiles, one on each worker.
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  {
    const auto source = TensorSource::Open(model_);
    ASSERT_THAT(source, IsOk());
    for (const SourceTensor& tensor : source->tensors()) {
      if (tensor.view.size_bytes() <= size_bytes) continue;
      size_bytes = tensor.view.size_bytes();
      offset_bytes = tensor.offset_bytes;
    }
  }
  // Replaces the file by a copy, in which the byte of that tensor at this place is another one.
  const auto replace = [&](std::optional<int64_t> place) {
    const std::string copy = model_ + ".copy";
    std::filesystem::copy_file(model_, copy);
    if (place.has_value()) {
      std::fstream file(copy, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(offset_bytes + *place);
      const int byte = file.get();
      file.seekp(offset_bytes + *place);
      file.put(static_cast<char>(byte ^ 1));
    }
    std::filesystem::rename(copy, model_);
    AwaitOld();
  };
  const auto load_by_client = [&] { return Load({"--source=client"}); };
  const auto load_columns = [&] { return Load({"--source=client", "--rules=" + columns_}); };
  const json equal =
      PutAfter([&] { replace(std::nullopt); }, load_by_client, /*most_bytes=*/size_bytes / 16);
  const auto small_bytes = equal["sent_bytes"].get<int64_t>();  // of tensors that are always sent
  EXPECT_LT(small_bytes, size_bytes / 16);

  int64_t copied = 0;
  const json load = PutAfter(
      [&] {
        replace(size_bytes / 2);
        copied = Filled("own");
      },
      load_by_client, /*most_bytes=*/small_bytes + size_bytes / 4);
  EXPECT_EQ(load["sent_bytes"], small_bytes + size_bytes / 4);
  EXPECT_EQ(load["moved_bytes"], 0);
  EXPECT_EQ(load["reused_bytes"],
            first["tile_bytes"].get<int64_t>() - load["sent_bytes"].get<int64_t>());
  EXPECT_EQ(load["reused_tensors"], equal["reused_tensors"].get<int64_t>() - 1);
  EXPECT_EQ(Filled("own") - copied, size_bytes / 4 * 3);
  EXPECT_TRUE(HasTheFilesBytes());
  ExpectNothingMoved(Load({"--source=client"}));

  // In another layout, the tiles are sent whose regions are not all there: those of the left half,
  // which two workers have.
  const json columns = PutAfter(
      [&] {
        Load();  // in the first layout, also before a repetition
        replace(0);
      },
      load_columns, /*most_bytes=*/size_bytes + size_bytes / 4 - 1);
  EXPECT_GE(columns["sent_bytes"], size_bytes);
  EXPECT_LT(columns["sent_bytes"], size_bytes + size_bytes / 4);
  EXPECT_GT(columns["moved_bytes"], 0);
  EXPECT_TRUE(HasTheFilesBytes());

  // After a restart of all processes.
  std::vector<std::string> all = AllWorkers();
  all.push_back("coordinator");
  const json restarted = PutAfter(
      [&] {
        replace(size_bytes - 1);
        Restart(all);
      },
      load_columns, /*most_bytes=*/size_bytes + size_bytes / 4 - 1);
  EXPECT_GE(restarted["sent_bytes"], size_bytes);
  EXPECT_LT(restarted["sent_bytes"], size_bytes + size_bytes / 4);
  EXPECT_TRUE(HasTheFilesBytes());
  const json anew = Load({"--source=client", "--rules=" + columns_, "--no-reuse"});
  EXPECT_EQ(anew["sent_bytes"], anew["tile_bytes"]);
}

// Three ranks get only copies, and one gets only the tile that the client sends.
TEST_F(ReuseTest, OfOneTensorWithAChangedTileOnlyThatTileIsSent) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string file = files_ + "/big.npy";
  constexpr int64_t kSizeBytes = int64_t{2048} * 2048 * 4;
  const CommandResult made = cluster_->Run({"make-tensor", "--shape=2048,2048", "--out=" + file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto put = [&]() -> json {
    const CommandResult result = cluster_->Run(
        {"put", file, "--as=big", "--spec=tp,fsdp", "--source=client", "--quiet", "-ojson"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json();
  };
  EXPECT_EQ(put()["sent_bytes"], kSizeBytes);
  for (const int64_t place : {int64_t{0}, kSizeBytes - 1}) {
    int64_t copied = 0;
    const auto change = [&] {
      const std::string copy = file + ".copy";
      std::filesystem::copy_file(file, copy);
      const int64_t header = static_cast<int64_t>(std::filesystem::file_size(copy)) - kSizeBytes;
      std::fstream stream(copy, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(header + place);
      const int byte = stream.get();
      stream.seekp(header + place);
      stream.put(static_cast<char>(byte ^ 1));
      stream.close();
      std::filesystem::rename(copy, file);
      AwaitOld(file);
      copied = Filled("own");
    };
    const json changed = PutAfter(change, put, /*most_bytes=*/kSizeBytes / 4);
    EXPECT_EQ(changed["sent_bytes"], kSizeBytes / 4) << place;
    EXPECT_EQ(changed["reused_bytes"], kSizeBytes / 4 * 3) << place;
    EXPECT_EQ(changed["moved_bytes"], 0) << place;
    EXPECT_EQ(Filled("own") - copied, kSizeBytes / 4 * 3) << place;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile source, NpyFile::Open(file));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::GatheredTensor gathered,
        cluster_->client().arrays().Gather(client::ArraySelector::ByName("big")));
    EXPECT_TRUE(gathered.view().bytes() == source.View().bytes()) << place;
  }
}

TEST_F(ReuseTest, ADegradedArrayIsLoadedAgain) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--scrub-interval=50ms"}));
  ASSERT_NO_FATAL_FAILURE(Write());
  Load();
  // A file of a tile changes on the disk: the worker writes it again from memory.
  const std::string arrays = cluster_->folder() + "/data/worker-1/arrays";
  std::string tile;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(arrays)) {
    if (entry.is_regular_file() && entry.file_size() > 100'000) tile = entry.path().string();
  }
  ASSERT_FALSE(tile.empty());
  const std::string sound = ReadFile(tile);
  {
    std::fstream file(tile, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(sound.back() ^ 1));
  }
  EXPECT_TRUE(Eventually([&] { return ReadFile(tile) == sound; }));
  const json again = Load();
  ExpectNothingMoved(again);

  // A worker whose tiles are damaged on the disk while it is away does not have them when it
  // returns.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  std::filesystem::remove_all(arrays);
  std::filesystem::create_directory(arrays);
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  const json anew = Load();
  EXPECT_EQ(anew["reused_tensors"], 0);
  EXPECT_TRUE(HasTheFilesBytes());
}

TEST_F(ReuseTest, ATileThatIsDamagedInMemoryAndOnDiskMakesItsArrayDegraded) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {"--scrub-interval=200ms", "--failpoints=scrub.memory=eio,tile_file.check=eio"}));
  ASSERT_NO_FATAL_FAILURE(Write());
  Load();
  EXPECT_TRUE(Eventually([&] {
    const json status = json::parse(cluster_->Run({"ls", "-ojson"}).out);
    return std::any_of(status.begin(), status.end(),
                       [](const json& array) { return array["state"] == "degraded"; });
  }));
  EXPECT_THAT(cluster_->Run({"admin", "quarantine", "list"}).out, HasSubstr("damaged in memory"));
}

}  // namespace
}  // namespace shardmesh::test

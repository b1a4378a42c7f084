// The note of `down` on workers that it does not stop, and the advice of `up` on one in its way.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cli/local/local_cluster.h"
#include "process/host_port.h"

namespace shardmesh::client {
namespace {

TEST(NoteOnUnrecordedTest, NamesTheWorkersAndSaysHowToEndThem) {
  EXPECT_EQ(NoteOnUnrecorded({}), "");
  EXPECT_EQ(NoteOnUnrecorded({{.identity = "spare", .pid = 12, .address = "127.0.0.1:1"}}),
            "Not stopped, because `up` did not start it: spare (pid 12); `kill 12` ends it");
  EXPECT_EQ(NoteOnUnrecorded({{.identity = "a", .pid = 12, .address = ""},
                              {.identity = "b", .pid = 0, .address = "10.0.0.2:7171"},
                              {.identity = "c", .pid = 34, .address = ""},
                              {.identity = "d", .pid = 0, .address = ""}}),
            "Not stopped, because `up` did not start them: a (pid 12), c (pid 34); `kill 12 34` "
            "ends them\n"
            "Not stopped, because not on this host: b (10.0.0.2:7171), d; end them there");
}

TEST(NoteOnUnrecordedTest, CountsManyWorkers) {
  std::vector<UnrecordedWorker> workers;
  for (int i = 1; i <= 20; ++i) workers.push_back({.identity = "w", .pid = i, .address = ""});
  const std::string note = NoteOnUnrecorded(workers);
  EXPECT_NE(note.find("w (pid 16) and 4 more; `kill 1 2 3"), std::string::npos) << note;
  EXPECT_EQ(note.find("17"), std::string::npos) << note;
}

TEST(AdviceOnHolderTest, SaysHowToEndTheProcessThatHasTheFolder) {
  EXPECT_EQ(AdviceOnHolder(""), "");
  EXPECT_EQ(AdviceOnHolder("(unknown)"), "");
  EXPECT_EQ(AdviceOnHolder(" on host a"), "");
  EXPECT_EQ(AdviceOnHolder("12x on host a"), "");
  EXPECT_EQ(AdviceOnHolder("12 on host " + HostName()),
            "process 12 has its data folder: `kill 12` ends it, then run "
            "`shardmesh up` again");
  EXPECT_EQ(AdviceOnHolder("12 on host not-" + HostName()),
            "process 12 on host not-" + HostName() +
                " has its data folder: end it there, then run `shardmesh up` again");
}

}  // namespace
}  // namespace shardmesh::client

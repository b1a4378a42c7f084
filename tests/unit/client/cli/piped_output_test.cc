// Output to pipes: all bytes come in order, and a stop ends the wait for a reader.
#include "client/cli/piped_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class PipedOutputTest : public ::testing::Test {
 protected:
  PipedOutputTest() {
    signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
  }
  ~PipedOutputTest() override {
    CloseReader();
    close(ends_[1]);
  }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // Reads `size` bytes, or up to the end.
  std::string Read(size_t size) {
    std::string text(size, '\0');
    size_t have = 0;
    while (have < size) {
      const ssize_t got = ::read(ends_[0], &text[have], size - have);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    text.resize(have);
    return text;
  }

  int ends_[2] = {-1, -1};
};

const SteadyDeadline kNone = SteadyDeadline::After(absl::InfiniteDuration());

std::string Text(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
  return text;
}

TEST_F(PipedOutputTest, AReaderGetsAllBytesInOrder) {
  const std::string text = Text(1'000'003);
  PipedOutput output(ends_[1], kNone);
  std::thread writer([&] { EXPECT_THAT(output.Write(text), IsOk()); });
  EXPECT_EQ(Read(text.size()), text);
  writer.join();
}

TEST_F(PipedOutputTest, AStopEndsTheWaitForAReaderThatDoesNotRead) {
  const std::string text = Text(10'000'000);
  PipedOutput output(ends_[1], kNone);
  std::thread stopper([&] {
    absl::SleepFor(absl::Milliseconds(200));
    output.Stop();
  });
  EXPECT_THAT(output.Write(text), StatusIs(absl::StatusCode::kCancelled));
  stopper.join();
  EXPECT_THAT(output.Write("more"), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(PipedOutputTest, AReaderThatTakesNothingIsWaitedForUntilTheDeadline) {
  PipedOutput first(ends_[1], kNone);
  EXPECT_THAT(first.Write("text"), IsOk());
  PipedOutput output(ends_[1], SteadyDeadline::After(absl::Milliseconds(200)));
  const absl::Status late = output.Write(Text(10'000'000));
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(late.message()), ::testing::HasSubstr("--deadline"));
}

// Short writes leave pages of the pipe partly empty, so that its free bytes are not all of use.
TEST_F(PipedOutputTest, AStopEndsTheWaitOfManyShortWrites) {
  PipedOutput output(ends_[1], kNone);
  std::thread stopper([&] {
    absl::SleepFor(absl::Milliseconds(200));
    output.Stop();
  });
  absl::Status status;
  while (status.ok()) status = output.Write(Text(5'000));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  stopper.join();
}

TEST_F(PipedOutputTest, APipeWithANameGetsAllBytesInOrder) {
  const std::string path =
      std::string(::testing::TempDir()) + "/piped_output_" + std::to_string(getpid()) + ".fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int both = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(both, 0);
  CloseReader();
  ends_[0] = both;
  const std::string text = Text(1'000'003);
  PipedOutput output(both, kNone);
  std::thread writer([&] { EXPECT_THAT(output.Write(text), IsOk()); });
  EXPECT_EQ(Read(text.size()), text);
  writer.join();
  unlink(path.c_str());
}

TEST_F(PipedOutputTest, ADeviceTakesAllBytes) {
  const int device = open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(device, 0);
  PipedOutput output(device, kNone);
  EXPECT_THAT(output.Write(Text(3'000'001)), IsOk());
  close(device);
}

TEST_F(PipedOutputTest, AReaderThatHasLeftIsAnError) {
  CloseReader();
  PipedOutput output(ends_[1], kNone);
  EXPECT_THAT(output.Write("text"), StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
}

TEST_F(PipedOutputTest, AFileTakesAllBytes) {
  std::string path = ::testing::TempDir() + "/piped_output_XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  const std::string text = Text(3'000'001);
  PipedOutput output(file, kNone);
  EXPECT_THAT(output.Write(text), IsOk());
  EXPECT_EQ(lseek(file, 0, SEEK_CUR), static_cast<off_t>(text.size()));
  close(file);
  unlink(path.c_str());
}

}  // namespace
}  // namespace shardmesh::client

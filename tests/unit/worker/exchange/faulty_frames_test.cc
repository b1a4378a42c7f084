// Collectives over frames that are delayed, overtaken, lost, repeated, corrupted and cut off: the
// result is right to the bit, or an error that names a rank, in time.
#include <gmock/gmock.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rpc/stream/frame.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/collective/collectives.h"
#include "worker/collective/mailbox.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRanks = 4;
constexpr size_t kFrameBytes = 1500;

enum class Fault { kDelay, kDrop, kDuplicate, kCorrupt, kCut };

// A frame's bytes with one bit turned over.
grpc::ByteBuffer Corrupted(const grpc::ByteBuffer& frame, std::mt19937& random) {
  std::vector<grpc::Slice> slices;
  frame.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// The ranks' connections. Frames go as PeerLink sends them and are taken as PeerLinks takes them:
// whoever gets one that is wrong breaks the connection, for both ends.
class FaultyNetwork {
 public:
  // Of a hundred frames `percent` meet with the fault.
  FaultyNetwork(Fault fault, uint32_t percent, uint32_t seed)
      : fault_(fault), percent_(percent), random_(seed) {
    for (DeviceId rank = 0; rank < kRanks; ++rank) {
      identities_.push_back(StrCat("worker-", rank));
      mailboxes_.push_back(std::make_unique<Mailbox>(Mailbox::Options()));
      links_.push_back(std::make_unique<RankLink>(this, rank));
    }
    for (auto& mailbox : mailboxes_) EXPECT_TRUE(mailbox->OpenStep(1, identities_).ok());
    postman_ = std::thread([this] { Deliver(); });
  }
  ~FaultyNetwork() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    postman_.join();
  }

  Link* link(DeviceId rank) { return links_[Index(rank)].get(); }
  int64_t faults() const {
    absl::MutexLock lock(&mutex_);
    return faults_;
  }
  // As a rank's executor does: what failed there ends the step on all.
  void Abort(const absl::Status& error) {
    for (auto& mailbox : mailboxes_) mailbox->Abort(1, error);
  }

 private:
  class RankLink final : public Link {
   public:
    RankLink(FaultyNetwork* network, DeviceId rank) : network_(network), rank_(rank) {}
    DeviceId rank() const override { return rank_; }
    absl::Status Begin(int64_t op, std::string signature) override {
      return network_->mailboxes_[Index(rank_)]->Begin(1, op, rank_, std::move(signature));
    }
    absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override {
      return network_->Send(rank_, peer, tag, message);
    }
    absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                       absl::Time deadline) override {
      return network_->mailboxes_[Index(rank_)]->Receive(peer, tag, message_bytes, deadline);
    }

   private:
    FaultyNetwork* const network_;
    const DeviceId rank_;
  };
  using Way = std::pair<DeviceId, DeviceId>;  // from, to
  using Queues = std::map<std::pair<Way, Tag>, std::deque<grpc::ByteBuffer>>;

  absl::Status Send(DeviceId from, DeviceId to, const Tag& tag, const OwnedBytes& message) {
    absl::MutexLock lock(&mutex_);
    for (size_t offset = 0; offset < message.bytes.size(); offset += kFrameBytes) {
      if (broken_.contains({from, to})) {
        return absl::UnavailableError(StrCat("rank ", to, " is gone"));
      }
      const absl::Span<const char> payload = message.bytes.subspan(offset, kFrameBytes);
      SHARDMESH_ASSIGN_OR_RETURN(
          const grpc::ByteBuffer frame,
          rpc::WriteFrame({.kind = rpc::FrameKind::kData,
                           .epoch = 1,
                           .tag = {.sequence = tag.step(),
                                   .op = static_cast<uint32_t>(tag.op()),
                                   .round = static_cast<uint32_t>(tag.round())},
                           .offset_bytes = static_cast<int64_t>(offset),
                           .message_bytes = static_cast<int64_t>(message.bytes.size())},
                          {&payload, 1}, message.owner));
      const auto post = [&](const grpc::ByteBuffer& posted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        queues_[{{from, to}, tag}].push_back(posted);
      };
      const bool is_hit = random_() % 100 < percent_;
      faults_ += is_hit;
      switch (is_hit ? fault_ : Fault::kDelay) {
        case Fault::kDelay:
          post(frame);
          break;
        case Fault::kDrop:
          break;
        case Fault::kDuplicate:
          post(frame);
          post(frame);
          break;
        case Fault::kCorrupt:
          post(Corrupted(frame, random_));
          break;
        case Fault::kCut:
          Break(from, to, "the network is cut");
          break;
      }
    }
    return absl::OkStatus();
  }

  // Takes frames of any tag next, but those of one tag in their order.
  void Deliver() {
    while (true) {
      std::pair<Way, Tag> key{{0, 0}, *Tag::Create(0, 0, 0)};
      grpc::ByteBuffer frame;
      {
        absl::MutexLock lock(&mutex_);
        if (stopped_) return;
        if (!queues_.empty()) {
          auto queue = queues_.begin();
          std::advance(queue, random_() % queues_.size());
          key = queue->first;
          frame = queue->second.front();
          queue->second.pop_front();
          if (queue->second.empty()) queues_.erase(queue);
          if (broken_.contains(key.first)) continue;
        }
      }
      if (!frame.Valid()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        continue;
      }
      if (const absl::Status taken = Take(key.first, frame); !taken.ok()) {
        absl::MutexLock lock(&mutex_);
        Break(key.first.first, key.first.second, std::string(taken.message()));
      }
    }
  }

  absl::Status Take(const Way& way, const grpc::ByteBuffer& bytes) {
    SHARDMESH_ASSIGN_OR_RETURN(const rpc::Frame frame, rpc::ReadFrame(bytes));
    SHARDMESH_ASSIGN_OR_RETURN(
        const Tag tag,
        Tag::Create(frame.header.tag.sequence, frame.header.tag.op, frame.header.tag.round));
    int64_t offset_bytes = frame.header.offset_bytes;
    for (const grpc::Slice& slice : frame.payload) {
      auto owner = std::make_shared<const grpc::Slice>(slice);
      const absl::Span<const char> piece(reinterpret_cast<const char*>(owner->begin()),
                                         owner->size());
      SHARDMESH_RETURN_IF_ERROR(
          mailboxes_[Index(way.second)]->Deliver(identities_[Index(way.first)], tag,
                                                 {.offset_bytes = offset_bytes,
                                                  .message_bytes = frame.header.message_bytes,
                                                  .content = {piece, owner}}));
      offset_bytes += static_cast<int64_t>(piece.size());
    }
    return absl::OkStatus();
  }

  void Break(DeviceId one, DeviceId other, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    broken_.insert({one, other});
    broken_.insert({other, one});
    mailboxes_[Index(one)]->FailWorker(identities_[Index(other)], why);
    mailboxes_[Index(other)]->FailWorker(identities_[Index(one)], why);
  }

  const Fault fault_;
  const uint32_t percent_;
  std::vector<std::string> identities_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::vector<std::unique_ptr<RankLink>> links_;

  mutable absl::Mutex mutex_;
  std::mt19937 random_ ABSL_GUARDED_BY(mutex_);
  Queues queues_ ABSL_GUARDED_BY(mutex_);
  std::set<Way> broken_ ABSL_GUARDED_BY(mutex_);
  int64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread postman_;
};

struct Outcome {
  absl::Status status;
  std::vector<char> result;
};

// An all-reduce of some thousand floats on all ranks.
std::vector<Outcome> AllReduceOver(FaultyNetwork& network, CollectiveAlgorithm algorithm,
                                   const std::vector<Bytes>& operands, absl::Duration patience) {
  std::vector<Outcome> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (DeviceId rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const DeviceGroup group = GroupOf(kRanks, rank);
      CollectiveCall call = CallOf(network.link(rank), group);
      call.deadline = absl::Now() + patience;
      const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, kRanks);
      const Bytes result = MakeBytes(static_cast<int64_t>(operands[0]->size()));
      Outcome& outcome = outcomes[Index(rank)];
      outcome.status =
          AllReduce(call, {.algorithm = algorithm, .order = CollectiveOrder::kReproducible},
                    combiner, Owned(operands[Index(rank)]), OwnedMutable(result));
      if (!outcome.status.ok()) network.Abort(outcome.status);
      outcome.result = *result;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

class FaultyFrames : public testing::TestWithParam<CollectiveAlgorithm> {
 protected:
  static constexpr int64_t kCount = 5003;

  FaultyFrames() {
    for (DeviceId rank = 0; rank < kRanks; ++rank) {
      operands_.push_back(OperandOf(Dtype::kF32, kCount, rank));
    }
    expected_ = PlainReduction(Reduction::kSum, Dtype::kF32, operands_, kCount);
  }

  std::vector<Bytes> operands_;
  std::vector<char> expected_;
};

INSTANTIATE_TEST_SUITE_P(
    Algorithms, FaultyFrames,
    testing::Values(CollectiveAlgorithm::kPairwise, CollectiveAlgorithm::kDirect,
                    CollectiveAlgorithm::kDoubling, CollectiveAlgorithm::kHalving),
    [](const auto& tested) { return std::string(CollectiveAlgorithmName(tested.param)); });

TEST_P(FaultyFrames, ThatOvertakeOneAnotherChangeNoBit) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    FaultyNetwork network(Fault::kDelay, 50, seed);
    for (const Outcome& outcome :
         AllReduceOver(network, GetParam(), operands_, absl::Seconds(60))) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_TRUE(outcome.result == expected_);
    }
  }
}

TEST_P(FaultyFrames, ThatAreCorruptedRepeatedOrCutOffNeverGiveAWrongSum) {
  for (const Fault fault : {Fault::kCorrupt, Fault::kDuplicate, Fault::kCut}) {
    int64_t failures = 0;
    for (uint32_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", seed ", seed));
      FaultyNetwork network(fault, 4, seed);
      const absl::Time begin = absl::Now();
      const auto outcomes = AllReduceOver(network, GetParam(), operands_, absl::Seconds(60));
      EXPECT_LT(absl::Now() - begin, absl::Seconds(30));  // found at once, not by the deadline
      bool all_done = true;
      for (const Outcome& outcome : outcomes) {
        if (outcome.status.ok()) {
          EXPECT_TRUE(outcome.result == expected_);
        } else {
          all_done = false;
          EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("rank "));
        }
      }
      // A repeated frame may arrive after the step is done. Every other fault makes a rank fail.
      if (network.faults() > 0 && fault != Fault::kDuplicate) {
        EXPECT_FALSE(all_done);
      }
      failures += !all_done;
    }
    EXPECT_GT(failures, 0);
  }
}

TEST_P(FaultyFrames, ThatAreLostEndTheWaitAtItsDeadlineAndTheRankIsNamed) {
  FaultyNetwork network(Fault::kDrop, 100, 1);
  const absl::Time begin = absl::Now();
  for (const Outcome& outcome :
       AllReduceOver(network, GetParam(), operands_, absl::Milliseconds(300))) {
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_THAT(std::string(outcome.status.message()),
                testing::AllOf(HasSubstr("rank "), HasSubstr("step 1, op 4")));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

}  // namespace
}  // namespace shardmesh::worker

// PeerLinks over real gRPC on loopback: messages of all sizes, credit, loss, refusals.
#include "worker/exchange/peer_links.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "process/cpu_time.h"
#include "process/crc32c.h"
#include "process/file.h"
#include "rpc/call.h"
#include "rpc/server_lifecycle.h"
#include "rpc/tls/credentials.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/certificates.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/exchange/linked_workers.h"
#include "worker/collective/collectives.h"
#include "worker/exchange/completion_poller.h"
#include "worker/exchange/exchange_stream.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CertificateFolder;
using ::shardmesh::test::LinkedWorker;
using ::shardmesh::test::LinkedWorkers;
using ::shardmesh::test::TestAuthority;
using ::shardmesh::test::TransportName;
using ::testing::AllOf;
using ::testing::HasSubstr;

shardmesh::Clock& Clock() {
  static RealClock clock;
  return clock;
}

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

std::string Pattern(int64_t size_bytes, int seed) {
  std::string bytes(static_cast<size_t>(size_bytes), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((i * 131 + i / 251 + static_cast<size_t>(seed)) % 256);
  }
  return bytes;
}

OwnedBytes Own(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  return {*owner, owner};
}

absl::StatusOr<std::string> ReceiveAll(Link& link, DeviceId peer, const Tag& tag,
                                       int64_t message_bytes) {
  std::string message;
  while (static_cast<int64_t>(message.size()) < message_bytes) {
    absl::StatusOr<OwnedBytes> piece = link.Receive(peer, tag, message_bytes, Soon());
    if (!piece.ok()) return piece.status();
    message.append(piece->bytes.data(), piece->bytes.size());
  }
  return message;
}

std::unique_ptr<StepLink> Open(LinkedWorkers& workers, DeviceId rank, int64_t sequence) {
  auto link = workers.links(rank).OpenLink("default", sequence, 1, Soon());
  EXPECT_TRUE(link.ok()) << link.status();
  return link.ok() ? *std::move(link) : nullptr;
}

constexpr int64_t kTagLimit = int64_t{4} << 20;

// What holds over streams and over shared memory alike.
class TransportTest : public testing::TestWithParam<Transport> {};

INSTANTIATE_TEST_SUITE_P(All, TransportTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(TransportTest, EveryPairExchangesMessagesOfAllSizesBothWays) {
  LinkedWorkers workers("x=4", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const std::vector<int64_t> sizes = {1, 5, 16384, 16385, 262144, 262145, 8 << 20};
  std::vector<std::thread> ranks;
  for (DeviceId rank = 0; rank < workers.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto link = Open(workers, rank, 1);
      ASSERT_NE(link, nullptr);
      for (size_t i = 0; i < sizes.size(); ++i) {
        const Tag tag = *Tag::Create(1, static_cast<int64_t>(i), 0);
        for (DeviceId peer = 0; peer < workers.size(); ++peer) {
          if (peer == rank) continue;
          EXPECT_TRUE(
              link->Send(peer, tag, workers.Own(rank, Pattern(sizes[i], static_cast<int>(rank))))
                  .ok());
        }
      }
      for (size_t i = sizes.size(); i-- > 0;) {
        const Tag tag = *Tag::Create(1, static_cast<int64_t>(i), 0);
        for (DeviceId peer = 0; peer < workers.size(); ++peer) {
          if (peer == rank) continue;
          const auto message = ReceiveAll(*link, peer, tag, sizes[i]);
          ASSERT_TRUE(message.ok()) << message.status();
          EXPECT_TRUE(*message == Pattern(sizes[i], static_cast<int>(peer)))
              << sizes[i] << " bytes from rank " << peer << " to rank " << rank;
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(PeerLinksTest, WhatLiesInSharedMemoryIsReadThereAndTheRestGoesOverTheStream) {
  LinkedWorkers workers("x=2", kTagLimit, Transport::kAuto);
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  const auto receiver = Open(workers, 1, 1);
  auto shared = workers.Own(0, Pattern(100000, 1));
  const std::shared_ptr<const void> owner = shared.owner;
  ASSERT_TRUE(sender->Send(1, *Tag::Create(1, 0, 0), std::move(shared)).ok());
  EXPECT_EQ(workers.links(0).counters().shared_bytes, 100000);
  ASSERT_TRUE(sender->Send(1, *Tag::Create(1, 1, 0), Own(Pattern(5000, 2))).ok());
  EXPECT_EQ(workers.links(0).counters().shared_bytes, 100000);
  EXPECT_EQ(workers.links(0).counters().sent_bytes, 105000);
  EXPECT_EQ(*ReceiveAll(*receiver, 0, *Tag::Create(1, 1, 0), 5000), Pattern(5000, 2));
  {
    const auto piece = receiver->Receive(0, *Tag::Create(1, 0, 0), 100000, Soon());
    ASSERT_TRUE(piece.ok()) << piece.status();
    EXPECT_EQ(piece->bytes.size(), 100000u);
    EXPECT_EQ(std::string(piece->bytes.data(), piece->bytes.size()), Pattern(100000, 1));
    EXPECT_GT(owner.use_count(), 1);  // the peer reads it
  }
  const absl::Time deadline = Soon();
  while (owner.use_count() > 1 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(PeerLinksTest, MoreMessagesThanThereIsRoomForInSharedMemoryAllArrive) {
  LinkedWorkers workers("x=2", kTagLimit, Transport::kAuto);
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  const auto receiver = Open(workers, 1, 1);
  constexpr int64_t kMessages = 2000;
  for (int64_t op = 0; op < kMessages; ++op) {
    const int64_t size_bytes = 1 + op * 13 % 700;
    ASSERT_TRUE(sender
                    ->Send(1, *Tag::Create(1, op, 0),
                           workers.Own(0, Pattern(size_bytes, static_cast<int>(op))))
                    .ok());
  }
  for (int64_t op = kMessages - 1; op >= 0; --op) {
    const int64_t size_bytes = 1 + op * 13 % 700;
    const auto message = ReceiveAll(*receiver, 0, *Tag::Create(1, op, 0), size_bytes);
    ASSERT_TRUE(message.ok()) << message.status();
    ASSERT_EQ(*message, Pattern(size_bytes, static_cast<int>(op))) << op;
  }
}

TEST(PeerLinksTest, APeerOnAnotherHostIsNotReachedWhereMemoryIsToBeShared) {
  LinkedWorker one("worker-0", 100, &Clock(), kTagLimit, "cluster", Transport::kShm);
  LinkedWorker two("worker-1", 101, &Clock(), kTagLimit, "cluster", Transport::kStream);
  MembershipView view{.epoch = 1, .term = 1, .meshes = {}};
  MeshMembers members{
      .mesh_id = "default", .revision = 1, .mesh = *Mesh::Parse("x=2"), .devices = {}};
  members.devices = {one.device(), two.device()};
  members.devices[1].rank = 1;
  view.meshes.push_back(members);
  one.links().SetMembership(view);
  two.links().SetMembership(view);
  ASSERT_TRUE(two.AwaitReached(1, Soon()));
  EXPECT_TRUE(one.AwaitUnreached({"worker-1"}, Soon()));
  absl::Status status;
  const absl::Time deadline = Soon();
  do {
    status = one.links().OpenLink("default", 1, 1, Soon()).status();
  } while (!absl::StrContains(status.message(), "shares no memory") && absl::Now() < deadline);
  EXPECT_EQ(ReasonOf(status), Reason::kWorkerLost) << status;
  EXPECT_EQ(FactOf(status, fact::kIdentity), "worker-1");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 (worker-1) shares no memory with worker-0"));
}

TEST(PeerLinksTest, ReceiverThatIsSlowOnOneTagDoesNotHoldUpOthers) {
  LinkedWorkers workers("x=2", /*tag_limit_bytes=*/64 << 10);
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  const auto receiver = Open(workers, 1, 1);
  const Tag slow = *Tag::Create(1, 0, 0);
  const std::string long_message = Pattern(4 << 20, 1);
  ASSERT_TRUE(sender->Send(1, slow, Own(long_message)).ok());
  for (int64_t op = 1; op <= 200; ++op) {
    const Tag tag = *Tag::Create(1, op, 0);
    ASSERT_TRUE(sender->Send(1, tag, Own(Pattern(20000, 2))).ok());
  }
  for (int64_t op = 200; op >= 1; --op) {
    const auto message = ReceiveAll(*receiver, 0, *Tag::Create(1, op, 0), 20000);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(*message, Pattern(20000, 2));
  }
  // What has come of the slow one is what its credit allows.
  EXPECT_LE(workers.links(1).counters().received_bytes, 200 * 20000 + (64 << 10));
  const auto message = ReceiveAll(*receiver, 0, slow, static_cast<int64_t>(long_message.size()));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(*message == long_message);
}

constexpr int64_t kLittleCredit = int64_t{1} << 20;
// A frame is sent while any credit is left.
constexpr int64_t kMostHeld = kLittleCredit + (int64_t{512} << 10);

TEST(PeerLinksTest, ARankThatIsLateHoldsNoMoreThanTheStreamsCreditAndIsWaitedFor) {
  constexpr int64_t kMessages = 64;
  constexpr int64_t kBytes = int64_t{256} << 10;
  LinkedWorkers workers("x=2", kTagLimit, Transport::kStream, /*measures=*/false, kLittleCredit);
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  for (int64_t round = 0; round < kMessages; ++round) {
    ASSERT_TRUE(sender->Send(1, *Tag::Create(1, 0, round), Own(Pattern(kBytes, round))).ok());
  }
  const auto held = [&] { return workers.links(1).counters().held_bytes; };
  ASSERT_TRUE(test::Eventually([&] { return held() + 2 * kBytes > kLittleCredit; }));
  // Streams that carry nothing are pinged: all that was on its way has come by then.
  ASSERT_TRUE(test::Eventually([&] { return workers.links(0).counters().credit_waits > 0; }));
  EXPECT_LE(held(), kMostHeld);
  // The last first: it has to be asked for, whatever fills the credit.
  const auto receiver = Open(workers, 1, 1);
  for (int64_t round = kMessages; round-- > 0;) {
    const auto message = ReceiveAll(*receiver, 0, *Tag::Create(1, 0, round), kBytes);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(*message, Pattern(kBytes, static_cast<int>(round)));
    EXPECT_LE(held(), kMostHeld + kBytes);
  }
  EXPECT_EQ(workers.links(0).counters().broken_streams, 0);
  EXPECT_EQ(workers.links(1).counters().broken_streams, 0);
  EXPECT_EQ(held(), 0);
}

TEST(PeerLinksTest, AStepGoesOnWhileAnotherHoldsAllCredit) {
  constexpr int64_t kBytes = int64_t{256} << 10;
  constexpr int64_t kLongBytes = 3'000'001;
  LinkedWorkers workers("x=2", kTagLimit, Transport::kStream, /*measures=*/false, kLittleCredit);
  ASSERT_TRUE(workers.Connect(1));
  std::vector<std::unique_ptr<StepLink>> links[2];
  for (const DeviceId rank : {0, 1}) {
    for (const int64_t step : {1, 2}) links[rank].push_back(Open(workers, rank, step));
  }
  for (const DeviceId rank : {0, 1}) {
    for (int64_t round = 0; round < 16; ++round) {
      ASSERT_TRUE(
          links[rank][0]->Send(1 - rank, *Tag::Create(1, 0, round), Own(Pattern(kBytes, 1))).ok());
    }
  }
  for (const DeviceId rank : {0, 1}) {
    ASSERT_TRUE(test::Eventually([&] { return workers.links(rank).counters().credit_waits > 0; }));
  }
  const auto exchange = [&](DeviceId rank) {
    for (int64_t round = 0; round < 5; ++round) {
      const int64_t bytes = round % 2 == 0 ? kLongBytes : 1;
      const Tag tag = *Tag::Create(2, 0, round);
      ASSERT_TRUE(links[rank][1]->Send(1 - rank, tag, Own(Pattern(bytes, 2))).ok());
      const auto message = ReceiveAll(*links[rank][1], 1 - rank, tag, bytes);
      ASSERT_TRUE(message.ok()) << message.status();
      EXPECT_EQ(*message, Pattern(bytes, 2));
    }
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
  for (int64_t round = 0; round < 16; ++round) {
    EXPECT_TRUE(ReceiveAll(*links[1][0], 0, *Tag::Create(1, 0, round), kBytes).ok());
  }
  EXPECT_EQ(workers.links(0).counters().broken_streams, 0);
  EXPECT_EQ(workers.links(1).counters().broken_streams, 0);
}

// Collectives that send many messages, in several steps at once, with little credit for each
// stream, while a rank is late for them.
class LittleCreditTest : public testing::TestWithParam<CollectiveAlgorithm> {
 protected:
  static constexpr int64_t kRanks = 3;
  static constexpr int64_t kBytes = int64_t{8} << 20;

  static absl::Status Run(StepLink& link, int64_t step, const Mesh& mesh,
                          CollectiveAlgorithm algorithm) {
    const auto size_bytes = static_cast<size_t>(kBytes);
    const auto operand = std::make_shared<std::vector<float>>(size_bytes / sizeof(float));
    for (size_t i = 0; i < operand->size(); ++i) {
      (*operand)[i] = static_cast<float>(i % 1009 + static_cast<size_t>(step));
    }
    const auto result = std::make_shared<std::vector<float>>(operand->size());
    const OwnedBytes mine = {{reinterpret_cast<const char*>(operand->data()), size_bytes}, operand};
    const OwnedMutableBytes out = {{reinterpret_cast<char*>(result->data()), size_bytes}, result};
    absl::StatusOr<DeviceGroup> group = DeviceGroup::Create(mesh, {"x"}, link.rank());
    if (!group.ok()) return group.status();
    const CollectiveCall call{.link = &link,
                              .group = &*group,
                              .step = step,
                              .op = 0,
                              .deadline = absl::Now() + absl::Seconds(60)};
    const bool is_broadcast =
        algorithm == CollectiveAlgorithm::kChain || algorithm == CollectiveAlgorithm::kBinomial;
    const CollectiveChoice choice = {.algorithm = algorithm, .order = CollectiveOrder::kFastest};
    absl::Status done;
    if (is_broadcast) {
      done = Broadcast(call, choice, /*root=*/0, mine, out);
    } else {
      const auto sum = CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, kRanks);
      done = AllReduce(call, choice, *sum, mine, out);
    }
    if (!done.ok()) return done;
    for (size_t i = 0; i < operand->size(); ++i) {
      const float expected = (*operand)[i] * (is_broadcast ? 1 : kRanks);
      if ((*result)[i] != expected) {
        return absl::DataLossError(StrCat("element ", i, " is wrong"));
      }
    }
    return absl::OkStatus();
  }
};

INSTANTIATE_TEST_SUITE_P(All, LittleCreditTest,
                         testing::Values(CollectiveAlgorithm::kChain,
                                         CollectiveAlgorithm::kBinomial, CollectiveAlgorithm::kRing,
                                         CollectiveAlgorithm::kPairwise,
                                         CollectiveAlgorithm::kHalving));

TEST_P(LittleCreditTest, StepsAtOnceEndThoughARankIsLateForThem) {
  constexpr int64_t kSteps = 3;
  LinkedWorkers workers(StrCat("x=", kRanks), kTagLimit, Transport::kStream, /*measures=*/false,
                        kLittleCredit);
  ASSERT_TRUE(workers.Connect(1));
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<StepLink>> links;
  const auto begin = [&](DeviceId rank) {
    for (int64_t step = 1; step <= kSteps; ++step) {
      links.push_back(Open(workers, rank, step));
      threads.emplace_back([&workers, step, link = links.back().get()] {
        const absl::Status done = Run(*link, step, workers.mesh(), GetParam());
        EXPECT_TRUE(done.ok()) << "step " << step << ": " << done;
      });
    }
  };
  begin(0);
  begin(1);
  // The others go as far as they come.
  test::Eventually([&] { return workers.links(0).counters().credit_waits > 0; },
                   absl::Milliseconds(200));
  begin(2);
  for (std::thread& thread : threads) thread.join();
  for (DeviceId rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(workers.links(rank).counters().broken_streams, 0);
  }
}

TEST(PeerLinksTest, CreditIsAShareOfTheMemory) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(PeerLinks::LinkCredit(16 * kMiB, 4096 * kMiB, 3), 16 * kMiB);
  EXPECT_EQ(PeerLinks::LinkCredit(16 * kMiB, 64 * kMiB, 4), 2 * kMiB);
  EXPECT_EQ(PeerLinks::LinkCredit(16 * kMiB, 1 * kMiB, 4), PeerLinks::kLeastLinkCredit);
  EXPECT_EQ(PeerLinks::LinkCredit(16 * kMiB, 64 * kMiB, 0), 8 * kMiB);
}

TEST(PeerLinksTest, NobodyGivesMemoryUpForMoreCreditThanTheLeast) {
  LinkedWorkers workers("x=2");
  const auto pool = workers.worker(0).pool();
  MemoryBudget& budget = pool->budget();
  const auto others = budget.Reserve(budget.limit_bytes(), "others");
  ASSERT_TRUE(others.ok()) << others.status();
  std::atomic<int64_t> most_bytes = 0;
  budget.AddReclaim(&most_bytes, [&](int64_t size_bytes) {
    if (size_bytes > most_bytes) most_bytes = size_bytes;
    return false;
  });
  EXPECT_TRUE(workers.Connect(1)) << "the least is given in any case";
  budget.RemoveReclaim(&most_bytes);
  EXPECT_EQ(most_bytes.load(), PeerLinks::kLeastLinkCredit);
}

TEST(PeerLinksTest, AShortMessageOvertakesALongOneThatIsUnderWay) {
  constexpr int64_t kLongBytes = 64 << 20;
  // Credit for all of it, so that nothing but the order of frames is between the two.
  LinkedWorkers workers("x=2", /*tag_limit_bytes=*/kLongBytes);
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  const auto receiver = Open(workers, 1, 1);
  const OwnedBytes long_message = Own(std::string(kLongBytes, 'l'));
  bool has_overtaken = false;
  // On a busy machine all may have come before the short one is sent, or before it is looked at.
  for (int64_t op = 0; op < 200 && !has_overtaken; op += 2) {
    const Tag tag = *Tag::Create(1, op, 0);
    const Tag short_tag = *Tag::Create(1, op + 1, 0);
    const int64_t received_before = workers.links(1).counters().received_bytes;
    ASSERT_TRUE(sender->Send(1, tag, long_message).ok());
    ASSERT_TRUE(sender->Send(1, short_tag, Own(Pattern(100, 1))).ok());
    const auto message = ReceiveAll(*receiver, 0, short_tag, 100);
    const int64_t received = workers.links(1).counters().received_bytes - received_before;
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(*message, Pattern(100, 1));
    has_overtaken = received < kLongBytes / 2;
    for (int64_t taken = 0; taken < kLongBytes;) {
      const auto piece = receiver->Receive(0, tag, kLongBytes, Soon());
      ASSERT_TRUE(piece.ok()) << piece.status();
      taken += static_cast<int64_t>(piece->bytes.size());
    }
  }
  EXPECT_TRUE(has_overtaken);
}

TEST_P(TransportTest, MessageOfAStepThatIsNotOpenYetIsHeldForIt) {
  LinkedWorkers workers("x=2", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 5);
  ASSERT_TRUE(sender->Send(1, *Tag::Create(5, 0, 0), workers.Own(0, "early")).ok());
  const absl::Time deadline = Soon();
  while (workers.links(1).counters().received_bytes < 5 && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  const auto receiver = Open(workers, 1, 5);
  const auto message = ReceiveAll(*receiver, 0, *Tag::Create(5, 0, 0), 5);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(*message, "early");
}

TEST_P(TransportTest, APeerMayBeAThousandStepsAhead) {
  constexpr int64_t kFirst = 5;
  constexpr int64_t kSteps = 1'100;
  LinkedWorkers workers("x=2", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  std::vector<std::unique_ptr<StepLink>> senders;
  for (int64_t step = kFirst; step < kFirst + kSteps; ++step) {
    senders.push_back(Open(workers, 0, step));
    ASSERT_NE(senders.back(), nullptr);
    ASSERT_TRUE(senders.back()->Send(1, *Tag::Create(step, 0, 0), workers.Own(0, "early")).ok());
    if (senders.size() < kSteps / 4) continue;
    // A step that ends would drop what has not left yet. What nobody waits for may lie in shared
    // memory for half a second.
    ASSERT_TRUE(test::Eventually(
        [&] { return workers.links(1).counters().received_bytes == 5 * (step - kFirst + 1); }));
    senders.clear();
  }
  for (const int64_t step : {kFirst, kFirst + kSteps / 2, kFirst + kSteps - 1}) {
    const auto receiver = Open(workers, 1, step);
    const auto message = ReceiveAll(*receiver, 0, *Tag::Create(step, 0, 0), 5);
    ASSERT_TRUE(message.ok()) << "step " << step << ": " << message.status();
    EXPECT_EQ(*message, "early");
  }
  EXPECT_EQ(workers.links(1).counters().broken_streams, 0);
}

TEST_P(TransportTest, FrameOfAStepThatIsOverIsDroppedAndCounted) {
  LinkedWorkers workers("x=2", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto sender = Open(workers, 0, 1);
  Open(workers, 1, 1).reset();
  ASSERT_TRUE(sender->Send(1, *Tag::Create(1, 0, 0), workers.Own(0, "late")).ok());
  const absl::Time deadline = Soon();
  while (workers.links(1).counters().dropped_frames == 0 && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(workers.links(1).counters().dropped_frames, 1);
  EXPECT_EQ(workers.links(1).counters().broken_streams, 0);
}

TEST_P(TransportTest, LostPeerFailsEveryWaitOfItsStepsAndIsNamed) {
  LinkedWorkers workers("x=3", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto link = Open(workers, 0, 7);
  absl::Status from_lost;
  absl::Status from_other;
  std::thread waits_for_lost(
      [&] { from_lost = link->Receive(2, *Tag::Create(7, 4, 0), 8, Soon()).status(); });
  std::thread waits_for_other(
      [&] { from_other = link->Receive(1, *Tag::Create(7, 4, 0), 8, Soon()).status(); });
  const absl::Time killed = absl::Now();
  workers.Kill(2);
  waits_for_lost.join();
  waits_for_other.join();
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
  for (const absl::Status& status : {from_lost, from_other}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), Reason::kWorkerLost);
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("rank 2 (worker-2)"), HasSubstr("step 7, op 4")));
  }
  EXPECT_EQ(workers.links(0).BlamedFor(7), "worker-2");
  EXPECT_FALSE(link->Check().ok());
  EXPECT_TRUE(workers.worker(0).AwaitUnreached({"worker-2"}, Soon()));
  EXPECT_EQ(workers.links(0).OpenLink("default", 8, 1, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, AbortEndsTheStepOnAllItsRanks) {
  LinkedWorkers workers("x=3", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto one = Open(workers, 1, 3);
  const auto zero = Open(workers, 0, 3);
  workers.links(0).AbortStep(
      3, WithReason(absl::ResourceExhaustedError("no memory"), Reason::kMemoryLimit), "worker-0");
  const absl::Status status = one->Receive(2, *Tag::Create(3, 0, 0), 8, Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), Reason::kMemoryLimit);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no memory"));
  EXPECT_EQ(workers.links(1).BlamedFor(3), "worker-0");
  // A rank that begins the step only now finds it aborted.
  const auto two = Open(workers, 2, 3);
  EXPECT_EQ(two->Receive(1, *Tag::Create(3, 0, 0), 8, Soon()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(workers.links(2).BlamedFor(3), "worker-0");
}

TEST_P(TransportTest, AStepIsAbortedAlsoWhileAndAfterTheLinksClose) {
  LinkedWorkers workers("x=3", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto zero = Open(workers, 0, 3);
  const auto one = Open(workers, 1, 3);
  workers.links(0).Close();
  // The streams end one after another, on threads of their own.
  ASSERT_TRUE(workers.worker(1).AwaitUnreached({"worker-0"}, Soon()));
  for (int i = 0; i < 100; ++i) {
    workers.links(0).AbortStep(3, absl::UnavailableError("the worker is stopping"), "worker-0");
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(zero->Receive(1, *Tag::Create(3, 0, 0), 8, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, RanksThatRunDifferentCollectivesBothHearOfBoth) {
  LinkedWorkers workers("x=2", kTagLimit, GetParam());
  ASSERT_TRUE(workers.Connect(1));
  const auto zero = Open(workers, 0, 3);
  const auto one = Open(workers, 1, 3);
  ASSERT_TRUE(zero->Begin(5, "all-reduce of F32[8]").ok());
  ASSERT_TRUE(one->Begin(5, "all-reduce of F16[16]").ok());
  const Tag tag = *Tag::Create(3, 5, 0);
  ASSERT_TRUE(zero->Send(1, tag, workers.Own(0, Pattern(32, 0))).ok());
  const absl::Status found = one->Receive(0, tag, 32, Soon()).status();
  // Whoever finds it ends the step for the others, as for any failure.
  workers.links(1).AbortStep(3, found, "worker-1");
  for (const absl::Status& status : {found, zero->Receive(1, tag, 32, Soon()).status()}) {
    EXPECT_EQ(ReasonOf(status), Reason::kCollectiveMismatch) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 runs all-reduce of F16[16], rank 0 (worker-0) runs all-reduce of "
                          "F32[8]"));
  }
  EXPECT_EQ(one->Begin(6, std::string(513, 'x')).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PeerLinksTest, WhatAnEndedStepHadYetToSendGoesWhenAPeerAbortsIt) {
  LinkedWorkers workers("x=2", /*tag_limit_bytes=*/1024);
  ASSERT_TRUE(workers.Connect(1));
  const auto message = std::make_shared<const std::string>(4096, 'm');  // more than the credit
  const auto receiver = Open(workers, 1, 3);
  auto sender = Open(workers, 0, 3);
  ASSERT_TRUE(sender->Send(1, *Tag::Create(3, 0, 0), {*message, message}).ok());
  sender.reset();  // over, as far as this rank is concerned
  EXPECT_GT(message.use_count(), 1);
  workers.links(1).AbortStep(3, absl::CancelledError("out of time"), "worker-1");
  const absl::Time deadline = Soon();
  while (message.use_count() > 1 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(message.use_count(), 1);
}

TEST(PeerLinksTest, WhatAnEndedStepHadYetToSendGoesWhenItIsAbortedHere) {
  LinkedWorkers workers("x=2", /*tag_limit_bytes=*/1024);
  ASSERT_TRUE(workers.Connect(1));
  const auto message = std::make_shared<const std::string>(4096, 'm');
  const auto receiver = Open(workers, 1, 3);
  auto sender = Open(workers, 0, 3);
  ASSERT_TRUE(sender->Send(1, *Tag::Create(3, 0, 0), {*message, message}).ok());
  sender.reset();
  workers.links(0).AbortStep(3, absl::CancelledError("the coordinator gave up"), "");
  const absl::Time deadline = Soon();
  while (message.use_count() > 1 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(message.use_count(), 1);
}

TEST(PeerLinksTest, StepOfAnEpochBeforeTheWorkersChangedIsRefused) {
  LinkedWorkers workers("x=2");
  ASSERT_TRUE(workers.Connect(3));
  EXPECT_EQ(ReasonOf(workers.links(0).OpenLink("default", 1, 2, Soon()).status()),
            Reason::kStaleEpoch);
  // Nothing changed for this mesh, so that epoch 3 still holds in epoch 4.
  MembershipView view = workers.View(4);
  workers.links(0).SetMembership(view);
  EXPECT_TRUE(workers.links(0).OpenLink("default", 2, 3, Soon()).ok());
}

// Processor time of PeerLinks for a second view in which the last of `count` meshes has changed.
double SecondsOfOneChangeAmong(int count) {
  LinkedWorkers workers("x=1");
  MembershipView first = workers.View(1);
  const MeshMembers members = first.meshes.front();
  for (int i = 0; i < count; ++i) {
    first.meshes.push_back(members);
    first.meshes.back().mesh_id = StrCat("mesh-", 100'000 + i);
  }
  MembershipView second = first;
  second.epoch = 2;
  second.meshes.back().revision = 7;
  workers.links(0).SetMembership(std::move(first));
  const double started = ThreadCpuSeconds();
  workers.links(0).SetMembership(second);
  const double seconds = ThreadCpuSeconds() - started;
  const auto open = [&](const std::string& mesh_id, int64_t sequence) {
    return workers.links(0).OpenLink(mesh_id, sequence, 1, Soon()).status();
  };
  EXPECT_THAT(open("default", 1), test::IsOk()) << "it is as it was in epoch 1";
  EXPECT_FALSE(open(second.meshes.back().mesh_id, 2).ok()) << "it changed since";
  return seconds;
}

TEST(PeerLinksTest, AChangeAmongManyMeshesIsFoundInLinearTime) {
  double few = 1e9;
  double many = 1e9;
  for (int round = 0; round < 3; ++round) {
    few = std::min(few, SecondsOfOneChangeAmong(2'000));
    many = std::min(many, SecondsOfOneChangeAmong(20'000));
  }
  // A search through all meshes for each of them would take 100 times as long.
  EXPECT_LT(many, 35 * few);
}

TEST(PeerLinksTest, StepOfAnEpochToComeWaitsForIt) {
  LinkedWorkers workers("x=1");
  ASSERT_TRUE(workers.Connect(1));
  EXPECT_EQ(workers.links(0).OpenLink("default", 1, 2, absl::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread coordinator([&] { workers.links(0).SetMembership(workers.View(2)); });
  EXPECT_TRUE(workers.links(0).OpenLink("default", 1, 2, Soon()).ok());
  coordinator.join();
}

// A stream that a test speaks by itself.
class RawPeer final : public ExchangeStream::Handler {
 public:
  explicit RawPeer(const std::string& address)
      : channel_(*rpc::CreateChannel(address, {.own_connection = true})),
        stream_(DialExchange(channel_, &queue_)) {
    poller_.Start(&queue_);
  }
  ~RawPeer() override {
    stream_->Close(absl::CancelledError());
    EXPECT_FALSE(AwaitClosed().ok());
    poller_.Stop();
  }

  // Sends these frames one by one.
  void Speak(std::vector<grpc::ByteBuffer> frames) {
    frames_ = std::move(frames);
    stream_->Open(std::shared_ptr<Handler>(this, [](Handler*) {}));
  }
  // Sends a hello, and the frame once that is answered.
  void GreetAndSay(grpc::ByteBuffer hello, grpc::ByteBuffer frame) {
    awaits_answer_ = true;
    Speak({std::move(hello), std::move(frame)});
  }
  absl::Status AwaitClosed() {
    absl::MutexLock lock(&mutex_);
    const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&closed), Soon())) {
      return absl::DeadlineExceededError("the stream stays open");
    }
    return status_;
  }

  void OnOpen() override { OnWritten(); }
  void OnFrame(const grpc::ByteBuffer& /*frame*/) override {
    if (std::exchange(awaits_answer_, false) && is_written_) OnWritten();
  }
  void OnWritten() override {
    is_written_ = next_ > 0;
    const bool is_waiting = awaits_answer_ && is_written_;
    if (next_ < frames_.size() && !is_waiting) stream_->Write(frames_[next_++]);
  }
  void OnClosed(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    status_ = status;
  }

 private:
  grpc::CompletionQueue queue_;
  CompletionPoller poller_{[] { return false; }};
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<ExchangeStream> stream_;
  std::vector<grpc::ByteBuffer> frames_;
  size_t next_ = 0;
  bool awaits_answer_ = false;
  bool is_written_ = false;  // the first frame
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

rpc::FrameHello GoodHello() {
  return {.identity = "worker-0",
          .incarnation = 100,
          .peer_identity = "worker-1",
          .peer_incarnation = 101,
          .cluster_id = "cluster",
          .initial_credit_bytes = 1 << 20,
          .boot_id = {},
          .link_credit_bytes = 1 << 20};
}

grpc::ByteBuffer HelloFrame(const rpc::FrameHello& hello) {
  return *rpc::WriteFrame({.kind = rpc::FrameKind::kHello, .hello = hello});
}

grpc::ByteBuffer Garbage() {
  const grpc::Slice slice("this is no frame");
  return grpc::ByteBuffer(&slice, 1);
}

TEST(PeerLinksTest, RefusesStreamsThatDoNotBeginAsTheyMust) {
  LinkedWorkers workers("x=2");
  workers.links(1).SetMembership(workers.View(1));
  rpc::FrameHello other_peer = GoodHello();
  other_peer.peer_identity = "worker-9";
  rpc::FrameHello other_incarnation = GoodHello();
  other_incarnation.peer_incarnation = 7;
  rpc::FrameHello old_incarnation = GoodHello();
  old_incarnation.incarnation = 99;
  rpc::FrameHello other_cluster = GoodHello();
  other_cluster.cluster_id = "other";
  rpc::FrameHello higher = GoodHello();
  higher.identity = "worker-5";
  const std::vector<std::pair<grpc::ByteBuffer, absl::StatusCode>> cases = {
      {HelloFrame(other_peer), absl::StatusCode::kFailedPrecondition},
      {HelloFrame(other_incarnation), absl::StatusCode::kFailedPrecondition},
      {HelloFrame(old_incarnation), absl::StatusCode::kFailedPrecondition},
      {HelloFrame(other_cluster), absl::StatusCode::kFailedPrecondition},
      {HelloFrame(higher), absl::StatusCode::kFailedPrecondition},
      {*rpc::WriteFrame({.kind = rpc::FrameKind::kPing, .ping = 1}),
       absl::StatusCode::kInvalidArgument},
      {Garbage(), absl::StatusCode::kDataLoss},
  };
  for (const auto& [frame, code] : cases) {
    RawPeer peer(workers.worker(1).device().endpoints[0]);
    peer.Speak({frame});
    EXPECT_EQ(peer.AwaitClosed().code(), code);
  }
  const PeerLinks::Counters counters = workers.links(1).counters();
  EXPECT_EQ(counters.broken_streams, 0);
  EXPECT_EQ(counters.refused_hellos, 5);
  EXPECT_EQ(counters.malformed_frames, 1);
  EXPECT_EQ(counters.corrupt_frames, 1);
}

TEST(PeerLinksTest, FrameOfAnOpenStepInAnotherEpochIsDroppedAndCountedAsStale) {
  LinkedWorkers workers("x=2");
  ASSERT_TRUE(workers.Connect(2));
  const auto step = workers.links(1).OpenLink("default", 7, 2, Soon());
  ASSERT_TRUE(step.ok()) << step.status();
  RawPeer peer(workers.worker(1).device().endpoints[0]);
  const std::string bytes = "late";
  const absl::Span<const char> payload(bytes);
  peer.Speak(
      {HelloFrame(GoodHello()),
       *rpc::WriteFrame(
           {.kind = rpc::FrameKind::kData, .epoch = 1, .tag = {.sequence = 7}, .message_bytes = 4},
           {&payload, 1}, nullptr)});
  const absl::Time deadline = Soon();
  while (workers.links(1).counters().stale_frames == 0 && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(workers.links(1).counters().stale_frames, 1);
  EXPECT_EQ(workers.links(1).counters().dropped_frames, 0);
}

// Whether worker-1 takes data without a checksum after a hello like this, with these flags of its
// own.
bool TakesPlainPayload(const std::string& boot_id, bool accepts, bool frame_checksums) {
  LinkedWorkers workers("x=2", int64_t{4} << 20, worker::Transport::kStream, /*measures=*/false,
                        int64_t{16} << 20, frame_checksums);
  workers.links(1).SetMembership(workers.View(1));
  rpc::FrameHello hello = GoodHello();
  hello.boot_id = boot_id;
  hello.accepts_plain_payloads = accepts;
  const std::string bytes = "four";
  const absl::Span<const char> payload(bytes);
  RawPeer peer(workers.worker(1).device().endpoints[0]);
  peer.Speak(
      {HelloFrame(hello),
       *rpc::WriteFrame(
           {.kind = rpc::FrameKind::kData, .epoch = 1, .tag = {.sequence = 7}, .message_bytes = 4},
           {&payload, 1}, nullptr, rpc::PayloadChecksum::kNone)});
  const absl::Time deadline = Soon();
  PeerLinks::Counters counters = workers.links(1).counters();
  while (counters.corrupt_frames + counters.received_bytes == 0 && absl::Now() < deadline) {
    std::this_thread::yield();
    counters = workers.links(1).counters();
  }
  EXPECT_EQ(counters.corrupt_frames, counters.received_bytes == 4 ? 0 : 1);
  return counters.received_bytes == 4;
}

TEST(PeerLinksTest, APayloadNeedsNoChecksumWithinAHostIfBothEndsSaySo) {
  EXPECT_TRUE(TakesPlainPayload("this host", true, false));
  EXPECT_FALSE(TakesPlainPayload("other host", true, false));
  EXPECT_FALSE(TakesPlainPayload("", true, false));
  EXPECT_FALSE(TakesPlainPayload("this host", false, false));
  EXPECT_FALSE(TakesPlainPayload("this host", true, true));
}

TEST(PeerLinksTest, GarbageOnAStreamThatIsUpBreaksIt) {
  LinkedWorkers workers("x=2");
  workers.links(1).SetMembership(workers.View(1));
  RawPeer peer(workers.worker(1).device().endpoints[0]);
  peer.Speak({HelloFrame(GoodHello()), Garbage()});
  EXPECT_FALSE(peer.AwaitClosed().ok());
  const absl::Time deadline = Soon();
  while (workers.links(1).counters().broken_streams == 0 && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(workers.links(1).counters().broken_streams, 1);
  EXPECT_EQ(workers.links(1).counters().corrupt_frames, 1);
}

// A data frame of a step to come, its payload as long as the test likes.
grpc::ByteBuffer DataFrame(size_t payload_bytes, int64_t message_bytes) {
  internal::v1::ExchangeRequest frame;
  frame.set_kind(internal::v1::FRAME_KIND_DATA);
  frame.set_epoch(1);
  frame.mutable_tag()->set_sequence(9);
  frame.set_message_bytes(message_bytes);
  frame.set_payload(std::string(payload_bytes, 'x'));
  const std::string fields = frame.SerializeAsString();
  internal::v1::ExchangeRequest checksum;
  checksum.set_crc32c(Crc32c(fields));
  const grpc::Slice slice(checksum.SerializeAsString() + fields);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(PeerLinksTest, APeerThatBreaksTheRulesLosesItsStreamAndTheOthersGoOn) {
  constexpr int64_t kLimit = 64 << 10;
  LinkedWorkers workers("x=3", kLimit);
  // The test is worker-0, which shares no step with the other two.
  MembershipView view = workers.View(1);
  MeshMembers pair = view.meshes[0];
  pair.mesh_id = "pair";
  pair.mesh = *Mesh::Parse("x=2");
  pair.devices.erase(pair.devices.begin());
  for (MeshDevice& device : pair.devices) --device.rank;
  view.meshes.push_back(pair);
  for (const DeviceId rank : {1, 2}) workers.links(rank).SetMembership(view);
  for (const DeviceId rank : {1, 2}) {
    ASSERT_TRUE(workers.worker(rank).AwaitUnreached({"worker-0"}, Soon()));
  }
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> rounds = 0;
  // Each hands the other's message back, until one says that it is the last.
  const auto take_part = [&](DeviceId rank) {
    const DeviceId peer = 1 - rank;
    const auto link = workers.links(rank + 1).OpenLink("pair", 1, 1, Soon());
    ASSERT_TRUE(link.ok()) << link.status();
    for (int64_t round = 0;; ++round) {
      const std::string mine(1000, is_over ? '.' : '-');
      std::string theirs = mine;
      for (const bool is_sending : {rank == 0, rank != 0}) {
        const Tag tag = *Tag::Create(1, round, is_sending ? rank : peer);
        if (is_sending) {
          const absl::Status sent = (*link)->Send(peer, tag, Own(rank == 0 ? mine : theirs));
          ASSERT_TRUE(sent.ok()) << sent;
        } else {
          const auto message = ReceiveAll(**link, peer, tag, 1000);
          ASSERT_TRUE(message.ok()) << message.status();
          theirs = *message;
        }
      }
      if (theirs[0] == '.') return;
      ++rounds;
    }
  };
  std::thread one([&] { take_part(0); });
  std::thread two([&] { take_part(1); });

  struct Case {
    grpc::ByteBuffer frame;
    std::string logged;
    std::string told = "";
  };
  const Case cases[] = {
      {Garbage(), "corrupted frame: it does not start with its checksum"},
      {DataFrame((1 << 20) + 1, 4 << 20),
       "the payload of a frame has 1048577 bytes; at most 1048576 are allowed"},
      {DataFrame(100, 99), "malformed frame: data at [0, 0+100) of a message of 99 bytes"},
      {DataFrame(kLimit + 1, 4 << 20), "is beyond its credit:"},
      // gRPC takes no more than a frame can have, and tells the other end alone why.
      {DataFrame(2 << 20, 4 << 20), "the peer ended the stream, or the connection is lost",
       "Received message larger than max"},
  };
  int64_t broken = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.logged);
    const int64_t rounds_before = rounds;
    ::testing::internal::CaptureStderr();
    RawPeer peer(workers.worker(1).device().endpoints[0]);
    peer.GreetAndSay(HelloFrame(GoodHello()), c.frame);
    const absl::Status closed = peer.AwaitClosed();
    ++broken;
    const bool is_broken =
        test::Eventually([&] { return workers.links(1).counters().broken_streams == broken; });
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(closed.ok());
    EXPECT_THAT(std::string(closed.message()), HasSubstr(c.told));
    EXPECT_TRUE(is_broken);
    EXPECT_THAT(log,
                AllOf(HasSubstr("peer lost identity=worker-1 peer=worker-0"), HasSubstr(c.logged)));
    EXPECT_TRUE(test::Eventually([&] { return rounds > rounds_before; }));
  }
  is_over = true;
  one.join();
  two.join();
  EXPECT_EQ(workers.links(2).counters().broken_streams, 0);
}

TEST(PeerLinksTest, SaysWhatItMeetsWhereAPeerShouldBe) {
  const TestAuthority authority;
  const CertificateFolder folder;
  const rpc::TlsFiles files = folder.Write(
      "w", authority.Issue({rpc::PeerRole::kWorker, "worker-1"}), authority.certificate());
  rpc::ServerOptions options;
  options.credentials = *rpc::Credentials::FromFiles(files);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto server, rpc::ServerLifecycle::Start(options, {}));
  LinkedWorkers workers("x=2");
  MembershipView view = workers.View(1);
  view.meshes[0].devices[1].endpoints = {server->address()};
  // It is logged once: no line may be lost while the log is read.
  const std::string log_path = folder.Path("log");
  const FileDescriptor file(open(log_path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600));
  const FileDescriptor former(dup(STDERR_FILENO));
  dup2(file.get(), STDERR_FILENO);
  workers.links(0).SetMembership(view);
  std::string log;
  EXPECT_TRUE(test::Eventually([&] {
    log = test::ReadFile(log_path);
    return absl::StrContains(log, "cannot reach peer");
  }));
  dup2(former.get(), STDERR_FILENO);
  EXPECT_THAT(log, AllOf(HasSubstr("peer=worker-1"), HasSubstr(server->address()),
                         HasSubstr("it speaks TLS, and this process plaintext")));
}

TEST(PeerLinksTest, BrokenStreamIsDialledAgain) {
  LinkedWorkers workers("x=2");
  ASSERT_TRUE(workers.Connect(1));
  {
    // Takes the place of the stream from worker-0, and goes.
    RawPeer peer(workers.worker(1).device().endpoints[0]);
    peer.Speak({HelloFrame(GoodHello()), Garbage()});
    EXPECT_FALSE(peer.AwaitClosed().ok());
  }
  const absl::Time deadline = Soon();
  absl::Status status;
  do {
    const auto zero = workers.links(0).OpenLink("default", 2, 1, Soon());
    const auto one = workers.links(1).OpenLink("default", 2, 1, Soon());
    status = zero.ok() ? one.status() : zero.status();
    if (status.ok()) break;
    std::this_thread::yield();
  } while (absl::IsUnavailable(status) && absl::Now() < deadline);
  EXPECT_TRUE(workers.worker(0).AwaitReached(1, deadline));
  EXPECT_TRUE(workers.worker(1).AwaitReached(1, deadline));
}

TEST(PeerLinksTest, WorkerThatJoinsIsReachedByAll) {
  LinkedWorkers workers("x=2");
  MembershipView alone = workers.View(1);
  alone.meshes[0].devices.pop_back();
  workers.links(0).SetMembership(alone);
  EXPECT_TRUE(workers.worker(0).AwaitReached(1, Soon()));
  EXPECT_EQ(ReasonOf(workers.links(0).OpenLink("default", 1, 1, Soon()).status()),
            Reason::kMeshIncomplete);
  ASSERT_TRUE(workers.Connect(2));
  EXPECT_TRUE(workers.links(0).OpenLink("default", 2, 2, Soon()).ok());
}

}  // namespace
}  // namespace shardmesh::worker

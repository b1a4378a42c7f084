// One end of a stream by itself: what it notes about messages goes with them.
#include "worker/exchange/peer_link.h"

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/fake_clock.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kLotBytes = 1 << 20;

class FakeOwner final : public PeerLink::Owner {
 public:
  absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& /*link*/,
                                             const rpc::FrameHello& hello) override {
    return hello;
  }
  rpc::PayloadChecksum ChecksumFor(const rpc::FrameHello& hello) const override {
    return hello.accepts_plain_payloads ? rpc::PayloadChecksum::kNone
                                        : rpc::PayloadChecksum::kCrc32c;
  }
  void OnUp(const std::shared_ptr<PeerLink>& /*link*/) override {}
  absl::Status OnData(PeerLink& /*link*/, const rpc::Frame& /*frame*/,
                      const std::shared_ptr<const void>& charge) override {
    charges_.push_back(charge);  // the pieces are held
    return absl::OkStatus();
  }
  void OnExhausted(PeerLink& /*link*/) override {}
  PeerLink::CreditState& credit_state() override { return credit_state_; }
  void OnAbort(PeerLink& /*link*/, int64_t /*sequence*/,
               const rpc::FrameAbort& /*abort*/) override {}
  void OnRefused(const absl::Status& why) override {
    ++refused_;
    if (!expects_refusal_) ADD_FAILURE() << why;
  }
  void OnDown(const std::shared_ptr<PeerLink>& /*link*/, bool /*was_up*/,
              const absl::Status& /*status*/) override {}

  int64_t frames() const { return std::ssize(charges_); }
  int64_t refused() const { return refused_; }
  void ExpectRefusal() { expects_refusal_ = true; }

 private:
  PeerLink::CreditState credit_state_;
  bool expects_refusal_ = false;
  int64_t refused_ = 0;
  std::vector<std::shared_ptr<const void>> charges_;
};

// A stream whose writes do not end before they fail: the peer does not read.
class StuckStream final : public ExchangeStream {
 public:
  void FailWrite() { write_->Complete(/*ok=*/false); }

  absl::Status CheckPeer(const rpc::Credentials& /*own*/,
                         const std::string& /*identity*/) const override {
    return absl::OkStatus();
  }
  void Open(std::shared_ptr<Handler> /*handler*/) override {}

 private:
  void StartRead(grpc::ByteBuffer* /*frame*/, void* /*tag*/) override {}
  void StartWrite(const grpc::ByteBuffer& /*frame*/, void* tag) override {
    write_ = static_cast<Completion*>(tag);
  }
  void StartFinish(const absl::Status& /*status*/, void* /*tag*/) override {}
  void Cancel() override {}
  bool finish_ends_call() const override { return true; }
  absl::Status PeerStatus() const override { return absl::OkStatus(); }

  Completion* write_ = nullptr;  // the last
};

class PeerLinkTest : public testing::Test {
 protected:
  // Up, with so much credit for each message that it sends, and so much of the stream each way.
  std::shared_ptr<PeerLink> LinkThatIsUp(int64_t initial_credit_bytes, int64_t link_credit_bytes) {
    const rpc::FrameHello hello = {.identity = "worker-0",
                                   .incarnation = 100,
                                   .peer_identity = "worker-1",
                                   .peer_incarnation = 101,
                                   .cluster_id = "cluster",
                                   .initial_credit_bytes = initial_credit_bytes,
                                   .boot_id = {},
                                   .link_credit_bytes = link_credit_bytes};
    auto link = std::make_shared<PeerLink>(&owner_, &clock_, hello);
    Say(*link, {.kind = rpc::FrameKind::kHello, .hello = hello});
    EXPECT_TRUE(link->is_up());
    return link;
  }

  static void Say(PeerLink& link, const rpc::FrameHeader& header, const std::string& payload = "") {
    const absl::Span<const char> bytes(payload.data(), payload.size());
    const auto frame =
        rpc::WriteFrame(header, absl::MakeConstSpan(&bytes, payload.empty() ? 0 : 1));
    ASSERT_TRUE(frame.ok()) << frame.status();
    link.OnFrame(*frame);
  }

  // A piece of 10 of a message's 20 bytes.
  static void SayHalf(PeerLink& link, const rpc::FrameTag& tag, int64_t offset_bytes) {
    Say(link,
        {.kind = rpc::FrameKind::kData,
         .epoch = 1,
         .tag = tag,
         .offset_bytes = offset_bytes,
         .message_bytes = 20},
        std::string(10, 'm'));
  }

  FakeOwner owner_;
  test::FakeClock clock_;
};

TEST_F(PeerLinkTest, CreditThatAMessageIsOwedIsForgottenWhenItIsHereWhole) {
  const auto link = LinkThatIsUp(1 << 20, 1 << 20);
  for (uint32_t op = 0; op < 100; ++op) {
    const rpc::FrameTag tag = {.sequence = 1, .op = op, .round = 0};
    SayHalf(*link, tag, 0);
    link->Grant(tag, 10, kLotBytes);
    EXPECT_EQ(link->notes(), 1u);
    SayHalf(*link, tag, 10);
    ASSERT_EQ(link->notes(), 0u);
  }
}

TEST_F(PeerLinkTest, NothingIsNotedOfAStepThatHasEnded) {
  const auto link = LinkThatIsUp(1 << 20, 1);
  const rpc::FrameTag ended = {.sequence = 1, .op = 0, .round = 0};
  const rpc::FrameTag other = {.sequence = 2, .op = 0, .round = 0};
  for (const rpc::FrameTag& tag : {ended, other}) link->Grant(tag, 10, kLotBytes);
  SayHalf(*link, {.sequence = 3, .op = 0, .round = 0}, 0);  // all the credit that the peer had
  for (const rpc::FrameTag& tag : {ended, other}) link->Demand(tag, 1 << 20);
  EXPECT_EQ(link->notes(), 4u);
  link->EndStep(1);
  EXPECT_EQ(link->notes(), 2u);
  link->EndStep(2);
  EXPECT_EQ(link->notes(), 0u);
}

TEST_F(PeerLinkTest, AMessageBringsNoMoreUrgentBytesThanWereDemandedForIt) {
  const auto link = LinkThatIsUp(1 << 20, 1);
  SayHalf(*link, {.sequence = 1, .op = 0, .round = 0}, 0);  // all the credit that the peer had
  const auto say_urgent = [&](const rpc::FrameTag& tag, int64_t size_bytes) {
    Say(*link,
        {.kind = rpc::FrameKind::kData,
         .epoch = 1,
         .tag = tag,
         .offset_bytes = 0,
         .message_bytes = 1 << 20,
         .is_urgent = true},
        std::string(static_cast<size_t>(size_bytes), 'm'));
  };
  // Demands of steps that end, whose bytes never come.
  for (int64_t sequence = 2; sequence < 10'000; ++sequence) {
    link->Demand({.sequence = sequence, .op = 0, .round = 0}, 1 << 20);
    link->EndStep(sequence);
  }
  EXPECT_EQ(link->notes(), 0u);
  EXPECT_EQ(link->ended_notes(), PeerLink::kMaxEndedDemands);
  // What was on its way when its step ended breaks nothing.
  say_urgent({.sequence = 9'999, .op = 0, .round = 0}, PeerLink::kUrgentBytes);
  EXPECT_EQ(owner_.frames(), 2);
  const rpc::FrameTag waited = {.sequence = 10'000, .op = 0, .round = 0};
  link->Demand(waited, 1 << 20);
  say_urgent(waited, 1000);
  EXPECT_EQ(owner_.frames(), 3);
  owner_.ExpectRefusal();
  say_urgent(waited, PeerLink::kUrgentBytes);
  EXPECT_EQ(owner_.frames(), 3) << "beyond what was demanded, whatever others left";
  EXPECT_EQ(owner_.refused(), 1);
}

TEST_F(PeerLinkTest, UrgentCreditThatIsGivenAgainAndAgainTakesNoMorePlaces) {
  const auto link = LinkThatIsUp(/*initial_credit_bytes=*/10, 1 << 20);
  const auto stream = std::make_shared<StuckStream>();
  link->Attach(stream);
  const rpc::FrameTag tag = {.sequence = 1, .op = 0, .round = 0};
  const auto message = std::make_shared<const std::string>(100, 'm');
  link->OnOpen();  // the hello is being written from here on
  link->OnWritten();
  ASSERT_TRUE(link->Send(tag, 1, {*message, message}).ok());  // the first 10 bytes are
  for (int i = 0; i < 1000; ++i) {
    Say(*link, {.kind = rpc::FrameKind::kCredit, .tag = tag, .credit_bytes = 1, .is_urgent = true});
    Say(*link, {.kind = rpc::FrameKind::kCredit, .tag = tag, .credit_bytes = 0});
  }
  EXPECT_EQ(link->notes(), 1u);
  stream->FailWrite();
}

}  // namespace
}  // namespace shardmesh::worker

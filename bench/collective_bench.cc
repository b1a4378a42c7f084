// Collectives of the engine over real streams; each rank is a separate process.
//
// clang-format off
//   collective_bench RANKS [--ops OP,...] [--algorithms NAME,...] [--sizes BYTES,...] [--calls N]
//                    [--transport auto|stream|shm]
// clang-format on
//
// Forks one process for each rank. Each rank serves its Exchange stream on loopback and connects to
// the other ranks as workers do. Every collective runs with each of its algorithms. For a
// reduction, a size is that of the vector that each rank has at the beginning. For any other
// collective, it is the size of a rank's vector at the end. Elements are F32. Each rank checks its
// results before the timing. Prints one JSON object for each collective, algorithm and size, with
// the slowest rank's times:
//
// clang-format off
//   {"system", "op", "algorithm", "ranks", "bytes", "calls", "p50_us", "p99_us", "mean_us"}
// clang-format on
//
// bench/collective_bench.py computes busbw, as nccl-tests defines it, from these times.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/collective_calls.h"
#include "process/allocator.h"
#include "process/clock.h"
#include "process/log.h"
#include "process/mutex_checks.h"
#include "rpc/poll_strategy.h"
#include "rpc/server_lifecycle.h"
#include "rpc/stream/frame.h"
#include "sharding/device_group.h"
#include "sharding/mesh.h"
#include "status/str_cat.h"
#include "tensor/copy.h"
#include "worker/collective/chain.h"
#include "worker/collective/doubling.h"
#include "worker/collective/halving.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/ring.h"
#include "worker/exchange/peer_links.h"
#include "worker/shm/shm_arena.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int64_t kMemoryBytes = int64_t{2} << 30;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "collective_bench: %s\n", message.c_str());
  std::exit(1);
}
void Check(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}
template <typename T>
T Check(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// One rank: its links to the other ranks. All collectives run in one step, which lasts as long as
// the process.
class Rank {
 public:
  // Each rank writes its address to a file in `folder`, and reads the addresses of the other ranks
  // there.
  Rank(DeviceId rank, int64_t ranks, Transport transport, const std::string& folder)
      : rank_(rank),
        ranks_(ranks),
        arena_(transport == Transport::kStream ? nullptr : std::make_shared<ShmArena>("bench")),
        pool_(BufferPool::Create(&budget_, kMemoryBytes, arena_)) {
    PeerLinks::Options options;
    options.self = {.identity = IdentityOf(rank), .incarnation = 1, .boot_id = "bench"};
    options.transport = transport;
    options.arena = arena_;
    options.clock = &clock_;
    options.peers_changed = [this](int64_t epoch, const std::vector<std::string>& unreached) {
      absl::MutexLock lock(&mutex_);
      is_linked_ = epoch == 1 && unreached.empty();
    };
    links_ = PeerLinks::Create(std::move(options));
    links_->SetClusterId("bench");
    rpc::ServerOptions server;
    server.max_message_bytes = rpc::kMaxFrameBytes;
    server.health = false;
    server.customize = [this](grpc::ServerBuilder& builder) { links_->Customize(builder); };
    server.on_drain = [this] { links_->Close(); };
    server_ =
        Check(rpc::ServerLifecycle::Start(server, {{PeerLinks::kServiceName, links_->service()}}));
    links_->Start();
    const std::string path = StrCat(folder, "/", rank);
    std::ofstream(path + ".new") << server_->address();
    std::filesystem::rename(path + ".new", path);

    MembershipView view{.epoch = 1, .term = 1, .meshes = {}};
    MeshMembers members{.mesh_id = "bench",
                        .revision = 1,
                        .mesh = Check(Mesh::Create({{"x", ranks}})),
                        .devices = {}};
    for (DeviceId peer = 0; peer < ranks; ++peer) {
      members.devices.push_back({.rank = peer,
                                 .identity = IdentityOf(peer),
                                 .incarnation = 1,
                                 .endpoints = {AddressOf(StrCat(folder, "/", peer))}});
    }
    group_.emplace(Check(DeviceGroup::Create(members.mesh, axes_, rank)));
    view.meshes.push_back(std::move(members));
    links_->SetMembership(std::move(view));
    {
      absl::MutexLock lock(&mutex_);
      if (!mutex_.AwaitWithTimeout(absl::Condition(&is_linked_), kPatience)) {
        Fail("the ranks do not reach one another");
      }
    }
    link_ = Check(links_->OpenLink("bench", step_, 1, absl::Now() + kPatience));
  }
  ~Rank() {
    link_.reset();
    server_->Drain(absl::Now() + absl::Seconds(5));
    links_.reset();
  }

  DeviceId rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }
  std::shared_ptr<Buffer> Take(int64_t size_bytes) {
    return std::make_shared<Buffer>(Check(pool_->Allocate(size_bytes, "a vector")));
  }
  // Sets the deadline of all following collectives: 5 * kPatience from now.
  void BePatient() { deadline_ = absl::Now() + 5 * kPatience; }
  // Returns the arguments of the next collective. Each call has a new op number.
  CollectiveCall Next() {
    return {.link = link_.get(),
            .group = &*group_,
            .step = step_,
            .op = op_++,
            .deadline = deadline_,
            .scratch = [this](int64_t size_bytes) -> absl::StatusOr<OwnedMutableBytes> {
              auto buffer = Take(size_bytes);
              return OwnedMutableBytes{buffer->mutable_bytes(), buffer};
            }};
  }

 private:
  static std::string IdentityOf(DeviceId rank) { return StrCat("rank-", rank); }
  static std::string AddressOf(const std::string& path) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      std::string address;
      if (std::ifstream(path) >> address) return address;
      absl::SleepFor(absl::Milliseconds(5));
    }
    Fail("no address came to " + path);
  }

  const DeviceId rank_;
  const int64_t ranks_;
  const std::vector<std::string> axes_ = {"x"};
  MemoryBudget budget_{kMemoryBytes};
  const std::shared_ptr<ShmArena> arena_;
  const std::shared_ptr<BufferPool> pool_;
  RealClock clock_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  std::optional<DeviceGroup> group_;
  std::unique_ptr<StepLink> link_;
  const int64_t step_ = 1;
  int64_t op_ = 0;
  absl::Time deadline_ = absl::Now() + kPatience;
  absl::Mutex mutex_;
  bool is_linked_ ABSL_GUARDED_BY(mutex_) = false;
};

using Memory = std::shared_ptr<Buffer>;

OwnedBytes Bytes(const Memory& memory) { return {memory->bytes(), memory}; }
OwnedMutableBytes MutableBytes(const Memory& memory) { return {memory->mutable_bytes(), memory}; }
absl::Span<float> Floats(const Memory& memory) {
  return {reinterpret_cast<float*>(memory->data()), memory->size() / 4};
}

// Vectors of one size, and the collectives over them.
class Vectors {
 public:
  Vectors(Rank* rank, int64_t bytes)
      : rank_(*rank),
        count_(std::max<int64_t>(bytes / 4, 1)),
        cuts_(EvenCuts(count_, rank->ranks())),
        combiner_(Check(CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, rank->ranks()))),
        in_(rank->Take(count_ * 4)) {
    Renew();
    for (int64_t i = 0; i < count_; ++i) Floats(in_)[Index(i)] = Element(rank->rank(), i);
    for (int64_t place = 0; place < rank->ranks(); ++place) {
      parts_.push_back(PartOf(Bytes(in_), cuts_[Index(place)] * 4, cuts_[Index(place) + 1] * 4));
      sizes_.push_back(SizeOf(parts_.back()));
    }
  }

  int64_t bytes() const { return count_ * 4; }

  struct Kind {
    const char* op;
    const char* algorithm;
    std::function<absl::Status(const CollectiveCall&)> run;
    std::function<bool()> is_right;  // returns whether out_ has the right result after a run
  };

  std::vector<Kind> Kinds() {
    const auto sums = [this] { return IsRight(0, count_, [this](int64_t i) { return Sum(i); }); };
    const auto joined = [this] {
      return IsRight(0, count_, [this](int64_t i) { return Element(OwnerOf(i), i); });
    };
    const auto own_sums = [this] {
      const int64_t begin = cuts_[Index(rank_.rank())];
      return IsRight(0, cuts_[Index(rank_.rank()) + 1] - begin,
                     [this, begin](int64_t i) { return Sum(begin + i); });
    };
    const auto roots = [this] {
      return IsRight(0, count_, [](int64_t i) { return Element(0, i); });
    };
    const auto place = [this](int64_t from, int64_t offset, absl::Span<const char> bytes) {
      CopyBytes(Result().bytes.data() + cuts_[Index(from)] * 4 + offset, bytes.data(),
                bytes.size());
    };
    const auto own = [this] { return Result().bytes.first(Index(sizes_[Index(rank_.rank())])); };
    using Call = const CollectiveCall&;
    return {
        {"all-reduce", "pairwise",
         [this](Call c) { return PairwiseAllReduce(c, combiner_, Bytes(in_), Result()); }, sums},
        {"all-reduce", "direct",
         [this](Call c) { return DirectAllReduce(c, combiner_, Bytes(in_), Result().bytes); },
         sums},
        {"all-reduce", "doubling",
         [this](Call c) { return DoublingAllReduce(c, combiner_, Bytes(in_), Result().bytes); },
         sums},
        {"all-reduce", "halving",
         [this](Call c) { return HalvingAllReduce(c, combiner_, Bytes(in_), Result()); }, sums},
        {"all-reduce", "ring",
         [this](Call c) { return RingAllReduce(c, combiner_, Bytes(in_), Result()); }, sums},
        {"all-gather", "pairwise",
         [this, place](Call c) {
           return PairwiseAllGather(c, parts_[Index(rank_.rank())], sizes_, place);
         },
         joined},
        {"all-gather", "doubling",
         [this, place](Call c) {
           return DoublingAllGather(c, parts_[Index(rank_.rank())], sizes_, place);
         },
         joined},
        {"all-gather", "ring",
         [this, place](Call c) {
           return RingAllGather(c, parts_[Index(rank_.rank())], sizes_, place);
         },
         joined},
        {"reduce-scatter", "pairwise",
         [this, own](Call c) { return PairwiseReduceScatter(c, combiner_, parts_, own()); },
         own_sums},
        {"reduce-scatter", "ring",
         [this, own](Call c) { return RingReduceScatter(c, combiner_, parts_, own()); }, own_sums},
        {"all-to-all", "pairwise",
         [this](Call c) {
           return PairwiseAllToAll(
               c, parts_, std::vector<int64_t>(Index(rank_.ranks()), sizes_[Index(rank_.rank())]),
               [this](int64_t from, int64_t offset, absl::Span<const char> bytes) {
                 CopyBytes(
                     MutableBytes(out_).bytes.data() + from * sizes_[Index(rank_.rank())] + offset,
                     bytes.data(), bytes.size());
               });
         },
         [this] {
           const int64_t part = sizes_[Index(rank_.rank())] / 4;
           return IsRight(0, part * rank_.ranks(), [this, part](int64_t i) {
             return Element(i / part, cuts_[Index(rank_.rank())] + i % part);
           });
         }},
        {"broadcast", "pairwise",
         [this](Call c) { return PairwiseBroadcast(c, 0, Bytes(in_), Result().bytes); }, roots},
        {"broadcast", "binomial",
         [this](Call c) { return BinomialBroadcast(c, 0, Bytes(in_), Result()); }, roots},
        {"broadcast", "chain",
         [this](Call c) { return ChainBroadcast(c, 0, Bytes(in_), Result()); }, roots},
        {"barrier", "pairwise", [](Call c) { return PairwiseBarrier(c); }, [] { return true; }},
        {"barrier", "doubling", [](Call c) { return DoublingBarrier(c); }, [] { return true; }},
    };
  }

  // Sets `out_` to a result buffer from which no link still sends, as a worker's pool does.
  // Allocates a buffer if all are in use.
  void Renew() {
    const auto free = std::find_if(results_.begin(), results_.end(),
                                   [](const Memory& memory) { return memory.use_count() == 1; });
    out_ = nullptr;
    out_ = free != results_.end() ? *free : results_.emplace_back(rank_.Take(ResultBytes()));
  }
  // Returns the size of a result buffer. In the all-to-all, every arriving part is as long as this
  // rank's own part, which may be longer than the average of all parts.
  int64_t ResultBytes() const {
    return (count_ + rank_.ranks() - 1) / rank_.ranks() * rank_.ranks() * 4;
  }
  OwnedMutableBytes Result() { return PartOf(MutableBytes(out_), 0, count_ * 4); }
  void Forget() {
    absl::Span<float> all = Floats(out_);
    absl::c_fill(all, -1.0f);
  }

 private:
  // Returns element i of a rank's vector: a small whole number, because F32 sums of such numbers
  // are exact in any order.
  static float Element(int64_t rank, int64_t i) {
    return static_cast<float>((i * 7 + rank * 3) % 251);
  }
  float Sum(int64_t i) const {
    float sum = 0;
    for (int64_t rank = 0; rank < rank_.ranks(); ++rank) sum += Element(rank, i);
    return sum;
  }
  int64_t OwnerOf(int64_t i) const {
    return std::upper_bound(cuts_.begin(), cuts_.end(), i) - cuts_.begin() - 1;
  }
  bool IsRight(int64_t begin, int64_t end, const std::function<float(int64_t)>& expected) const {
    for (int64_t i = begin; i < end; ++i) {
      if (Floats(out_)[Index(i)] != expected(i)) return false;
    }
    return true;
  }

  Rank& rank_;
  const int64_t count_;
  const std::vector<int64_t> cuts_;
  const Combiner combiner_;
  const Memory in_;
  std::vector<Memory> results_;
  Memory out_;  // the one of `results_` that the next call uses
  std::vector<OwnedBytes> parts_;
  std::vector<int64_t> sizes_;
};

// The times of calls, in microseconds.
struct Times {
  double p50;
  double p99;
  double mean;
};

void Measure(Rank& rank, Vectors& vectors, const Vectors::Kind& kind, int64_t calls) {
  const auto run = [&] {
    vectors.Renew();
    Check(kind.run(rank.Next()));
  };
  rank.BePatient();
  vectors.Forget();
  Check(kind.run(rank.Next()));
  if (!kind.is_right()) Fail(StrCat(kind.op, " ", kind.algorithm, ": a wrong result"));
  for (int64_t i = 0; i < calls / 10 + 1; ++i) run();
  Check(PairwiseBarrier(rank.Next()));
  std::vector<double> microseconds;
  double mean = 0;
  for (int64_t i = 0; i < calls; ++i) {
    if (bench::IsOneWay(kind.op)) Check(PairwiseBarrier(rank.Next()));
    const absl::Time start = absl::Now();
    run();
    microseconds.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
    mean += microseconds.back() / static_cast<double>(calls);
  }
  std::sort(microseconds.begin(), microseconds.end());
  const auto at = [&](double p) {
    return microseconds[static_cast<size_t>(p * static_cast<double>(calls - 1))];
  };
  Times slowest = {.p50 = at(0.5), .p99 = at(0.99), .mean = mean};
  const Times own = slowest;
  std::vector<Times> all(Index(rank.ranks()), own);
  Check(PairwiseAllGather(
      rank.Next(), {absl::MakeConstSpan(reinterpret_cast<const char*>(&own), sizeof(own)), nullptr},
      std::vector<int64_t>(Index(rank.ranks()), sizeof(own)),
      [&](int64_t place, int64_t offset, absl::Span<const char> bytes) {
        std::memcpy(reinterpret_cast<char*>(&all[Index(place)]) + offset, bytes.data(),
                    bytes.size());
      }));
  for (const Times& theirs : all) {
    slowest.p50 = std::max(slowest.p50, theirs.p50);
    slowest.p99 = std::max(slowest.p99, theirs.p99);
    slowest.mean = std::max(slowest.mean, theirs.mean);
  }
  // The link sends from the memory of `own`. Keep this memory until all ranks have received their
  // data.
  Check(PairwiseBarrier(rank.Next()));
  if (rank.rank() != 0) return;
  std::printf("%s\n", nlohmann::json{{"system", "shardmesh"},
                                     {"op", kind.op},
                                     {"algorithm", kind.algorithm},
                                     {"ranks", rank.ranks()},
                                     {"bytes", vectors.bytes()},
                                     {"calls", calls},
                                     {"p50_us", slowest.p50},
                                     {"p99_us", slowest.p99},
                                     {"mean_us", slowest.mean}}
                          .dump()
                          .c_str());
  std::fflush(stdout);
}

struct Arguments {
  int64_t ranks = 2;
  std::vector<std::string> ops;         // if empty, all
  std::vector<std::string> algorithms;  // if empty, all
  int64_t calls = 0;                    // if 0, CallsFor the size
  std::vector<int64_t> sizes = {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  Transport transport = Transport::kAuto;
};

void RunRank(DeviceId number, const Arguments& arguments, const std::string& folder) {
  ConfigureLog({.level = LogLevel::kOff});
  // The main function of a worker makes the same settings.
  KeepMessageMemory();
  rpc::PollOwnConnections();
  Rank rank(number, arguments.ranks, arguments.transport, folder);
  for (const int64_t bytes : arguments.sizes) {
    Vectors vectors(&rank, bytes);
    for (const Vectors::Kind& kind : vectors.Kinds()) {
      const auto is_among = [](const std::vector<std::string>& names, const char* name) {
        return names.empty() || std::count(names.begin(), names.end(), name) > 0;
      };
      const bool is_asked =
          is_among(arguments.ops, kind.op) && is_among(arguments.algorithms, kind.algorithm);
      const bool is_barrier = std::string_view(kind.op) == "barrier";
      if (is_asked && (!is_barrier || bytes == arguments.sizes.front())) {
        Measure(rank, vectors, kind,
                arguments.calls > 0 ? arguments.calls : bench::CallsFor(bytes));
      }
    }
  }
  Check(PairwiseBarrier(rank.Next()));
  // If a rank exits while others still wait in the barrier, their step fails. Each rank therefore
  // exits only after every rank has written its `.left` file.
  const auto left = [&](DeviceId one) { return StrCat(folder, "/", one, ".left"); };
  std::ofstream(left(number)).close();
  for (DeviceId peer = 0; peer < arguments.ranks; ++peer) {
    while (!std::filesystem::exists(left(peer))) absl::SleepFor(absl::Milliseconds(5));
  }
}

Arguments Parse(const std::vector<std::string>& given) {
  Arguments arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--ops" && i + 1 < given.size()) {
      arguments.ops = absl::StrSplit(given[++i], ',');
    } else if (given[i] == "--algorithms" && i + 1 < given.size()) {
      arguments.algorithms = absl::StrSplit(given[++i], ',');
    } else if (given[i] == "--calls" && i + 1 < given.size()) {
      if (!absl::SimpleAtoi(given[++i], &arguments.calls)) Fail("--calls: no number");
    } else if (given[i] == "--sizes" && i + 1 < given.size()) {
      arguments.sizes.clear();
      for (const auto& size : absl::StrSplit(given[++i], ',')) {
        if (!absl::SimpleAtoi(size, &arguments.sizes.emplace_back())) Fail("--sizes: no number");
      }
    } else if (given[i] == "--transport" && i + 1 < given.size()) {
      const auto transport = TransportFromName(given[++i]);
      if (!transport.has_value()) Fail("--transport: auto, stream or shm");
      arguments.transport = *transport;
    } else if (!absl::SimpleAtoi(given[i], &arguments.ranks) || arguments.ranks < 1) {
      Fail("wrong arguments; see the head of its source");
    }
  }
  return arguments;
}

int Main(int argc, char** argv) {
  SkipMutexChecks();
  const Arguments arguments = Parse({argv + 1, argv + argc});
  char folder[] = "/tmp/collective_bench.XXXXXX";
  if (mkdtemp(folder) == nullptr) Fail("no temporary folder can be made");
  std::vector<pid_t> children;
  for (DeviceId rank = 0; rank < arguments.ranks; ++rank) {
    const pid_t pid = fork();  // safe here: no thread exists yet
    if (pid == 0) {
      RunRank(rank, arguments, folder);
      return 0;
    }
    children.push_back(pid);
  }
  int code = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    children.erase(std::find(children.begin(), children.end(), pid));
    if (status == 0) continue;
    // End the other ranks, which would wait for the failed rank for ever.
    for (const pid_t child : code == 0 ? children : std::vector<pid_t>()) kill(child, SIGTERM);
    code = 1;
  }
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace shardmesh::worker

int main(int argc, char** argv) { return shardmesh::worker::Main(argc, argv); }

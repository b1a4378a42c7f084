// R1 of docs/benchmarks.md: cost of a call that resolves a spec, relative to an empty unary call to
// the same server. The two kinds of call alternate in one run: first with one call at a time, then
// with 64 outstanding calls. The argument `once` makes the run short, for a test. The argument
// `metrics` selects M3 instead: a server with metrics, relative to the same server without them.
//
// The server is a coordinator in this process; the client reaches it over loopback TCP. The empty
// call is the health service's Check: a message without a body, and an answer of two bytes.
// Resolving requests repeat, because the processes of a job all ask the same question. In rows
// whose names contain -new, each request is new. Rows whose names end in -full call ResolveSpec,
// with its nested messages; all other rows call ResolveEffectiveSpec. Prints one JSON object for
// each row.
#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "process/clock.h"
#include "process/log.h"
#include "process/mutex_checks.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/metrics/metrics.h"
#include "rpc/server_lifecycle.h"
#include "server/coordinator_server.h"
#include "server/service/question_services.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "sharding/mesh.h"
#include "sharding/rules/rule_set.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int kWarmUp = 2'000;
// The length of a run: its number of rounds, and the number of calls in each round.
struct Extent {
  int rounds = 40;
  int calls_per_round = 500;
  int rate_rounds = 30;
};
// Targets for the latency and for the rate of resolving calls, relative to those of the empty call.
constexpr double kLatencyTarget = 1.15;
constexpr double kRateTarget = 0.9;
constexpr int kOutstanding = 64;
constexpr absl::Duration kRateTime = absl::Milliseconds(200);
constexpr int kMetricsRounds = 50;
constexpr int kMetricsCalls = 300;
// Target for the time of a call with metrics, relative to the time without metrics.
constexpr double kMetricsTarget = 1.03;

double MicrosecondsOf(const auto& call) {
  const absl::Time start = absl::Now();
  call();
  return absl::ToDoubleMicroseconds(absl::Now() - start);
}

double Percentile(std::vector<double> samples, double p) {
  const auto at =
      samples.begin() + static_cast<int64_t>(p * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

// Keeps kOutstanding calls of one kind outstanding for kRateTime; returns the number of answers per
// second. `start` begins a call in one of kOutstanding slots. When the answer arrives, `start`
// calls `done` with whether the answer was right. A slot has one call at a time.
double RateOf(const std::function<void(int slot, std::function<void(bool)> done)>& start) {
  absl::Mutex mutex;
  int outstanding = 0;
  int64_t answered = 0;
  bool wrong = false;
  const absl::Time begin = absl::Now();
  const std::function<void(int)> next = [&](int slot) {
    start(slot, [&, slot](bool right) {
      bool again = false;
      {
        absl::MutexLock lock(&mutex);
        wrong = wrong || !right;
        ++answered;
        again = absl::Now() - begin < kRateTime;
        outstanding -= again ? 0 : 1;
      }
      if (again) {
        next(slot);
      }
    });
  };
  {
    absl::MutexLock lock(&mutex);
    outstanding = kOutstanding;
  }
  for (int slot = 0; slot < kOutstanding; ++slot) {
    next(slot);
  }
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(
      +[](int* count) { return *count == 0; }, &outstanding));
  if (wrong) {
    std::fprintf(stderr, "resolve_rpc_bench: a wrong answer\n");
    std::exit(1);
  }
  return static_cast<double>(answered) / absl::ToDoubleSeconds(absl::Now() - begin);
}

void PrintRatio(std::string_view id, std::string_view what, double ours, double peer,
                const char* unit, double ratio, double target,
                std::optional<bool> met = std::nullopt) {
  std::printf("%s\n", nlohmann::json{{"id", std::string(id)},
                                     {"what", std::string(what)},
                                     {"ours", ours},
                                     {"peer", peer},
                                     {"unit", unit},
                                     {"ratio", ratio},
                                     {"target", target},
                                     {"met", met.value_or(ratio <= target)}}
                          .dump()
                          .c_str());
}

void Print(std::string_view id, std::string_view what, double ours, double peer, const char* unit,
           double target, bool met) {
  PrintRatio(id, what, ours, peer, unit, ours / peer, target, met);
}

v1::ResolveEffectiveSpecRequest Question() {
  v1::ResolveEffectiveSpecRequest question;
  for (const char* axis : {"__BATCH__", "__LENGTH__", "__EMBED__"}) question.add_axes(axis);
  for (const int64_t size : {32, 128, 384}) question.add_shape(size);
  question.set_mesh("default");
  return question;
}

v1::ResolveSpecRequest FullQuestion() {
  v1::ResolveSpecRequest question;
  for (const char* axis : {"__BATCH__", "__LENGTH__", "__EMBED__"}) {
    question.add_axes()->set_name(axis);
  }
  for (const int64_t size : {32, 128, 384}) {
    question.mutable_shape()->add_sizes(size);
  }
  question.mutable_mesh()->set_name("default");
  return question;
}

// SetFirstSize has an overload for each of the two kinds of request, so that templates can use
// either kind.
void SetFirstSize(int64_t size, v1::ResolveEffectiveSpecRequest* question) {
  question->set_shape(0, size);
}
void SetFirstSize(int64_t size, v1::ResolveSpecRequest* question) {
  question->mutable_shape()->set_sizes(0, size);
}
bool IsRight(const v1::ResolveEffectiveSpecResponse& answer) {
  return answer.axis_counts_size() == 3;
}
bool IsRight(const v1::ResolveSpecResponse& answer) {
  return answer.effective().dimensions_size() == 3;
}

struct Effective {
  // Size of the arena's first block. Request and answer fit into it, so the arena allocates no
  // further block.
  static constexpr size_t kAnswerBytes = 512;
  using Request = v1::ResolveEffectiveSpecRequest;
  using Response = v1::ResolveEffectiveSpecResponse;
  static constexpr auto kCall = [](v1::ResolveService::Stub& stub, auto... arguments) {
    return stub.ResolveEffectiveSpec(arguments...);
  };
  static constexpr auto kStart = [](v1::ResolveService::Stub& stub, auto... arguments) {
    stub.async()->ResolveEffectiveSpec(arguments...);
  };
};

struct Full {
  static constexpr size_t kAnswerBytes = 6'000;
  using Request = v1::ResolveSpecRequest;
  using Response = v1::ResolveSpecResponse;
  static constexpr auto kCall = [](v1::ResolveService::Stub& stub, auto... arguments) {
    return stub.ResolveSpec(arguments...);
  };
  static constexpr auto kStart = [](v1::ResolveService::Stub& stub, auto... arguments) {
    stub.async()->ResolveSpec(arguments...);
  };
};

// The data of an outstanding call, in one allocation.
template <typename Kind>
struct ResolveCall {
  using Response = typename Kind::Response;

  grpc::ClientContext context;
  alignas(std::max_align_t) std::array<char, Kind::kAnswerBytes> memory;
  google::protobuf::Arena arena{memory.data(), memory.size()};
  Response& answer = *google::protobuf::Arena::CreateMessage<Response>(&arena);
};

template <typename Kind>
void StartResolve(v1::ResolveService::Stub& resolve, const typename Kind::Request& question,
                  std::function<void(bool)> done) {
  auto* call = new ResolveCall<Kind>;
  Kind::kStart(resolve, &call->context, &question, &call->answer,
               std::function([call, done = std::move(done)](grpc::Status status) {
                 const bool right = status.ok() && IsRight(call->answer);
                 delete call;
                 done(right);
               }));
}

template <typename Kind>
void ResolveOnce(v1::ResolveService::Stub& resolve, const typename Kind::Request& asked) {
  alignas(std::max_align_t) std::array<char, Kind::kAnswerBytes> memory;
  grpc::ClientContext context;
  google::protobuf::Arena arena(memory.data(), memory.size());
  auto& answer = *google::protobuf::Arena::CreateMessage<typename Kind::Response>(&arena);
  if (!Kind::kCall(resolve, &context, std::cref(asked), &answer).ok() || !IsRight(answer)) {
    std::fprintf(stderr, "resolve_rpc_bench: a wrong answer\n");
    std::exit(1);
  }
}

// A server with the coordinator's question services, and a stub to call it. Several resolvers can
// share one definition store.
struct Resolver {
  Resolver(const server::DefinitionStore* definition_store, rpc::Metrics* metrics)
      : services(server::MakeQuestionServices(
            {.definition_store = definition_store, .registry = nullptr, .metrics = metrics})),
        lifecycle(*rpc::ServerLifecycle::Start(
            OptionsOf(metrics), {{"shardmesh.v1.ResolveService", services.front().service.get()}})),
        stub(v1::ResolveService::NewStub(
            grpc::CreateChannel(lifecycle->address(), grpc::InsecureChannelCredentials()))) {}

  static rpc::ServerOptions OptionsOf(rpc::Metrics* metrics) {
    rpc::ServerOptions options;
    options.metrics = metrics;
    return options;
  }

  std::vector<server::QuestionService> services;  // ResolveService first
  std::unique_ptr<rpc::ServerLifecycle> lifecycle;
  std::unique_ptr<v1::ResolveService::Stub> stub;
};

// Measures M3 with two servers. They differ only in metrics: one server counts and times its calls
// and corrections, the other does not.
int MeasureMetrics() {
  RealClock clock;
  const std::unique_ptr<server::Store> store =
      server::CreateMemoryStore({.history = server::DefinitionHistory()});
  const auto registry =
      server::ArrayRegistry::Open(store.get(), &clock, [](const auto&, const auto&) {});
  const auto definition_store =
      server::DefinitionStore::Open(store.get(), &clock, &(*registry)->requests(), kDefaultMinSize);
  v1::EntryValue mesh;
  rpc::Encode(MeshDefinition{.mesh = *Mesh::Parse("fsdp=2,tp=2"), .workers = {}},
              mesh.mutable_mesh());
  absl::Notification defined;
  (*definition_store)
      ->Create({.request_id = "", .name = "default"}, mesh.SerializeAsString(),
               [&](const auto&) { defined.Notify(); });
  defined.WaitForNotification();
  rpc::Metrics metrics("coordinator");
  Resolver with(definition_store->get(), &metrics);
  Resolver without(definition_store->get(), nullptr);
  const v1::ResolveSpecRequest question = FullQuestion();
  const auto ask = [&](Resolver& resolver) { ResolveOnce<Full>(*resolver.stub, question); };
  for (int i = 0; i < kWarmUp; ++i) {
    ask(with);
    ask(without);
  }
  // Take short samples in pairs, one from each server, in alternating order. Other load on the
  // machine then affects both servers alike. The result is the median of the pairs' ratios.
  std::vector<double> with_us, without_us, latency_ratios;
  for (int round = 0; round < kMetricsRounds; ++round) {
    const auto sample = [&](Resolver& resolver) {
      std::vector<double> samples;
      for (int i = 0; i < kMetricsCalls; ++i) {
        samples.push_back(MicrosecondsOf([&] { ask(resolver); }));
      }
      return Percentile(std::move(samples), 0.5);
    };
    const double first = sample(round % 2 == 0 ? with : without);
    const double second = sample(round % 2 == 0 ? without : with);
    with_us.push_back(round % 2 == 0 ? first : second);
    without_us.push_back(round % 2 == 0 ? second : first);
    latency_ratios.push_back(with_us.back() / without_us.back());
  }
  PrintRatio("M3-p50", "ResolveSpec p50 with metrics, beside the same server without",
             Percentile(with_us, 0.5), Percentile(without_us, 0.5), "us",
             Percentile(latency_ratios, 0.5), kMetricsTarget);
  std::vector<double> with_rates, without_rates, cost_ratios;
  for (int round = 0; round < kMetricsRounds; ++round) {
    const auto sample = [&](Resolver& resolver) {
      return RateOf([&](int, std::function<void(bool)> done) {
        StartResolve<Full>(*resolver.stub, question, std::move(done));
      });
    };
    const double first = sample(round % 2 == 0 ? with : without);
    const double second = sample(round % 2 == 0 ? without : with);
    with_rates.push_back(round % 2 == 0 ? first : second);
    without_rates.push_back(round % 2 == 0 ? second : first);
    cost_ratios.push_back(without_rates.back() / with_rates.back());
  }
  PrintRatio("M3-64", "ResolveSpec calls a second with metrics, 64 outstanding; ratio of times",
             Percentile(with_rates, 0.5), Percentile(without_rates, 0.5), "1/s",
             Percentile(cost_ratios, 0.5), kMetricsTarget);
  with.lifecycle->Drain(absl::Now() + absl::Seconds(1));
  without.lifecycle->Drain(absl::Now() + absl::Seconds(1));
  return 0;
}

// Measures and prints the rows for one kind of request. The ids of these rows end in `suffix`.
template <typename Kind>
void Measure(v1::ResolveService::Stub& resolve, grpc::health::v1::Health::Stub& health,
             const std::function<void()>& check_once, typename Kind::Request question,
             std::string_view suffix, const Extent& extent) {
  int64_t fresh = 32;
  const auto resolve_once = [&](bool is_new) {
    SetFirstSize(is_new ? ++fresh : 32, &question);
    ResolveOnce<Kind>(resolve, question);
  };
  for (int i = 0; i < kWarmUp; ++i) {
    resolve_once(false);
    check_once();
  }
  std::vector<double> ours;
  std::vector<double> ours_new;
  std::vector<double> empty;
  for (int round = 0; round < extent.rounds; ++round) {
    for (int i = 0; i < extent.calls_per_round; ++i) {
      ours.push_back(MicrosecondsOf([&] { resolve_once(false); }));
    }
    for (int i = 0; i < extent.calls_per_round; ++i) {
      ours_new.push_back(MicrosecondsOf([&] { resolve_once(true); }));
    }
    for (int i = 0; i < extent.calls_per_round; ++i) {
      empty.push_back(MicrosecondsOf(check_once));
    }
  }
  const std::string method(Kind::Request::descriptor()->name());
  const double empty_p50 = Percentile(empty, 0.5);
  const double ours_p50 = Percentile(ours, 0.5);
  Print(StrCat("R1-p50", suffix), StrCat(method, ", p50 against an empty unary call"), ours_p50,
        empty_p50, "us", kLatencyTarget, ours_p50 <= kLatencyTarget * empty_p50);
  const double new_p50 = Percentile(ours_new, 0.5);
  Print(StrCat("R1-p50-new", suffix), "the same, each time another question", new_p50, empty_p50,
        "us", kLatencyTarget, new_p50 <= kLatencyTarget * empty_p50);

  struct CheckCall {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse answer;
  };
  const grpc::health::v1::HealthCheckRequest empty_request;
  std::vector<double> ours_rates;
  std::vector<double> new_rates;
  std::vector<double> empty_rates;
  std::atomic<int64_t> next = fresh;
  SetFirstSize(32, &question);
  // One request for each slot of RateOf. Each call sends a size that was not sent before, so the
  // server cannot answer from its cache. A slot has one call at a time, so no request changes
  // during its call.
  std::vector<typename Kind::Request> new_questions(kOutstanding, question);
  for (int round = 0; round < extent.rate_rounds; ++round) {
    ours_rates.push_back(RateOf([&](int, std::function<void(bool)> done) {
      StartResolve<Kind>(resolve, question, std::move(done));
    }));
    new_rates.push_back(RateOf([&](int slot, std::function<void(bool)> done) {
      auto& asked = new_questions[static_cast<size_t>(slot)];
      SetFirstSize(++next, &asked);
      StartResolve<Kind>(resolve, asked, std::move(done));
    }));
    empty_rates.push_back(RateOf([&](int, std::function<void(bool)> done) {
      auto* call = new CheckCall;
      health.async()->Check(&call->context, &empty_request, &call->answer,
                            [call, done = std::move(done)](const grpc::Status& status) {
                              const bool right = status.ok();
                              delete call;
                              done(right);
                            });
    }));
  }
  const double ours_rate = Percentile(ours_rates, 0.5);
  const double empty_rate = Percentile(empty_rates, 0.5);
  Print(StrCat("R1-64", suffix), StrCat(method, ", calls a second, 64 outstanding, against empty"),
        ours_rate, empty_rate, "1/s", kRateTarget, ours_rate >= kRateTarget * empty_rate);
  const double new_rate = Percentile(new_rates, 0.5);
  Print(StrCat("R1-64-new", suffix), "the same, each time another question", new_rate, empty_rate,
        "1/s", kRateTarget, new_rate >= kRateTarget * empty_rate);
}

int Main(const Extent& extent) {
  server::CoordinatorOptions options;
  options.listen_address = "127.0.0.1:0";
  options.http_address = "";
  options.mesh = *Mesh::Parse("fsdp=2,tp=2");
  const auto coordinator = server::CoordinatorServer::Start(std::move(options));
  if (!coordinator.ok()) {
    std::fprintf(stderr, "resolve_rpc_bench: %s\n", coordinator.status().ToString().c_str());
    return 1;
  }
  const auto channel =
      grpc::CreateChannel((*coordinator)->address(), grpc::InsecureChannelCredentials());
  const auto resolve = v1::ResolveService::NewStub(channel);
  const auto health = grpc::health::v1::Health::NewStub(channel);

  const auto check_once = [&] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse answer;
    if (!health->Check(&context, {}, &answer).ok()) {
      std::fprintf(stderr, "resolve_rpc_bench: the health check failed\n");
      std::exit(1);
    }
  };
  Measure<Effective>(*resolve, *health, check_once, Question(), "", extent);
  Measure<Full>(*resolve, *health, check_once, FullQuestion(), "-full", extent);
  (*coordinator)->Drain(absl::Now() + absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  shardmesh::SkipMutexChecks();
  shardmesh::ConfigureLog({.level = shardmesh::LogLevel::kOff});
  const std::string_view argument = argc == 2 ? argv[1] : "";
  if (argument == "metrics") return shardmesh::MeasureMetrics();
  return shardmesh::Main(
      argument == "once" ? shardmesh::Extent{.rounds = 1, .calls_per_round = 20, .rate_rounds = 1}
                         : shardmesh::Extent());
}

// Work that can be long, left halfway: each call stops soon after it is told to.
#include <pthread.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_resolver.h"
#include "server/resolve/tree_streams.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using IsCancelled = std::function<bool()>;

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int64_t kSlower = 20;  // than a build that is not instrumented
#else
constexpr int64_t kSlower = 1;
#endif

// What the contract promises of ResolveTree, and what is kept by the others.
constexpr absl::Duration kSoon = absl::Milliseconds(10 * kSlower);
constexpr absl::Duration kOthersSoon = absl::Milliseconds(100 * kSlower);
// What else the machine does is not counted, and of a few tries the best.
constexpr int kTries = 5;

// What the thread behind the clock has had of a processor.
absl::Duration ProcessorTime(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return absl::DurationFromTimespec(time);
}

// How much of a processor `work` takes once it is cancelled in its middle: `head_start` after it
// has asked for the first time. Nothing if it ended before that, with what is not CANCELLED.
std::optional<absl::Duration> TimeToStop(absl::Duration head_start,
                                         const std::function<absl::Status(IsCancelled)>& work) {
  std::atomic<bool> asked = false;
  std::atomic<bool> cancelled = false;
  clockid_t clock;
  pthread_getcpuclockid(pthread_self(), &clock);
  absl::Duration cancelled_at;
  std::thread canceller([&] {
    while (!asked.load()) {
      absl::SleepFor(absl::Microseconds(100));
    }
    absl::SleepFor(head_start);
    cancelled_at = ProcessorTime(clock);
    cancelled.store(true);
  });
  const absl::Status status = work([&] {
    asked.store(true, std::memory_order_relaxed);
    return cancelled.load(std::memory_order_relaxed);
  });
  const absl::Duration stopped_at = ProcessorTime(clock);
  asked.store(true);
  canceller.join();
  return absl::IsCancelled(status) ? std::optional(stopped_at - cancelled_at) : std::nullopt;
}

// The best of some tries of work that `make` begins anew.
void ExpectStopsWithin(absl::Duration limit, absl::Duration head_start, std::string_view name,
                       const std::function<std::function<absl::Status(IsCancelled)>()>& make) {
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < kTries && best > limit; ++i) {
    const std::optional<absl::Duration> time = TimeToStop(head_start, make());
    ASSERT_TRUE(time.has_value()) << name << " was over before it could be cancelled";
    best = std::min(best, *time);
  }
  EXPECT_LE(best, limit) << name;
}

// Patterns of which none is quick to rule out, and none matches.
std::string CostlyPattern(int i) { return "x.{20}[ab].*y{30}z" + std::to_string(i); }

// As long as names may be.
std::string LongName(int i) {
  std::string name = std::to_string(i);
  while (name.size() < 1000) {
    name += "xaby"[(name.size() * 7 + name.size() * name.size() / 3) % 4];
  }
  return name;
}

void AddCostlyRules(int count, v1::RuleSetSelector* to) {
  for (int i = 0; i < count; ++i) {
    to->mutable_value()->add_rules()->set_pattern(CostlyPattern(i));
  }
  to->mutable_value()->add_rules()->set_pattern("");
}

void AddAxis(const std::string& name, int64_t size, v1::MeshSelector* to) {
  v1::MeshAxis* const axis = to->mutable_value()->add_axes();
  axis->set_name(name);
  axis->set_size(size);
}

// Tensors with a spec each if `spec`, of shapes that all differ.
v1::TreeTensors Tensors(int begin, int count, bool long_names, bool spec) {
  v1::TreeTensors tensors;
  if (spec) {
    tensors.add_spec_table()->add_dimensions()->set_name("tp");
  }
  for (int i = begin; i < begin + count; ++i) {
    const std::string name = long_names ? LongName(i) : std::to_string(i);
    tensors.mutable_names()->append(name);
    tensors.add_name_sizes(static_cast<uint32_t>(name.size()));
    tensors.add_ranks(1);
    tensors.add_sizes(int64_t{8} * (i + 1));
    tensors.add_dtypes(v1::DTYPE_F32);
    if (spec) {
      tensors.add_spec_indexes(1);
    }
  }
  return tensors;
}

class CancellationTest : public testing::Test {
 protected:
  template <typename Request>
  static Request Header(const std::function<void(decltype(Request().mutable_header()))>& fill) {
    Request request;
    fill(request.mutable_header());
    return request;
  }
  template <typename Request>
  static Request Piece(v1::TreeTensors tensors) {
    Request request;
    *request.mutable_tensors() = std::move(tensors);
    return request;
  }

  // Feeds the messages, of which only the last may be asked whether it is cancelled, then ends.
  template <typename Request, typename Response>
  static std::function<absl::Status(IsCancelled)> Feed(
      std::unique_ptr<TreeCall<Request, Response>> call, const std::vector<Request>& requests,
      bool ends) {
    const std::shared_ptr<TreeCall<Request, Response>> shared(std::move(call));
    for (size_t i = 0; i + (ends ? 0 : 1) < requests.size(); ++i) {
      Response response;
      bool is_tensors = false;
      const absl::Status status = shared->Take(
          requests[i], [] { return false; }, &response, &is_tensors);
      EXPECT_TRUE(status.ok()) << status;
    }
    return [shared, last = requests.back(), ends](const IsCancelled& is_cancelled) {
      Response response;
      bool is_tensors = false;
      return ends ? shared->End(&response, is_cancelled)
                  : shared->Take(last, is_cancelled, &response, &is_tensors);
    };
  }

  const std::shared_ptr<const Definitions> state_ = std::make_shared<Definitions>();
  const CorrectionCounter counter_{nullptr};
  CorrectionTally corrections_;
};

TEST_F(CancellationTest, ResolvingATreeOfAMillionTensorsStopsWithinTenMilliseconds) {
  std::vector<Rule> rules;
  for (int i = 0; i < 2'000; ++i) {
    rules.push_back({CostlyPattern(i), {}});
  }
  rules.push_back({"", {}});
  const RuleSet rule_set = *RuleSet::Create(std::move(rules));
  std::vector<std::string> names;
  names.reserve(1'000'000);
  for (int i = 0; i < 1'000'000; ++i) {
    names.push_back(std::to_string(i) + "xaxbxyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyaxby");
  }
  const Shape shape = {8, 8};
  std::vector<TreeTensor> tree;
  tree.reserve(names.size());
  for (const std::string& name : names) {
    tree.push_back({.name = name, .shape = shape, .dtype = Dtype::kF32});
  }
  for (const absl::Duration head_start : {absl::Milliseconds(1), absl::Milliseconds(300)}) {
    ExpectStopsWithin(kSoon, head_start, "TreeResolver", [&] {
      TreeQuestion question;
      question.rules = RuleSetDefinition{.rules = rule_set};
      question.mesh = *Mesh::Parse("fsdp=2,tp=4");
      const std::shared_ptr<TreeResolver> resolver = *TreeResolver::Create(std::move(question));
      return [&tree, resolver](const IsCancelled& is_cancelled) {
        return resolver->Add(tree, is_cancelled).status();
      };
    });
  }
}

TEST_F(CancellationTest, OneTensorThatManyRulesAreAskedAboutIsLeftHalfway) {
  std::vector<Rule> rules;
  for (int i = 0; i < 10'000; ++i) {
    rules.push_back({CostlyPattern(i), {}});
  }
  TreeQuestion question;
  question.rules = RuleSetDefinition{.rules = *RuleSet::Create(std::move(rules))};
  const auto resolver = *TreeResolver::Create(std::move(question));
  const std::string name = LongName(0);
  const Shape shape = {8};
  int asked = 0;
  EXPECT_TRUE(absl::IsCancelled(
      resolver->Add({{.name = name, .shape = shape}}, [&asked] { return ++asked == 3; }).status()));
  EXPECT_EQ(asked, 3);
}

TEST_F(CancellationTest, EveryStreamedCallStopsSoon) {
  ExpectStopsWithin(kSoon, absl::Milliseconds(20), "ResolveTree", [&] {
    using Request = v1::ResolveTreeRequest;
    return Feed(MakeResolveTreeCall(state_, counter_),
                std::vector<Request>{Header<Request>([](auto* header) {
                                       AddCostlyRules(2'000, header->mutable_rule_set());
                                       AddAxis("tp", 4, header->mutable_mesh());
                                     }),
                                     Piece<Request>(Tensors(0, 900, true, false))},
                false);
  });
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "LintRules", [&] {
    using Request = v1::LintRulesRequest;
    return Feed(MakeLintRulesCall(state_, nullptr),
                std::vector<Request>{Header<Request>([](auto* header) {
                                       AddCostlyRules(2'000, header->mutable_rule_set());
                                       AddAxis("tp", 4, header->add_meshes());
                                     }),
                                     Piece<Request>(Tensors(0, 900, true, false))},
                true);
  });
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "DiffLayouts", [&] {
    using Request = v1::DiffLayoutsRequest;
    return Feed(MakeDiffLayoutsCall(state_),
                std::vector<Request>{Header<Request>([](auto* header) {
                                       AddCostlyRules(2'000,
                                                      header->mutable_a()->mutable_rule_set());
                                       AddCostlyRules(1, header->mutable_b()->mutable_rule_set());
                                       AddAxis("tp", 4, header->mutable_a()->mutable_mesh());
                                       AddAxis("tp", 8, header->mutable_b()->mutable_mesh());
                                     }),
                                     Piece<Request>(Tensors(0, 900, true, false))},
                false);
  });
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(2), "AnalyzeLayout", [&] {
    using Request = v1::AnalyzeLayoutRequest;
    return Feed(MakeAnalyzeLayoutCall(state_),
                std::vector<Request>{
                    Header<Request>([](auto* header) { AddAxis("tp", 4, header->mutable_mesh()); }),
                    Piece<Request>(Tensors(0, 50'000, false, true))},
                false);
  });
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(2), "AnalyzeShardingStrategy", [&] {
    using Request = compat::v1::AnalyzeShardingStrategyRequest;
    return Feed(MakeShardingStrategyCall(state_),
                std::vector<Request>{
                    Header<Request>([](auto* header) { AddAxis("tp", 4, header->mutable_mesh()); }),
                    Piece<Request>(Tensors(0, 50'000, false, true))},
                false);
  });
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "SearchMeshes", [&] {
    using Request = v1::SearchMeshesRequest;
    return Feed(MakeSearchMeshesCall(state_),
                std::vector<Request>{Header<Request>([](auto* header) {
                                       header->set_devices(int64_t{1} << 20);
                                       for (const char* axis : {"a", "b", "c", "d", "tp"}) {
                                         header->add_axes()->set_name(axis);
                                       }
                                       AddCostlyRules(1, header->mutable_rule_set());
                                     }),
                                     Piece<Request>(Tensors(0, 20'000, false, false))},
                true);
  });
}

TEST_F(CancellationTest, EveryAnswerOfTheBackgroundStopsSoon) {
  const AnswerContext context{*state_, corrections_};
  v1::PlanReshardRequest reshard;
  for (int i = 0; i < 8; ++i) {
    const std::string axis(1, static_cast<char>('a' + i));
    const int64_t size = i % 2 == 0 ? 7 : 8;
    AddAxis(axis, size, reshard.mutable_source()->mutable_mesh());
    AddAxis(axis, size, reshard.mutable_destination()->mutable_mesh());
  }
  for (const char* axis : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    auto* const from = reshard.mutable_source()->mutable_spec();
    (from->dimensions_size() == 0 ? from->add_dimensions() : from->mutable_dimensions(0))
        ->mutable_tuple()
        ->add_values()
        ->set_name(axis);
  }
  for (const char* axis : {"h", "g", "f", "e", "d", "c", "b", "a"}) {
    auto* const to = reshard.mutable_destination()->mutable_spec();
    (to->dimensions_size() == 0 ? to->add_dimensions() : to->mutable_dimensions(0))
        ->mutable_tuple()
        ->add_values()
        ->set_name(axis);
  }
  reshard.mutable_shape()->add_sizes(int64_t{7 * 7 * 7 * 7} * 8 * 8 * 8 * 8);
  reshard.set_dtype(v1::DTYPE_F32);
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "PlanReshard", [&] {
    return [&](const IsCancelled& is_cancelled) {
      v1::PlanReshardResponse response;
      return Answer(context, reshard, &response, is_cancelled);
    };
  });

  compat::v1::ParsePatternRulesRequest text;
  while (text.text().size() < 60'000) {
    text.mutable_text()->append("x{900}|");
  }
  text.mutable_text()->append("->dp");
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "ParsePatternRules", [&] {
    return [&](const IsCancelled& is_cancelled) {
      compat::v1::ParsePatternRulesResponse response;
      return Answer(context, text, &response, is_cancelled);
    };
  });

  v1::CheckPatternRequest pattern;
  pattern.set_pattern("[ab]*a[ab]{400}c");
  std::mt19937 random(7);
  for (int i = 0; i < 3'000; ++i) {
    std::string* const name = pattern.add_names();
    while (name->size() < 1000) {
      name->push_back(random() % 2 == 0 ? 'a' : 'b');
    }
  }
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(5), "CheckPattern", [&] {
    return [&](const IsCancelled& is_cancelled) {
      v1::CheckPatternResponse response;
      return Answer(context, pattern, &response, is_cancelled);
    };
  });

  v1::RewriteRulesRequest rewrite;
  for (int i = 0; i < 5'000; ++i) {
    rewrite.mutable_rule_set()->add_rules()->set_pattern("x{500}");
  }
  ExpectStopsWithin(kOthersSoon, absl::Milliseconds(20), "RewriteRules", [&] {
    return [&](const IsCancelled& is_cancelled) {
      v1::RewriteRulesResponse response;
      return Answer(context, rewrite, &response, is_cancelled);
    };
  });
}

class CancelledCallTest : public ResolveServiceTest {};

TEST_F(CancelledCallTest, TheCoordinatorStopsWorkingForClientsThatLeave) {
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
  const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(&context);
  v1::ResolveTreeRequest request;
  AddCostlyRules(5'000, request.mutable_header()->mutable_rule_set());
  ASSERT_TRUE(stream->Write(request));
  *request.mutable_tensors() = Tensors(0, 900, true, false);
  ASSERT_TRUE(stream->Write(request));  // a minute's work

  v1::LintRulesResponse lint;
  grpc::ClientContext lint_context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &lint_context);
  const auto lint_stream = stub<v1::RuleService::Stub>().LintRules(&lint_context, &lint);
  v1::LintRulesRequest lint_request;
  AddCostlyRules(5'000, lint_request.mutable_header()->mutable_rule_set());
  ASSERT_TRUE(lint_stream->Write(lint_request));
  *lint_request.mutable_tensors() = Tensors(0, 900, true, false);
  ASSERT_TRUE(lint_stream->Write(lint_request));
  lint_stream->WritesDone();

  absl::SleepFor(absl::Milliseconds(200));  // so that both are under way
  context.TryCancel();
  lint_context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(lint_stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // Calls that go on would hold it up until they are through, or until the deadline cuts them off.
  const absl::Time before = absl::Now();
  Drain(before + absl::Seconds(50));
  EXPECT_LT(absl::Now() - before, absl::Seconds(25));
}

}  // namespace
}  // namespace shardmesh::server

// Command health: whether a process is alive and ready, for probes.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/remote/health.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(5);
constexpr absl::Duration kWaitDeadline = absl::Minutes(2);
constexpr absl::Duration kWaitInterval = absl::Milliseconds(50);

struct HealthOptions {
  std::string service = "ready";
  bool wait = false;
};

// Asks the process at the address once whether it serves. With --wait, repeats the question until
// the process serves, an error is permanent, or the deadline has passed.
absl::StatusOr<bool> Ask(const Invocation& invocation, const HealthOptions& options) {
  if (invocation.address.empty()) return invocation.Connect().status();
  SHARDMESH_ASSIGN_OR_RETURN(const rpc::Credentials credentials, invocation.Credentials());
  const auto deadline =
      SteadyDeadline::After(invocation.DeadlineOr(options.wait ? kWaitDeadline : kDeadline));
  bool has_answered = false;
  while (true) {
    const absl::StatusOr<bool> is_serving =
        IsServing(invocation.address, options.service, credentials, deadline.wall());
    // The deadline of --wait may cut the last question short. The process has told before that it
    // does not serve, which says more than that it did not answer in the time that was left.
    if (has_answered && !is_serving.ok() && deadline.left() <= absl::ZeroDuration()) return false;
    has_answered = is_serving.ok();
    const bool may_change = is_serving.ok() ? !*is_serving : rpc::IsRetryable(is_serving.status());
    if (!options.wait || !may_change || kWaitInterval >= deadline.left()) {
      return is_serving;
    }
    absl::SleepFor(kWaitInterval);
  }
}

absl::Status RunHealth(const Invocation& invocation, const HealthOptions& options) {
  const absl::StatusOr<bool> answer = Ask(invocation, options);
  if (!answer.ok()) return invocation.ExplainUnanswered(answer.status());
  const bool is_serving = *answer;
  if (invocation.json) {
    invocation.Print(
        {{"address", invocation.address}, {"service", options.service}, {"serving", is_serving}});
  } else if (is_serving) {
    std::cout << invocation.address << ": " << options.service << "\n";
  }
  if (is_serving) return absl::OkStatus();
  return WithReason(
      absl::UnavailableError(StrCat(invocation.address, " is not ", options.service,
                                    options.service == "ready"
                                        ? "; `shardmesh status` and its log say what it waits for"
                                        : "")),
      Reason::kNotServing);
}

}  // namespace

void AddHealthCommands(CommandLine* line) {
  auto options = std::make_shared<HealthOptions>();
  CLI::App* const health = line->AddCommand(
      "health", "Ask one process, coordinator or worker, whether it is alive and ready",
      [options](const Invocation& i) { return RunHealth(i, *options); });
  health->add_option("SERVICE", options->service,
                     "live: it runs; ready: it has all that it needs; or a service's full name "
                     "(default: ready)");
  health->add_flag("--wait", options->wait,
                   "wait until it is, or the deadline is over (default: 2m; without --wait 5s)");
}

}  // namespace shardmesh::client

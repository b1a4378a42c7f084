// One time limit for several calls.
#ifndef SHARDMESH_CLIENT_MODELS_TIME_LIMIT_H_
#define SHARDMESH_CLIENT_MODELS_TIME_LIMIT_H_

#include <optional>

#include "client/types/call_options.h"
#include "process/steady_deadline.h"

namespace shardmesh::client {

// Gives the calls of a function the time that its caller allows for all of them. Immutable.
// `options` must outlive the object.
class TimeLimit {
 public:
  // The time begins now.
  explicit TimeLimit(const CallOptions& options) : options_(options) {
    if (options.timeout.has_value()) end_ = SteadyDeadline::After(*options.timeout);
  }

  // Returns the options of the next call, with the time that is left; without a time limit, those
  // of the caller.
  CallOptions Next() const {
    CallOptions next = options_;
    if (end_.has_value()) next.timeout = end_->left();
    return next;
  }

 private:
  const CallOptions& options_;
  std::optional<SteadyDeadline> end_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_TIME_LIMIT_H_

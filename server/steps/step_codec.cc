// Encodes the messages of a step.
#include "server/steps/step_codec.h"

#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/flight_codec.h"
#include "rpc/codec/time_codec.h"
#include "server/state/array_view_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::server {

EncodedStep Encode(const StepMessage& message) {
  internal::v1::RunStep to;
  to.set_plan_hash(message.plan->hash);
  for (const StepMessage::Operand& operand : message.operands) {
    internal::v1::StepOperand* const encoded = to.add_operands();
    if (operand.literal != nullptr) {
      rpc::Encode(*operand.literal, encoded->mutable_literal());
    } else {
      encoded->set_array_id(operand.array_id);
      encoded->set_donate(operand.donate);
    }
  }
  for (const ArrayDescriptor& output : *message.outputs) {
    to.add_outputs(rpc::ArrayDescriptorBytes(output));
  }
  rpc::Encode(message.timeout, to.mutable_timeout());
  to.set_return_literals(message.return_literals);
  to.set_max_trace_spans(static_cast<int32_t>(message.max_trace_spans));
  return {.plan_hash = message.plan->hash,
          .plan = {message.plan, &message.plan->bytes},
          .rest = to.SerializeAsString()};
}

int64_t EncodedSizeBytes(const Literal& literal) {
  v1::Literal without_bytes;
  rpc::Encode({.dtype = literal.dtype, .shape = literal.shape, .bytes = {}}, &without_bytes);
  const size_t size_bytes = without_bytes.ByteSizeLong();
  if (literal.bytes.empty()) return static_cast<int64_t>(size_bytes);
  static_assert(v1::Literal::kDataFieldNumber < 16);  // so the tag of the field takes one byte
  return static_cast<int64_t>(
      size_bytes + 1 + google::protobuf::io::CodedOutputStream::VarintSize64(literal.bytes.size()) +
      literal.bytes.size());
}

int64_t EncodedSizeBytes(const ArrayDescriptor& descriptor) {
  v1::ArrayDescriptor encoded;
  rpc::Encode(descriptor, &encoded);
  return static_cast<int64_t>(encoded.ByteSizeLong());
}

namespace {

void Encode(const StepPrediction& from, v1::StepPrediction* to) {
  if (from.kernel.has_value()) rpc::Encode(*from.kernel, to->mutable_kernel());
  if (from.collective.has_value()) rpc::Encode(*from.collective, to->mutable_collective());
  if (from.sent_bytes.has_value()) to->set_sent_bytes(*from.sent_bytes);
  to->set_peak_bytes(from.peak_bytes);
  if (from.overhead.has_value()) rpc::Encode(*from.overhead, to->mutable_overhead());
}

bool IsTooLong(const v1::ExecuteResponse& response) {
  return static_cast<int64_t>(response.ByteSizeLong()) > rpc::kMaxControlMessageBytes;
}

// Leaves out the later half of each rank's spans. Returns false if there were none.
bool HalveSpans(v1::StepTrace* trace) {
  bool had_spans = false;
  for (v1::RankTrace& rank : *trace->mutable_ranks()) {
    const int omitted = (rank.spans_size() + 1) / 2;
    had_spans = had_spans || omitted > 0;
    rank.mutable_spans()->DeleteSubrange(rank.spans_size() - omitted, omitted);
    rank.set_omitted_spans(rank.omitted_spans() + omitted);
  }
  return had_spans;
}

void AddTrace(const StepTrace& from, v1::ExecuteResponse* to) {
  v1::StepTrace* const trace = to->mutable_timings()->mutable_trace();
  rpc::Encode(from, trace);
  while (IsTooLong(*to) && HalveSpans(trace)) {
  }
  if (IsTooLong(*to)) trace->clear_labels();
}

}  // namespace

v1::ExecuteResponse Encode(StepResult result) {
  v1::ExecuteResponse response;
  response.set_sequence(result.sequence);
  response.set_plan_hash(std::move(result.plan_hash));
  v1::StepTimings* const timings = response.mutable_timings();
  rpc::Encode(result.total, timings->mutable_total());
  rpc::Encode(result.kernel, timings->mutable_kernel());
  rpc::Encode(result.collective, timings->mutable_collective());
  timings->set_sent_bytes(result.sent_bytes);
  Encode(result.predicted, timings->mutable_predicted());
  for (StepResult::Output& output : result.outputs) {
    v1::StepOutput* const to = response.add_outputs();
    Encode(*output.array, &output.name, to->mutable_array());
    if (output.literal.has_value()) {
      rpc::Encode(*std::move(output.literal), to->mutable_literal());
    }
  }
  if (result.trace.has_value()) AddTrace(*result.trace, &response);
  // Workers may have been lost since the size was checked, so the list of missing ranks may have
  // grown. A client that needs the list can describe the array.
  if (IsTooLong(response)) {
    for (v1::StepOutput& output : *response.mutable_outputs()) {
      output.mutable_array()->clear_missing_ranks();
    }
  }
  return response;
}

}  // namespace shardmesh::server

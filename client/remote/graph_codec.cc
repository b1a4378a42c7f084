// Encodes, decodes and parses graphs.
#include "client/remote/graph_codec.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/tensor_op_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Keeps the first error of a text, with its place.
class FirstTextError final : public google::protobuf::io::ErrorCollector {
 public:
  // Counts from 0; -1 if the error is about the whole text.
  void AddError(int line, int column, const std::string& message) override {
    if (!message_.empty()) return;
    message_ =
        line < 0 ? message : StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  void AddWarning(int /*line*/, int /*column*/, const std::string& /*message*/) override {}

  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

absl::StatusOr<GraphOperand> DecodeOperand(const v1::GraphOperand& from) {
  GraphOperand operand{.name = from.name(), .type = {}};
  SHARDMESH_ASSIGN_OR_RETURN(operand.type.dtype, Decode(from.dtype()));
  operand.type.shape.assign(from.shape().begin(), from.shape().end());
  return operand;
}

void EncodeSymbol(const Program& from, v1::Graph* to) {
  if (from.symbol.has_value()) Encode(*from.symbol, to->mutable_symbol());
  for (const SymbolicExtent& extent : from.symbolic_extents) {
    Encode(extent.extent,
           to->mutable_operands(static_cast<int>(extent.operand))->add_symbolic_shape());
  }
}

void DecodeSymbol(const v1::Graph& from, Program* to) {
  if (from.has_symbol()) to->symbol = Decode(from.symbol());
  for (int i = 0; i < from.operands_size(); ++i) {
    for (const v1::SymbolicNumber& extent : from.operands(i).symbolic_shape()) {
      to->symbolic_extents.push_back(
          {.operand = static_cast<ValueIndex>(i), .extent = Decode(extent)});
    }
  }
}

}  // namespace

void Encode(const Graph& from, v1::Graph* to) {
  for (const GraphOperand& operand : from.operands) {
    v1::GraphOperand* const added = to->add_operands();
    added->set_name(operand.name);
    added->set_dtype(Encode(operand.type.dtype));
    added->mutable_shape()->Add(operand.type.shape.begin(), operand.type.shape.end());
  }
  for (const ProgramOp& op : from.program.ops) Encode(op, to->add_ops());
  for (size_t i = 0; i < from.outputs.size(); ++i) {
    v1::GraphOutput* const added = to->add_outputs();
    added->set_name(from.outputs[i].name);
    added->set_value(from.program.outputs[i]);
  }
  for (const StateUpdate& update : from.program.updates) {
    v1::StateUpdate* const added = to->add_updates();
    added->set_operand(update.operand);
    added->set_value(update.value);
  }
  EncodeSymbol(from.program, to);
}

absl::StatusOr<Graph> Decode(const v1::Graph& from) {
  Graph graph;
  graph.program.operand_count = static_cast<uint32_t>(from.operands_size());
  for (int i = 0; i < from.operands_size(); ++i) {
    auto operand = DecodeOperand(from.operands(i));
    if (!operand.ok()) {
      return WithField(std::move(operand).status(), "operands", static_cast<size_t>(i));
    }
    graph.operands.push_back(*std::move(operand));
  }
  for (int i = 0; i < from.ops_size(); ++i) {
    auto op = Decode(from.ops(i));
    if (!op.ok()) return WithField(std::move(op).status(), "ops", static_cast<size_t>(i));
    graph.program.ops.push_back(*std::move(op));
  }
  for (const v1::GraphOutput& output : from.outputs()) {
    graph.outputs.push_back({.name = output.name(), .type = std::nullopt});
    graph.program.outputs.push_back(output.value());
  }
  for (const v1::StateUpdate& update : from.updates()) {
    graph.program.updates.push_back({.operand = update.operand(), .value = update.value()});
  }
  DecodeSymbol(from, &graph.program);
  return CheckGraph(std::move(graph));
}

std::string GraphToText(const Graph& graph) {
  v1::Graph message;
  Encode(graph, &message);
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

absl::StatusOr<Graph> ParseGraphText(std::string_view text) {
  FirstTextError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  v1::Graph message;
  if (!parser.Parse(&input, &message)) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat("not a graph in protobuf's text format: ", error.message()));
  }
  return Decode(message);
}

}  // namespace shardmesh::rpc

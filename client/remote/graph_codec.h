// Converts graphs between messages, protobuf's text format and program/graph/graph.h.
#ifndef SHARDMESH_CLIENT_REMOTE_GRAPH_CODEC_H_
#define SHARDMESH_CLIENT_REMOTE_GRAPH_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "program/graph/graph.h"
#include "shardmesh/v1/program.pb.h"

namespace shardmesh::rpc {

void Encode(const Graph& from, v1::Graph* to);
// Returns the graph with its ops in an order that a program may have. Errors of CheckGraph, and of
// the codecs of ops and types, with the path of the field.
absl::StatusOr<Graph> Decode(const v1::Graph& from);

// Returns a v1::Graph in protobuf's text format.
std::string GraphToText(const Graph& graph);
// Parses a v1::Graph in protobuf's text format. Errors of Decode; INVALID_ARGUMENT (BAD_FILE): the
// text is no v1::Graph. The message gives line and column of the first fault, counted from 1.
absl::StatusOr<Graph> ParseGraphText(std::string_view text);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_CLIENT_REMOTE_GRAPH_CODEC_H_

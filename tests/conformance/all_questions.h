// Every function that the conformance runner can ask, of either subject.
#ifndef SHARDMESH_TESTS_CONFORMANCE_ALL_QUESTIONS_H_
#define SHARDMESH_TESTS_CONFORMANCE_ALL_QUESTIONS_H_

#include <string_view>

#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// Asks the library.
Questions LibraryQuestions();

// Asks a coordinator, which `client`, outliving the questions, is connected to. It needs no mesh,
// no definition and no worker: questions bring what they are about.
Questions WireQuestions(client::MeshClient& client);

// What only Python can express, and the runner therefore answers or translates itself: one line
// each, for the help text.
absl::Span<const std::string_view> AnsweredByTheRunner();

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_ALL_QUESTIONS_H_

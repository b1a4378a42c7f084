// Questions: for each call of the services of questions requests that have an answer, and changes
// to messages that make others of them.
#ifndef SHARDMESH_TESTS_MODEL_QUESTIONS_H_
#define SHARDMESH_TESTS_MODEL_QUESTIONS_H_

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/model/dice.h"

namespace shardmesh::model {

// Returns the messages of one call, in protobuf's text format. Each must be answered with OK, for
// any caller and any catalog. Empty for calls that are no questions.
std::vector<std::vector<std::string>> ValidQuestions(std::string_view method);

// As ValidQuestions, for calls that change something: only requests that must be refused are sent
// at random.
std::vector<std::string> RefusedRequests(std::string_view method);

// Makes a few random changes: fields set, cleared, repeated, with values on and beyond their
// bounds.
void Mutate(Dice& dice, google::protobuf::Message* message);

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_QUESTIONS_H_

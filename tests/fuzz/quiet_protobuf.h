// Keeps protobuf from logging each malformed text that it meets. Included where messages are read.
#ifndef SHARDMESH_TESTS_FUZZ_QUIET_PROTOBUF_H_
#define SHARDMESH_TESTS_FUZZ_QUIET_PROTOBUF_H_

#include <string>

#include "google/protobuf/stubs/logging.h"

namespace shardmesh::fuzz {

inline const bool kProtobufIsQuiet =
    (google::protobuf::SetLogHandler(
         [](google::protobuf::LogLevel, const char*, int, const std::string&) {}),
     true);

}  // namespace shardmesh::fuzz

#endif  // SHARDMESH_TESTS_FUZZ_QUIET_PROTOBUF_H_

// A layer below SQLite that lets one write, sync or truncation fail, as a disk does.
#ifndef SHARDMESH_TESTS_TESTING_FAULTY_VFS_H_
#define SHARDMESH_TESTS_TESTING_FAULTY_VFS_H_

#include <cstdint>
#include <string>

namespace shardmesh::test {

struct DiskFault {
  enum class Operation { kWrite, kSync, kTruncate };
  enum class Error { kInputOutput, kNoSpace };

  Operation operation = Operation::kWrite;
  int64_t at = 0;  // the operation that fails, counted from 1; 0: none
  Error error = Error::kInputOutput;
  // A failure loses unsynced data, as if the machine crashed with it.
  bool loses_unsynced = false;
  // While this file exists, each write fails for lack of space; empty: none fails.
  std::string full_while;
};

// Registers the layer, under the name that it returns, and sets how it fails. For a process in
// which one thread at a time uses SQLite.
std::string UseFaultyVfs(const DiskFault& fault);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_FAULTY_VFS_H_

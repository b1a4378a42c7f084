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
  // What was not synced when it failed is gone, as when the machine dies with it.
  bool loses_unsynced = false;
  // As long as this file is there each write fails for want of room; empty: none does.
  std::string full_while;
};

// Registers the layer, under the name that it returns, and sets how it fails. For a process in
// which one thread at a time uses SQLite.
std::string UseFaultyVfs(const DiskFault& fault);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_FAULTY_VFS_H_

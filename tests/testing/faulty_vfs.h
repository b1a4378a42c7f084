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
  int64_t at = 0;  // which operation fails, counted from 1; 0: none fails
  Error error = Error::kInputOutput;
  // Whether the failure also loses unsynced data, as if the machine crashed.
  bool loses_unsynced = false;
  // The path of a file. While the file exists, each write fails with a full disk. Empty: no write
  // fails so.
  std::string full_while;
};

// Registers the layer with SQLite and sets its failure; returns the name under which it is
// registered. Requires that only one thread at a time uses SQLite.
std::string UseFaultyVfs(const DiskFault& fault);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_FAULTY_VFS_H_

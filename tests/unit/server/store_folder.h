// Data folders with a store in them, for tests that open, damage and open them again.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_STORE_FOLDER_H_
#define SHARDMESH_TESTS_UNIT_SERVER_STORE_FOLDER_H_

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/sqlite_store.h"

namespace shardmesh::server {

inline std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/store_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

inline absl::StatusOr<std::unique_ptr<Store>> OpenFolder(const std::string& folder) {
  return OpenSqliteStore({.folder = folder});
}

// Of one database file, past the store.
inline void RunSql(const std::string& file, const std::string& sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_STORE_FOLDER_H_

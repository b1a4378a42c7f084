// Failpoints below SQLite: tests make its file operations fail on demand.
#ifndef SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_
#define SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

namespace shardmesh::server {

// Returns the name of an SQLite VFS (file layer). This VFS passes all operations to the system's
// files, except those that an armed failpoint `sqlite.*` makes fail. Returns null if no such
// failpoint is armed: SQLite then uses the system's files directly. Only one process may open a
// database with this VFS, because the VFS has no memory shared by processes.
const char* FailingVfs();

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

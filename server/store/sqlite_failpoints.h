// Failpoints below SQLite: its files, with operations that fail on demand.
#ifndef SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_
#define SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

namespace shardmesh::server {

// Returns the name of an SQLite VFS that passes all operations to the system's files, except those
// that an armed failpoint `sqlite.` makes fail. Null if none is armed: SQLite then uses its files
// directly. A database opened with it is for one process: it shares no memory.
const char* FailingVfs();

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

// Failpoints below SQLite: its files, of which an operation fails on demand.
#ifndef SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_
#define SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

namespace shardmesh::server {

// The name of an SQLite VFS that passes all operations on to the system's files, but for those that
// an armed failpoint `sqlite.` lets fail. Null if none is armed: then nothing stands between SQLite
// and its files. A database that is opened with it is for one process: it shares no memory.
const char* FailingVfs();

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_FAILPOINTS_H_

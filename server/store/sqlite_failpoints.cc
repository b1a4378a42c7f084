// An SQLite VFS (file layer) whose operations are failpoints.
#include "server/store/sqlite_failpoints.h"

#include <sqlite3.h>

#include <cerrno>

#include "process/failpoint.h"

namespace shardmesh::server {
namespace {

// A file of this VFS. SQLite's structure for the system's file follows in the same allocation.
struct File {
  sqlite3_file base;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* Real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real(); }
const sqlite3_io_methods& Methods(sqlite3_file* file) { return *Real(file)->pMethods; }
sqlite3_vfs* System(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

// Returns the code that the system's VFS would return. If a write fails with ENOSPC, this is
// SQLITE_FULL. In all other cases, it is `io_error`.
int Code(int io_error, bool has_room_of_its_own = true) {
  return !has_room_of_its_own && errno == ENOSPC ? SQLITE_FULL : io_error;
}

const sqlite3_io_methods kMethods = {
    .iVersion = 1,
    .xClose = [](sqlite3_file* file) { return Methods(file).xClose(Real(file)); },
    .xRead =
        [](sqlite3_file* file, void* to, int bytes, sqlite3_int64 offset) {
          if (SHARDMESH_FAILS("sqlite.read")) return Code(SQLITE_IOERR_READ);
          return Methods(file).xRead(Real(file), to, bytes, offset);
        },
    .xWrite =
        [](sqlite3_file* file, const void* from, int bytes, sqlite3_int64 offset) {
          if (SHARDMESH_FAILS("sqlite.write")) return Code(SQLITE_IOERR_WRITE, false);
          return Methods(file).xWrite(Real(file), from, bytes, offset);
        },
    .xTruncate =
        [](sqlite3_file* file, sqlite3_int64 bytes) {
          if (SHARDMESH_FAILS("sqlite.truncate")) return Code(SQLITE_IOERR_TRUNCATE);
          return Methods(file).xTruncate(Real(file), bytes);
        },
    .xSync =
        [](sqlite3_file* file, int flags) {
          if (SHARDMESH_FAILS("sqlite.sync")) return Code(SQLITE_IOERR_FSYNC);
          return Methods(file).xSync(Real(file), flags);
        },
    .xFileSize =
        [](sqlite3_file* file, sqlite3_int64* bytes) {
          if (SHARDMESH_FAILS("sqlite.size")) return Code(SQLITE_IOERR_FSTAT);
          return Methods(file).xFileSize(Real(file), bytes);
        },
    .xLock = [](sqlite3_file* file, int lock) { return Methods(file).xLock(Real(file), lock); },
    .xUnlock = [](sqlite3_file* file, int lock) { return Methods(file).xUnlock(Real(file), lock); },
    .xCheckReservedLock =
        [](sqlite3_file* file, int* is_reserved) {
          return Methods(file).xCheckReservedLock(Real(file), is_reserved);
        },
    .xFileControl =
        [](sqlite3_file* file, int operation, void* argument) {
          return Methods(file).xFileControl(Real(file), operation, argument);
        },
    .xSectorSize = [](sqlite3_file* file) { return Methods(file).xSectorSize(Real(file)); },
    .xDeviceCharacteristics =
        [](sqlite3_file* file) { return Methods(file).xDeviceCharacteristics(Real(file)); },
    // The methods that SQLite added in versions 2 and 3 of this structure are not supported: memory
    // shared by processes, and memory-mapped files.
    .xShmMap = nullptr,
    .xShmLock = nullptr,
    .xShmBarrier = nullptr,
    .xShmUnmap = nullptr,
    .xFetch = nullptr,
    .xUnfetch = nullptr,
};

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  if (SHARDMESH_FAILS("sqlite.open")) return SQLITE_CANTOPEN;
  sqlite3_file* const real = Real(file);
  const int code = System(vfs)->xOpen(System(vfs), name, real, flags, out_flags);
  // SQLite closes each file whose pMethods is set, even if opening that file failed.
  if (real->pMethods != nullptr) file->pMethods = &kMethods;
  return code;
}

int Delete(sqlite3_vfs* vfs, const char* name, int sync) {
  if (SHARDMESH_FAILS("sqlite.delete")) return Code(SQLITE_IOERR_DELETE);
  return System(vfs)->xDelete(System(vfs), name, sync);
}

}  // namespace

const char* FailingVfs() {
  static constexpr char kName[] = "shardmesh-failing";
  if (!IsArmed("sqlite.")) return nullptr;
  static sqlite3_vfs vfs = [] {
    sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
    sqlite3_vfs made = *system;
    made.iVersion = 1;
    made.szOsFile = static_cast<int>(sizeof(File)) + system->szOsFile;
    made.zName = kName;
    made.pAppData = system;
    made.xOpen = &Open;
    made.xDelete = &Delete;
    made.xAccess = [](sqlite3_vfs* self, const char* name, int flags, int* result) {
      return System(self)->xAccess(System(self), name, flags, result);
    };
    made.xFullPathname = [](sqlite3_vfs* self, const char* name, int size, char* to) {
      return System(self)->xFullPathname(System(self), name, size, to);
    };
    made.xGetLastError = [](sqlite3_vfs*, int, char*) { return errno; };
    return made;
  }();
  static const int registered = sqlite3_vfs_register(&vfs, /*makeDflt=*/0);
  return registered == SQLITE_OK ? kName : nullptr;
}

}  // namespace shardmesh::server

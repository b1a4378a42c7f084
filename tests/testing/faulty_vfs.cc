// Passes all operations to the system's files, except those that are to fail.
#include "tests/testing/faulty_vfs.h"
#include "tests/testing/read_file.h"

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>

namespace shardmesh::test {
namespace {

constexpr char kName[] = "shardmesh-faulty";

struct State {
  DiskFault fault;
  int64_t counts[3] = {};
  // Content of each file at its last sync.
  std::map<std::string, std::string> synced;
};
State& GetState() {
  static State state;
  return state;
}

struct File {
  sqlite3_file base;
  char* path;  // null for a file without a name
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
sqlite3_file* Real(sqlite3_file* file) { return Of(file)->real(); }
const sqlite3_io_methods& Methods(sqlite3_file* file) { return *Real(file)->pMethods; }
sqlite3_vfs* System(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

// Counts an operation; the code with which it fails, or SQLITE_OK.
int Next(DiskFault::Operation operation, int io_error) {
  State& state = GetState();
  const DiskFault& fault = state.fault;
  const int64_t count = ++state.counts[static_cast<int>(operation)];
  if (operation == DiskFault::Operation::kWrite && !fault.full_while.empty() &&
      std::filesystem::exists(fault.full_while)) {
    return SQLITE_FULL;
  }
  if (operation != fault.operation || count != fault.at) return SQLITE_OK;
  if (fault.loses_unsynced) {
    for (const auto& [path, content] : state.synced) {
      if (std::filesystem::exists(path)) std::ofstream(path, std::ios::binary) << content;
    }
  }
  // The system's layer says so of a write for which there is no room, but not of a sync.
  const bool is_full = fault.error == DiskFault::Error::kNoSpace;
  return is_full && operation == DiskFault::Operation::kWrite ? SQLITE_FULL : io_error;
}

const sqlite3_io_methods kMethods = {
    .iVersion = 1,
    .xClose =
        [](sqlite3_file* file) {
          const int code = Methods(file).xClose(Real(file));
          sqlite3_free(Of(file)->path);
          return code;
        },
    .xRead =
        [](sqlite3_file* file, void* to, int bytes, sqlite3_int64 offset) {
          return Methods(file).xRead(Real(file), to, bytes, offset);
        },
    .xWrite =
        [](sqlite3_file* file, const void* from, int bytes, sqlite3_int64 offset) {
          const int fails = Next(DiskFault::Operation::kWrite, SQLITE_IOERR_WRITE);
          return fails != SQLITE_OK ? fails : Methods(file).xWrite(Real(file), from, bytes, offset);
        },
    .xTruncate =
        [](sqlite3_file* file, sqlite3_int64 bytes) {
          const int fails = Next(DiskFault::Operation::kTruncate, SQLITE_IOERR_TRUNCATE);
          return fails != SQLITE_OK ? fails : Methods(file).xTruncate(Real(file), bytes);
        },
    .xSync =
        [](sqlite3_file* file, int flags) {
          const int fails = Next(DiskFault::Operation::kSync, SQLITE_IOERR_FSYNC);
          if (fails != SQLITE_OK) return fails;
          const int code = Methods(file).xSync(Real(file), flags);
          const char* const path = Of(file)->path;
          if (path != nullptr && GetState().fault.loses_unsynced) {
            GetState().synced[path] = ReadFile(path);
          }
          return code;
        },
    .xFileSize = [](sqlite3_file* file,
                    sqlite3_int64* bytes) { return Methods(file).xFileSize(Real(file), bytes); },
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
    // Of versions 2 and 3: memory shared by processes. A store has only one process.
    .xShmMap = nullptr,
    .xShmLock = nullptr,
    .xShmBarrier = nullptr,
    .xShmUnmap = nullptr,
    .xFetch = nullptr,
    .xUnfetch = nullptr,
};

int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  File* const opened = Of(file);
  opened->base.pMethods = nullptr;
  opened->path = nullptr;
  const int code = System(vfs)->xOpen(System(vfs), name, opened->real(), flags, out_flags);
  if (opened->real()->pMethods == nullptr) return code;
  opened->base.pMethods = &kMethods;
  if (name != nullptr) {
    opened->path = sqlite3_mprintf("%s", name);
    if (GetState().fault.loses_unsynced) GetState().synced.try_emplace(name, ReadFile(name));
  }
  return code;
}

}  // namespace

std::string UseFaultyVfs(const DiskFault& fault) {
  static sqlite3_vfs vfs = [] {
    sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
    sqlite3_vfs made = *system;
    made.iVersion = 1;
    made.szOsFile = static_cast<int>(sizeof(File)) + system->szOsFile;
    made.zName = kName;
    made.pAppData = system;
    made.xOpen = &Open;
    made.xDelete = [](sqlite3_vfs* self, const char* name, int sync) {
      GetState().synced.erase(name);
      return System(self)->xDelete(System(self), name, sync);
    };
    made.xAccess = [](sqlite3_vfs* self, const char* name, int flags, int* result) {
      return System(self)->xAccess(System(self), name, flags, result);
    };
    made.xFullPathname = [](sqlite3_vfs* self, const char* name, int size, char* to) {
      return System(self)->xFullPathname(System(self), name, size, to);
    };
    made.xGetLastError = [](sqlite3_vfs*, int, char*) { return 0; };
    return made;
  }();
  static const int registered = sqlite3_vfs_register(&vfs, /*makeDflt=*/0);
  static_cast<void>(registered);
  GetState() = State();
  GetState().fault = fault;
  return kName;
}

}  // namespace shardmesh::test

// A library to preload: the coordinator's syncs fail while the file named by SHARDMESH_FAIL_SYNC
// exists, as those of a broken disk. It has no effect on other programs.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

bool Fails() {
  const char* const path = std::getenv("SHARDMESH_FAIL_SYNC");
  return path != nullptr && access(path, F_OK) == 0 &&
         std::strcmp(program_invocation_short_name, "shardmesh-coordinator") == 0;
}

int Sync(const char* function, int fd) {
  if (Fails()) {
    errno = EIO;
    return -1;
  }
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, function))(fd);
}

}  // namespace

extern "C" int fsync(int fd) { return Sync("fsync", fd); }
extern "C" int fdatasync(int fd) { return Sync("fdatasync", fd); }

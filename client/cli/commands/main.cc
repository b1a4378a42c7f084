// The program shardmesh: the command line for all operations on a cluster.
#include "client/cli/command_line.h"
#include "client/cli/commands/command_guide.h"
#include "client/cli/interruption.h"
#include "process/allocator.h"
#include "process/descriptor_limit.h"
#include "process/mutex_checks.h"
#include "process/signal.h"
#include "rpc/library_logs.h"

int main(int argc, char** argv) {
  shardmesh::KeepStandardDescriptors();
  shardmesh::KeepMessageMemory();
  shardmesh::SkipMutexChecks();
  shardmesh::rpc::TakeLibraryLogs();
  shardmesh::IgnoreFileSizeSignal();
  shardmesh::client::SayIfAFileIsLost();
  shardmesh::client::CommandLine line;
  shardmesh::client::AddAllCommands(&line);
  return line.Run(argc, argv);
}

// The program shardmesh: everything that a user does with a cluster, from a terminal.
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/interruption.h"
#include "process/allocator.h"
#include "process/descriptor_limit.h"
#include "process/mutex_checks.h"
#include "rpc/library_logs.h"

int main(int argc, char** argv) {
  shardmesh::KeepStandardDescriptors();
  shardmesh::rpc::KeepMessageMemory();
  shardmesh::rpc::SkipMutexChecks();
  shardmesh::rpc::TakeLibraryLogs();
  shardmesh::client::SayIfAFileIsLost();
  shardmesh::client::CommandLine line;
  shardmesh::client::AddAdminCommands(&line);
  shardmesh::client::AddClusterCommands(&line);
  shardmesh::client::AddDoctorCommands(&line);
  shardmesh::client::AddErrorsCommands(&line);
  shardmesh::client::AddHealthCommands(&line);
  shardmesh::client::AddLinksCommands(&line);
  shardmesh::client::AddBenchCommands(&line);
  shardmesh::client::AddLayoutCommands(&line);
  shardmesh::client::AddSpecCommands(&line);
  shardmesh::client::AddProfileCommands(&line);
  shardmesh::client::AddMeshCommands(&line);
  shardmesh::client::AddLayerCommands(&line);
  shardmesh::client::AddPlanCommands(&line);
  shardmesh::client::AddArrayCommands(&line);
  shardmesh::client::AddComputeCommands(&line);
  shardmesh::client::AddCatalogCommands(&line);
  shardmesh::client::AddRulesCommands(&line);
  shardmesh::client::AddLogicalCommands(&line);
  shardmesh::client::AddCertsCommands(&line);
  shardmesh::client::AddCheckpointCommands(&line);
  return line.Run(argc, argv);
}

// All commands of the program, by topic. Each function adds the commands of its topic to the
// command line.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_COMMANDS_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_COMMANDS_H_

#include "client/cli/command_line.h"

namespace shardmesh::client {

void AddAdminCommands(CommandLine* line);       // admin snapshot, check, ..., quarantine
void AddWorkerCommands(CommandLine* line);      // admin worker drain, forget, replace
void AddClusterCommands(CommandLine* line);     // up, down, status, version
void AddBenchCommands(CommandLine* line);       // bench collectives
void AddDoctorCommands(CommandLine* line);      // doctor
void AddErrorsCommands(CommandLine* line);      // explain-error
void AddHealthCommands(CommandLine* line);      // health
void AddLinksCommands(CommandLine* line);       // links
void AddLayoutCommands(CommandLine* line);      // resolve, match, presets
void AddSpecCommands(CommandLine* line);        // explain, constrain, compare, tiles, axes
void AddProfileCommands(CommandLine* line);     // profile show, hash
void AddMeshCommands(CommandLine* line);        // mesh show, mesh query, spec axes
void AddLayerCommands(CommandLine* line);       // layer output, check, describe, promote
void AddPlanCommands(CommandLine* line);        // plan, shardings
void AddOperationCommands(CommandLine* line);   // ops ls, show, watch, cancel
void AddArrayCommands(CommandLine* line);       // load, put, ls, get, describe, rm; array ...
void AddReshardCommands(CommandLine* line);     // reshard
void AddComputeCommands(CommandLine* line);     // linear, matmul, collective
void AddRunCommands(CommandLine* line);         // run
void AddModelCommands(CommandLine* line);       // embed, generate
void AddCatalogCommands(CommandLine* line);     // catalog ls, get, history, put, rm
void AddRulesCommands(CommandLine* line);       // rules lint, diff, test, rewrite, from-text
void AddLogicalCommands(CommandLine* line);     // logical resolve, compose
void AddCertsCommands(CommandLine* line);       // certs
void AddCheckpointCommands(CommandLine* line);  // save, make-checkpoint, make-tensor
void AddConfigCommands(CommandLine* line);      // config set-context, use-context, ...
void AddManualCommands(CommandLine* line);      // completion, man

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_COMMANDS_H_

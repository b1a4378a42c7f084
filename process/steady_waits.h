// Timed waits that an adjustment of the wall clock neither prolongs nor shortens.
#ifndef SHARDMESH_PROCESS_STEADY_WAITS_H_
#define SHARDMESH_PROCESS_STEADY_WAITS_H_

namespace shardmesh {

// Abseil waits until a wall-clock time; Mutex::AwaitWithTimeout adds its timeout to the present as
// well. If the clock is set back by an hour, each current wait lasts an hour longer: heartbeats,
// leases and renewals stop.
//
// A program that calls this function replaces Abseil's waits with its own. The replacement covers
// all mutexes and condition variables of the process, including those of gRPC. A wait then measures
// its time on the steady clock, from the moment at which it begins.
//
// The call itself only links this file into the program. The replacement is active from program
// start.
void UseSteadyWaits();

// Returns whether the waits are replaced. They are not in builds for ThreadSanitizer, nor where the
// library uses other symbol names.
bool WaitsAreSteady();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_STEADY_WAITS_H_

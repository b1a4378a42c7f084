// Timelines of steps as files for ui.perfetto.dev.
#ifndef SHARDMESH_CLIENT_INSPECT_TRACE_EVENTS_H_
#define SHARDMESH_CLIENT_INSPECT_TRACE_EVENTS_H_

#include <cstdint>
#include <string>

#include "program/flight_record.h"

namespace shardmesh::client {

// Returns the timeline as JSON in the trace-event format, which ui.perfetto.dev and
// chrome://tracing open. Each rank is a process; its instructions, kernels, sends and waits are
// threads, and so are spans of kinds that only newer workers know, such as `kind 7`. Times are in
// microseconds after the first rank began the step. Labels that are not valid UTF-8 are repaired.
// `step`: the step's sequence number.
//
// Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string TraceEventsOf(const StepTrace& trace, int64_t step);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_TRACE_EVENTS_H_

// Passes lower a compute-only schedule to what an executor runs: transfers, gradient reductions, optimizer steps.
#pragma once

#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// Adds SEND_F, RECV_F, SEND_B, RECV_B where neighbouring stages are on different ranks; compute order is kept.
///
/// buffered: each SEND right after its producer, each RECV right before its consumer. What an executor should run whose
/// sends do not wait for the receiver: no RECV blocks a row earlier than the data is needed.
///
/// rendezvous: the same, but a RECV moves forward where rendezvous sends would otherwise deadlock (in 1F1B rank r sends
/// F(k+1) forward while rank r+1 sends the gradient of micro-batch k back, and each would wait for the other's RECV).
/// The rows are walked together; a transfer happens when its SEND is next on one side and its RECV is due on the other;
/// when no row can move, the RECV whose consumer is nearest, of a SEND that is waiting, is put at its receiver's
/// present position. So both ends of every transfer stand where one global order of events has it, and rows cut out of
/// one global order cannot deadlock: the earliest event not yet done is next on all its ranks. It is also valid when
/// sends are buffered.
/// @pre no transfers yet. @throws Error{request} when the compute-only schedule is not valid
Schedule add_transfers(const Schedule& schedule, SendMode sends = SendMode::rendezvous);

/// Adds REDUCE_GRAD of each stage after its last B or W and the SENDs that follow that action, so that a neighbour does
/// not wait for the reduction. Data-parallel replicas have equal rows, hence reduce in equal order.
Schedule add_reduction(const Schedule& schedule);

/// Adds one STEP at the end of each row.
Schedule add_step(const Schedule& schedule);

}  // namespace cuboid

// Proves that a schedule can be run: complete, in order, one rank a stage, free of deadlock. Works on compute-only
// schedules and on schedules with transfers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid {

/// When a SEND returns.
enum class SendMode {
  rendezvous,  ///< when the receiver has reached its RECV: the strictest assumption, true of any transport
  buffered,    ///< at once; a RECV finds its message by stage and micro-batch
};

struct VerifyOptions {
  SendMode sends = SendMode::rendezvous;
  std::optional<int> max_activations;  ///< most micro-batches of one stage a rank may hold between F and B (or W)
};

/// What verify has to say about a schedule.
struct Finding {
  bool note = false;  ///< true: it runs, but a person should know
  int rank = -1;      ///< -1: the schedule as a whole
  std::string text;   ///< "rank 1: 1B1 is missing"
};

/// Everything that is wrong, or worth a note; empty for a perfect schedule.
/// - Every stage on exactly one rank; per stage and micro-batch one F and one B, or one F, one I and one W.
/// - In each row every action after what it needs from the same rank (F of the stage before, B or I of the stage
/// behind,
///   F before B or I, I before W).
/// - With transfers: one SEND after its producer and one RECV before its consumer for each pair of neighbouring stages
/// on
///   different ranks, and no others. REDUCE_GRAD once, after the stage's last weight gradient; STEP last; a stage with
///   UNSHARD computes only while unsharded.
/// - Freedom from deadlock: rows are walked in order until all end or none can move; "rank 0 waits at 0B0, rank 1 at
/// 1F1".
///   A row without a choice makes the walk's outcome independent of timing, so that the walk is a proof.
/// - Note: weight gradients of a stage not in ascending micro-batch order (sums may differ in the last bits).
std::vector<Finding> verify(const Schedule& schedule, const VerifyOptions& options = {});

/// @throws Error{request} with every fault (not the notes), one a line, prefixed "--schedule NAME: "
void require_valid(const Schedule& schedule, const VerifyOptions& options = {});

/// For each rank the largest number of (stage, micro-batch) pairs between their F and their B or W: activations held,
/// in units of one micro-batch of one stage. It follows from the order of the row alone.
std::vector<int> peak_activations(const Schedule& schedule);

}  // namespace cuboid

// What processes send each other, and who carries it. A transport moves parcels between the processes of a job and
// knows nothing of what they mean; parcels of one sender arrive in the order in which they were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuboid/runtime/memory.h"

#include "../operation.h"

namespace cuboid::detail {

enum class ParcelKind : std::uint8_t {
  // Of a group.
  contribution,  ///< a process's part in a collective, sent once its members have all called it
  mismatch,      ///< the members of a process disagree; payload: why
  partial,       ///< a chunk of a reduction on its way through the processes, summed so far
  result,        ///< a chunk of a reduction's result
  message,       ///< from member to member
  // Of a run.
  rank_ended,  ///< `from`: a rank that starts nothing more
  failure,     ///< to process 0: a rank failed; `from`: rank, `tag`: kind, payload: why
  abort,       ///< from process 0: stop, and tell what you were waiting for
  state,       ///< to process 0: payload, a line a rank
  done,        ///< to process 0: all rank threads have ended
  outcome,     ///< from process 0: how the run ended; fields as of failure, tag -1: well
  // Of a job.
  heartbeat,
  farewell,  ///< from process 0: it has said all it had to say
};

constexpr int kMostDims = 8;

/// Travels as its bytes: all processes run the same program on the same kind of machine.
struct Header {
  ParcelKind kind{};
  std::uint32_t run = 0;       ///< counts the runs of a job
  std::uint64_t group = 0;     ///< id of the communicator
  std::uint64_t sequence = 0;  ///< of the operation on it
  Call call{};                 ///< contribution
  std::int32_t from = 0;       ///< member or rank
  std::int32_t to = 0;         ///< member
  std::int32_t tag = 0;        ///< message; failure: the kind of error
  std::int32_t stage = 0;      ///< partial: the run of members to add next; result: place in the way back
  std::int64_t part = 0;       ///< partial, result: part of a reduce_scatter
  std::int64_t offset = 0;     ///< partial, result: first element, in its part
  DType dtype{};               ///< message
  std::int32_t dims = 0;       ///< message: its shape
  std::int64_t dim[kMostDims] = {};
  std::int64_t bytes = 0;  ///< of the payload
};

struct Parcel {
  int process = 0;  ///< who sent it
  Header header;
  std::shared_ptr<Buffer> payload;  ///< of header.bytes bytes; null if that is 0
  const std::byte* data() const { return payload ? static_cast<const std::byte*>(payload->data()) : nullptr; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int process() const = 0;
  /// Host name of every process of the job.
  virtual const std::vector<std::string>& hosts() const = 0;
  /// Starts to send; does not wait. `keep` holds the payload, which nobody may change any more.
  virtual void send(int process, Header header, const std::byte* payload, std::shared_ptr<Buffer> keep) = 0;
  /// Makes progress and appends what has arrived. False if nothing moved.
  virtual bool poll(std::vector<Parcel>& arrived) = 0;
  /// Everything sent has left.
  virtual bool idle() const = 0;
  /// Ends the job's communication. Collective; only where no process has failed.
  virtual void close() = 0;
};

/// The job's processes over MPI. @throws Error{request} if this build has no MPI; Error{failed} if MPI cannot start
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace cuboid::detail

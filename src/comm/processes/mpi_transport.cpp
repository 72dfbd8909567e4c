// Parcels over MPI: the only file that calls it. One communicator carries everything: a group of rank threads is not a
// group of processes, and making MPI communicators would add collective calls that know no deadline. The caller
// serialises all calls.
#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include "cuboid/comm/processes.h"

#include "transport.h"

namespace cuboid::detail {
namespace {

constexpr int kHeaderTag = 1;
constexpr int kPayloadTag = 2;
// A header and a small payload travel as one eager message.
constexpr std::size_t kInlineBytes = 3584;
// MPI counts are int.
constexpr std::int64_t kMostBytesAMessage = std::int64_t{1} << 30;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorKind::failed, fmt::format("{}: {}", call, text));
}

bool all_complete(std::vector<MPI_Request>& requests) {
  int done = 0;
  check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  return done != 0;
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
      throw Error(ErrorKind::failed, "this MPI library cannot be called by several threads (MPI_THREAD_SERIALIZED)");
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int size = 1;
    MPI_Comm_rank(comm_, &process_);
    MPI_Comm_size(comm_, &size);
    receiving_.resize(static_cast<std::size_t>(size));
    char own[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    MPI_Get_processor_name(own, &length);
    std::string all(static_cast<std::size_t>(size) * sizeof(own), '\0');
    check(MPI_Allgather(own, sizeof(own), MPI_CHAR, all.data(), sizeof(own), MPI_CHAR, comm_), "MPI_Allgather");
    for (int p = 0; p < size; ++p) hosts_.emplace_back(all.c_str() + static_cast<std::size_t>(p) * sizeof(own));
  }

  int process() const override { return process_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }

  void send(int process, Header header, const std::byte* payload, std::shared_ptr<Buffer> keep) override {
    Sending& sending = sending_.emplace_back();
    const bool small = header.bytes <= static_cast<std::int64_t>(kInlineBytes);
    sending.head.resize(sizeof(Header) + (small ? static_cast<std::size_t>(header.bytes) : 0));
    std::memcpy(sending.head.data(), &header, sizeof(Header));
    if (small && header.bytes > 0) {
      std::memcpy(sending.head.data() + sizeof(Header), payload, static_cast<std::size_t>(header.bytes));
    }
    start_send(sending, sending.head.data(), static_cast<std::int64_t>(sending.head.size()), process, kHeaderTag);
    if (small) return;
    sending.keep = std::move(keep);
    for (std::int64_t at = 0; at < header.bytes; at += kMostBytesAMessage) {
      start_send(sending, payload + at, std::min(kMostBytesAMessage, header.bytes - at), process, kPayloadTag);
    }
  }

  bool poll(std::vector<Parcel>& arrived) override {
    const std::size_t sent = std::erase_if(sending_, [](Sending& sending) { return all_complete(sending.requests); });
    bool moved = sent > 0;
    while (receive_header()) moved = true;
    for (auto& queue : receiving_) {
      // In the order of sending: what follows a large parcel waits for it.
      while (!queue.empty() && all_complete(queue.front().requests)) {
        arrived.push_back(std::move(queue.front().parcel));
        queue.pop_front();
        moved = true;
      }
    }
    return moved;
  }

  bool idle() const override { return sending_.empty(); }

  void close() override {
    MPI_Comm_free(&comm_);
    MPI_Finalize();
  }

 private:
  struct Sending {
    std::vector<std::byte> head;
    std::shared_ptr<Buffer> keep;
    std::vector<MPI_Request> requests;
  };
  struct Receiving {
    Parcel parcel;
    std::vector<MPI_Request> requests;
  };

  void start_send(Sending& sending, const std::byte* data, std::int64_t bytes, int process, int tag) {
    sending.requests.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, process, tag, comm_, &sending.requests.back()),
          "MPI_Isend");
  }

  bool receive_header() {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, kHeaderTag, comm_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return false;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    head_.resize(static_cast<std::size_t>(bytes));
    check(MPI_Mrecv(head_.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    const int source = status.MPI_SOURCE;
    Receiving& receiving = receiving_[static_cast<std::size_t>(source)].emplace_back();
    receiving.parcel.process = source;
    Header& header = receiving.parcel.header;
    std::memcpy(&header, head_.data(), sizeof(Header));
    if (header.bytes == 0) return true;
    receiving.parcel.payload = std::make_shared<Buffer>(host_memory(), account_, Category::communication,
                                                        static_cast<std::size_t>(header.bytes));
    auto* to = static_cast<std::byte*>(receiving.parcel.payload->data());
    if (header.bytes <= static_cast<std::int64_t>(kInlineBytes)) {
      std::memcpy(to, head_.data() + sizeof(Header), static_cast<std::size_t>(header.bytes));
      return true;
    }
    for (std::int64_t at = 0; at < header.bytes; at += kMostBytesAMessage) {
      receiving.requests.emplace_back(MPI_REQUEST_NULL);
      check(MPI_Irecv(to + at, static_cast<int>(std::min(kMostBytesAMessage, header.bytes - at)), MPI_BYTE, source,
                      kPayloadTag, comm_, &receiving.requests.back()),
            "MPI_Irecv");
    }
    return true;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int process_ = 0;
  std::vector<std::string> hosts_;
  std::deque<Sending> sending_;
  std::vector<std::deque<Receiving>> receiving_;  // by sender, oldest first
  std::vector<std::byte> head_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() {
  return std::make_unique<MpiTransport>();
}

}  // namespace cuboid::detail

bool cuboid::built_with_mpi() {
  return true;
}

#include "stream.h"

#include <string>

#include "cuboid/core/error.h"

namespace cuboid::cuda {

void check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  // The error is reported here: a later check must not report it again.
  (void)cudaGetLastError();
  throw Error(ErrorKind::failed, std::string(expression) + ": " + cudaGetErrorString(status) + " (" +
                                     cudaGetErrorName(status) + ") at " + file + ":" + std::to_string(line));
}

Event::Event() {
  CUBOID_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}

// Destructors report nothing: what failed on the device comes back from the next call that can throw.
Event::~Event() {
  cudaEventDestroy(event_);
}

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  CUBOID_CUDA(status);
  return true;
}

Stream::Stream() {
  CUBOID_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

Mark Stream::mark() const {
  auto event = std::make_shared<Event>();
  CUBOID_CUDA(cudaEventRecord(event->get(), stream_));
  return event;
}

void Stream::wait(const Mark& mark) const {
  CUBOID_CUDA(cudaStreamWaitEvent(stream_, mark->get(), 0));
}

void Stream::synchronize() const {
  CUBOID_CUDA(cudaStreamSynchronize(stream_));
}

}  // namespace cuboid::cuda

#include "launch/stop_signal.h"

#include <csignal>

namespace cuboid::launch {
namespace {

volatile std::sig_atomic_t received = 0;

void remember(int signal) {
  received = signal;
}

void handle(int signal, int flags) {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | flags;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void listen_for_stop(bool alone) {
  if (alone) handle(SIGTERM, static_cast<int>(SA_RESETHAND));
  handle(SIGUSR1, 0);
  std::signal(SIGXFSZ, SIG_IGN);
}

std::string stop_signal() {
  return received == 0 ? "" : received == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

}  // namespace cuboid::launch

#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace ullage::cli {
namespace {

std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

extern "C" void OnInterrupt(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

int InterruptSignal() {
  return first_signal.load();
}

}  // namespace ullage::cli

// Starts a thread of the library in a program that is not ours.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace ivy::comm {

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Every signal is blocked in the thread: signals are the program's, whose handlers run in its own
// threads. Throws std::system_error where the system gives no thread.
template <class Body>
std::thread background_thread(Body body) {
  const AllSignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace ivy::comm

#include "comm/job_bell.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "comm/background_thread.h"
#include "comm/transports/futex.h"

namespace ivy::comm {
namespace {

// The kernel wakes it; this is for a kernel that cannot wait for two words (futex.h).
constexpr std::chrono::seconds kLookAround{10};

}  // namespace

JobBell::JobBell(const comm_status::StatusPage& page) : page_(page) {
  thread_ = background_thread([this] { run(); });
}

JobBell::~JobBell() {
  ending_.store(1);
  futex_wake_all(ending_);
  thread_.join();
}

void JobBell::add(int eventfd) {
  const std::lock_guard lock(mutex_);
  bells_.push_back(eventfd);
}

void JobBell::remove(int eventfd) {
  const std::lock_guard lock(mutex_);
  std::erase(bells_, eventfd);
}

void JobBell::run() {
  std::uint32_t seen = page_.news().load(std::memory_order_acquire);
  while (ending_.load() == 0) {
    const std::uint32_t now = page_.news().load(std::memory_order_acquire);
    if (now == seen) {
      futex_wait({&ending_, 0}, {&page_.news(), now}, kLookAround);
      continue;
    }
    seen = now;
    const std::lock_guard lock(mutex_);
    const std::uint64_t one = 1;
    for (const int bell : bells_) static_cast<void>(!write(bell, &one, sizeof one));
  }
}

}  // namespace ivy::comm

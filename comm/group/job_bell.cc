#include "comm/group/job_bell.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/transports/futex.h"

namespace ivy::comm {
namespace {

// The kernel wakes it; this is for a kernel that cannot wait for two words (futex.h).
constexpr std::chrono::seconds kBellLookAround{10};

}  // namespace

JobBell::JobBell(const comm_status::StatusPage& page) {
  const std::uint32_t now = page.news().load(std::memory_order_acquire);
  await_ = [this, page, seen = now](std::uint64_t) mutable { return await_change(page, seen); };
  stop_ = [this] { futex_wake_all(ending_); };
  thread_ = background_thread([this] { run(); });
}

JobBell::JobBell(std::function<bool(std::uint64_t)> await, std::function<void()> stop)
    : await_(std::move(await)), stop_(std::move(stop)) {
  thread_ = background_thread([this] { run(); });
}

JobBell::~JobBell() {
  ending_.store(1);
  stop_();
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

bool JobBell::await_change(const comm_status::StatusPage& page, std::uint32_t& seen) {
  while (ending_.load() == 0) {
    const std::uint32_t now = page.news().load(std::memory_order_acquire);
    if (now != seen) {
      seen = now;
      return true;
    }
    futex_wait({&ending_, 0}, {&page.news(), now}, kBellLookAround);
  }
  return false;
}

void JobBell::run() {
  while (ending_.load() == 0 && await_(heard_.load())) {
    heard_.fetch_add(1, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    const std::uint64_t one = 1;
    for (const int bell : bells_) static_cast<void>(!write(bell, &one, sizeof one));
  }
}

}  // namespace ivy::comm

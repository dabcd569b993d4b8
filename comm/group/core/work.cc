// SPDX-License-Identifier: Apache-2.0
#include "comm/group/core/work.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/contract/ivycomm.h"
#include "comm/transports/shm/relax.h"
#include "proto/os/clock.h"

namespace ivy::comm {

using std::chrono::steady_clock;

namespace {

// Added to the clock, this never overflows.
constexpr std::chrono::hours kLongestWait{24 * 365};
// A wait for a device spins for the duration of a small operation, then sleeps for growing
// intervals.
constexpr std::chrono::microseconds kMarkSpin{100};
constexpr std::chrono::microseconds kFirstMarkPause{20};
constexpr std::chrono::microseconds kLongestMarkPause{200};

void give(const Work::Notice& notice) {
  while (write(notice.descriptor, &notice.token, sizeof notice.token) < 0 && errno == EINTR) {
  }
}

}  // namespace

void Work::set_mark(std::shared_ptr<nccl::StreamMark> mark,
                    std::shared_ptr<const std::atomic<bool>> is_broken) {
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  is_broken_ = std::move(is_broken);
  started_ = called_;
}

// Checks the mark itself, because the thread that watches the device polls only every few
// milliseconds.
void Work::check_mark() {
  const Result<bool> is_reached = mark_->is_reached();
  if (is_reached.ok() && *is_reached && !*is_broken_) finish(Outcome());
}

std::optional<Outcome> Work::wait_for_mark(steady_clock::time_point until) {
  const auto began = steady_now();
  std::chrono::microseconds pause = kFirstMarkPause;
  while (true) {
    if (std::optional<Outcome> outcome = test()) return outcome;
    const auto now = steady_now();
    if (now >= until) return std::nullopt;
    if (now - began < kMarkSpin) {
      relax();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestMarkPause);
  }
}

void Work::finish_captured() {
  is_captured_ = true;
  finish(Outcome());
}

std::optional<Outcome> Work::hold_back(void* stream) {
  constexpr std::chrono::milliseconds kForever(-1);
  if (mark_ == nullptr) return wait(kForever);
  {
    const std::lock_guard lock(mutex_);
    if (outcome_ && !is_captured_) return outcome_;
  }
  const Result<void> held = mark_->hold_back(stream);
  if (!held.ok()) return wait(kForever);
  return Outcome();
}

std::optional<Outcome> Work::wait(std::chrono::milliseconds at_most) {
  if (mark_ != nullptr) {
    const bool is_forever = at_most.count() < 0 || at_most > kLongestWait;
    return wait_for_mark(is_forever ? steady_clock::time_point::max() : steady_now() + at_most);
  }
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return outcome_.has_value(); };
  if (at_most.count() < 0 || at_most > kLongestWait) {
    is_done_.wait(lock, is_done);
  } else {
    is_done_.wait_for(lock, at_most, is_done);
  }
  return outcome_;
}

std::optional<Outcome> Work::test() {
  {
    const std::lock_guard lock(mutex_);
    if (outcome_ || mark_ == nullptr) return outcome_;
  }
  check_mark();
  const std::lock_guard lock(mutex_);
  return outcome_;
}

WorkTiming Work::timing() {
  const std::lock_guard lock(mutex_);
  if (!outcome_) return {};
  return {started_ - called_, ended_ - started_};
}

void Work::notify(const Notice& notice) {
  {
    const std::lock_guard lock(mutex_);
    if (!outcome_) return notices_.push_back(notice);
  }
  give(notice);
}

void Work::start() {
  const std::lock_guard lock(mutex_);
  started_ = steady_now();
}

void Work::finish(const Outcome& outcome) {
  std::vector<Notice> notices;
  {
    const std::lock_guard lock(mutex_);
    // A waiting thread may notice the end before the thread that watches the device.
    if (outcome_) return;
    ended_ = steady_now();
    if (started_ == steady_clock::time_point{}) started_ = ended_;
    outcome_ = outcome;
    notices.swap(notices_);
    is_done_.notify_all();
  }
  for (const Notice& notice : notices) give(notice);
}

WorkQueue::~WorkQueue() {
  std::deque<Task> abandoned;
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    abandoned.swap(tasks_);
    thread.swap(thread_);
    has_more_.notify_all();
  }
  for (Task& task : abandoned) {
    const Failure failure = make_failure(
        FailureKind::kAborted, "the communicator was closed before the operation started");
    task.work->finish(Outcome(failure));
  }
  if (thread.joinable()) thread.join();
}

bool WorkQueue::push(std::shared_ptr<Work> work, std::function<Outcome()> body) {
  const std::lock_guard lock(mutex_);
  if (tasks_.size() >= kPendingMax) return false;
  // Start the thread first: if that fails, the call must not stay queued for a later thread.
  if (!thread_.joinable()) thread_ = background_thread([this] { run(); });
  tasks_.push_back({std::move(work), std::move(body)});
  pending_.fetch_add(1, std::memory_order_acq_rel);
  has_more_.notify_all();
  return true;
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_more_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
    if (is_ending_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task.work->start();
    Outcome outcome = no_memory_;
    try {
      outcome = task.body();
    } catch (const std::exception&) {
      // Exceptions of an operation become its outcome. This one means that there is no memory for
      // it.
    }
    // Decrement before waking the caller, so that its next call finds the queue idle.
    pending_.fetch_sub(1, std::memory_order_acq_rel);
    task.work->finish(outcome);
    lock.lock();
  }
}

}  // namespace ivy::comm

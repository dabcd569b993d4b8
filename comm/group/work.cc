#include "comm/group/work.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "comm/contract/background_thread.h"
#include "comm/contract/ivycomm.h"
#include "proto/os/clock.h"

namespace ivy::comm {

using std::chrono::steady_clock;

namespace {

// Adding this to the clock never reaches its end.
constexpr std::chrono::hours kLongestWait{24 * 365};

void give(const Work::Notice& notice) {
  while (write(notice.descriptor, &notice.token, sizeof notice.token) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::optional<Outcome> Work::wait(std::chrono::milliseconds at_most) {
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
    const Failure failure =
        make_failure(FailureKind::kAborted, "the communicator was ended before its turn came");
    task.work->finish(Outcome(failure));
  }
  if (thread.joinable()) thread.join();
}

bool WorkQueue::push(std::shared_ptr<Work> work, std::function<Outcome()> body) {
  const std::lock_guard lock(mutex_);
  if (tasks_.size() >= kPendingMax) return false;
  // Start the thread first: if that fails, nothing may stay queued for a later one.
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
      // An operation's exception becomes its outcome; this is for the case that there is no memory
      // to tell it.
    }
    // Count down before waking the caller, so that its next call finds the queue idle.
    pending_.fetch_sub(1, std::memory_order_acq_rel);
    task.work->finish(outcome);
    lock.lock();
  }
}

}  // namespace ivy::comm

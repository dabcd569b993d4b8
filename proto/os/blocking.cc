// SPDX-License-Identifier: Apache-2.0
// State is shared with the pool's threads, which outlive the pool if they are stuck. work_off() is
// the body of a worker thread. watch() is the body of one more thread, which answers tasks at their
// deadlines and marks threads as stuck (judge()), so that others are started in their place.
// answer() hands results to the loop.
#include "proto/os/blocking.h"

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "proto/os/clock.h"
#include "proto/os/old_kernels.h"

namespace ivy {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
// A thread that wakes up this late was stopped; a busy machine causes shorter delays.
constexpr std::int64_t kPauseNs = 3'000'000'000;

std::string seconds_text(BlockingPool::Duration time) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  if (milliseconds % 1000 == 0) return std::to_string(milliseconds / 1000) + " s";
  return std::to_string(milliseconds) + " ms";
}

}  // namespace

struct BlockingPool::State : std::enable_shared_from_this<State> {
  using TaskPointer = std::shared_ptr<Task>;
  using Lock = std::unique_lock<std::mutex>;

  bool start_thread(void (State::*body)());
  bool add_threads(Lock& lock);
  void work_off();
  void watch();
  std::int64_t judge(std::int64_t now);
  void wake_watch(std::int64_t at);
  void postpone(std::int64_t time);
  void answer(const TaskPointer& task);
  void remove(const TaskPointer& task);

  Post post;  // Empty after the pool was destroyed.
  Limits limits;
  mutable std::mutex mutex;
  std::condition_variable queue_changed;
  std::condition_variable watch_changed;
  std::deque<TaskPointer> queue;
  std::vector<TaskPointer> running;       // Oldest first.
  std::map<TaskId, TaskPointer> awaited;  // Until `done` is called or dropped; oldest first.
  TaskId last_id = 0;
  int threads = 0;
  int idle = 0;
  int stuck = 0;
  bool needs_watch = false;  // A task has a deadline, or waits for a thread that may hang.
  bool has_watch = false;
  // When the watching thread wakes up by itself: kNever if it sleeps until it is woken, 0 if it is
  // awake.
  std::int64_t watch_sleeps_until = 0;
  bool is_closed = false;
};

void BlockingPool::Label::set(std::string name) const {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  name_ = std::move(name);
}

// Starts a thread that blocks all signals; they are for the owner's thread.
bool BlockingPool::State::start_thread(void (State::*body)()) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool is_started = true;
  try {
    std::thread([self = shared_from_this(), body] { (self.get()->*body)(); }).detach();
  } catch (const std::system_error&) {
    is_started = false;  // The limit of processes was reached.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

// Starts threads if tasks wait and the limits allow it. Returns false if no thread can serve them.
bool BlockingPool::State::add_threads(Lock&) {
  while (static_cast<int>(queue.size()) > idle && threads - stuck < limits.threads &&
         threads < limits.threads + limits.stuck_threads) {
    if (!start_thread(&State::work_off)) break;
    ++threads;
    ++idle;  // It will take the lock and a task.
  }
  if (static_cast<int>(queue.size()) > idle) needs_watch = true;
  if (needs_watch && !has_watch) has_watch = start_thread(&State::watch);
  return threads > 0 && (has_watch || !needs_watch);
}

void BlockingPool::State::work_off() {
  Lock lock(mutex);
  for (;;) {
    queue_changed.wait(lock, [this] { return is_closed || !queue.empty(); });
    --idle;
    if (is_closed) return;
    const TaskPointer task = std::move(queue.front());
    queue.pop_front();
    task->begun_ns = monotonic_ns();
    running.push_back(task);
    wake_watch(task->begun_ns + limits.overdue.count());
    lock.unlock();
    task->perform(Label(*this, task->name));
    lock.lock();
    std::erase(running, task);
    if (task->is_stuck) --stuck;
    answer(task);
    if (threads - stuck > limits.threads) {
      --threads;  // Another thread has replaced this one.
      return;
    }
    ++idle;
  }
}

// Queues the call of `done` on the loop, unless the task was already answered or forgotten.
void BlockingPool::State::answer(const TaskPointer& task) {
  if (!task->is_awaited || !post) return;
  task->is_awaited = false;
  post([self = shared_from_this(), task] {
    {
      const Lock lock(self->mutex);
      self->awaited.erase(task->id);
    }
    task->deliver();
  });
}

// Marks threads as stuck and answers tasks whose deadline has passed. Returns the time of the next
// check.
std::int64_t BlockingPool::State::judge(std::int64_t now) {
  std::int64_t next = kNever;
  for (const TaskPointer& task : running) {
    const std::int64_t stuck_at = task->begun_ns + limits.overdue.count();
    if (!task->is_stuck && now >= stuck_at) {
      task->is_stuck = true;
      ++stuck;
    }
    if (!task->is_stuck) next = std::min(next, stuck_at);
  }
  for (const auto& [id, task] : awaited) {
    if (!task->is_awaited) continue;
    if (now < task->end_ns) {
      next = std::min(next, task->end_ns);
      continue;
    }
    task->failure =
        Error{Code::kDeadlineExceeded, task->name + " did not answer for " +
                                           seconds_text(Duration(task->end_ns - task->since_ns))};
    if (task->begun_ns == 0) std::erase(queue, task);
    answer(task);
  }
  return next;
}

void BlockingPool::State::wake_watch(std::int64_t at) {
  if (at < watch_sleeps_until) watch_changed.notify_one();
}

// Extends all deadlines after the whole process was stopped (Ctrl-Z, a paused virtual machine).
void BlockingPool::State::postpone(std::int64_t time) {
  for (const auto& [id, task] : awaited) {
    task->since_ns += time;
    if (task->end_ns != kNever) task->end_ns += time;
  }
  for (const TaskPointer& task : running) task->begun_ns += time;
}

void BlockingPool::State::watch() {
  Lock lock(mutex);
  while (!is_closed) {
    const std::int64_t now = monotonic_ns();
    const std::int64_t next = judge(now);
    add_threads(lock);
    watch_sleeps_until = next;
    if (next == kNever) {
      watch_changed.wait(lock);
    } else if (watch_changed.wait_for(lock, Duration(next - now)) == std::cv_status::timeout) {
      const std::int64_t late = monotonic_ns() - next;
      if (late > kPauseNs) postpone(late);
    }
    watch_sleeps_until = 0;
  }
}

BlockingPool::BlockingPool(Post post) : BlockingPool(std::move(post), Limits{}) {}

BlockingPool::BlockingPool(Post post, const Limits& limits) : state_(std::make_shared<State>()) {
  state_->post = std::move(post);
  state_->limits = limits;
}

BlockingPool::~BlockingPool() {
  std::map<TaskId, std::shared_ptr<Task>> awaited;
  std::deque<std::shared_ptr<Task>> queue;
  {
    const State::Lock lock(state_->mutex);
    state_->is_closed = true;
    state_->post = nullptr;
    awaited.swap(state_->awaited);
    queue.swap(state_->queue);
  }
  state_->queue_changed.notify_all();
  state_->watch_changed.notify_all();
  for (const auto& [id, task] : awaited) task->drop();
}

BlockingPool::TaskId BlockingPool::add(std::shared_ptr<Task> task, std::string name,
                                       Duration deadline) {
  State::Lock lock(state_->mutex);
  task->id = ++state_->last_id;
  task->name = std::move(name);
  task->since_ns = monotonic_ns();
  task->end_ns =
      deadline.count() < kNever - task->since_ns ? task->since_ns + deadline.count() : kNever;
  if (task->end_ns != kNever) state_->needs_watch = true;
  state_->awaited.emplace(task->id, task);
  if (state_->queue.size() >= state_->limits.queued) {
    task->failure =
        Error{Code::kResourceExhausted, task->name + ": " + std::to_string(state_->queue.size()) +
                                            " other calls wait for an answer"};
    state_->answer(task);
    return task->id;
  }
  state_->queue.push_back(task);
  if (!state_->add_threads(lock)) {
    std::erase(state_->queue, task);
    const std::string fix = clone_fix();
    task->failure = Error{Code::kResourceExhausted, task->name + ": no thread can be started",
                          fix.empty() ? "raise the limit of processes (ulimit -u)" : fix};
    state_->answer(task);
    return task->id;
  }
  state_->queue_changed.notify_one();
  state_->wake_watch(task->end_ns);
  return task->id;
}

void BlockingPool::forget(TaskId id) {
  std::shared_ptr<Task> task;
  {
    const State::Lock lock(state_->mutex);
    const auto found = state_->awaited.find(id);
    if (found == state_->awaited.end()) return;
    task = found->second;
    state_->awaited.erase(found);
    task->is_awaited = false;
    std::erase(state_->queue, task);
  }
  task->drop();
}

std::optional<BlockingPool::Overdue> BlockingPool::overdue() const {
  const State::Lock lock(state_->mutex);
  const std::int64_t now = monotonic_ns();
  for (const auto& [id, task] : state_->awaited) {
    if (!task->is_awaited) continue;
    const Duration age(now - task->since_ns);
    if (age < state_->limits.overdue) return std::nullopt;  // The others are younger.
    const bool has_thread = task->begun_ns != 0 || state_->running.empty();
    return Overdue{has_thread ? task->name : state_->running.front()->name, age};
  }
  return std::nullopt;
}

int BlockingPool::stuck_threads() const {
  const State::Lock lock(state_->mutex);
  return state_->stuck;
}

}  // namespace ivy

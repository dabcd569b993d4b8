// SPDX-License-Identifier: Apache-2.0
// Runs calls that may block (files of a user, name look-ups, logins, waiting for an exec) on a
// small pool of threads and hands each result back to the owner's loop, so that a file system or a
// process that stopped answering never stops the loop.
//
//   pool.run("the file system of " + directory, 30s,
//            [directory] { return look_at(directory); },                     // On a pool thread.
//            [this](Result<Facts> facts) { on_facts(std::move(facts)); });   // On the loop.
//
// A call that never returns keeps its thread. Such a thread is counted as stuck and replaced, up to
// Limits::stuck_threads, so that other tasks continue. Thread: the owner's loop thread, except
// where noted. Threads are started on demand.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "proto/contract/status.h"

namespace ivy {

class BlockingPool {
  struct State;

 public:
  using Duration = std::chrono::nanoseconds;
  using TaskId = std::uint64_t;
  // Queues a function to run on the owner's loop, as boost::asio::post() does. Called from the
  // pool's threads and from run(); must neither run the function itself nor block.
  using Post = std::function<void(std::function<void()>)>;

  struct Limits {
    int threads = 4;         // Tasks that run at the same time, not counting stuck ones.
    int stuck_threads = 28;  // Threads that may hang in a call before other tasks have to wait.
    // Limit of tasks that wait for a thread; a further one fails immediately.
    std::size_t queued = 256;
    Duration overdue = std::chrono::seconds(2);  // Age at which a task is reported as overdue.
  };

  // Lets a running task rename itself. Thread: the task's.
  class Label {
   public:
    void set(std::string name) const;

   private:
    friend class BlockingPool;
    explicit Label(BlockingPool::State& state, std::string& name) : state_(state), name_(name) {}
    State& state_;
    std::string& name_;
  };

  // The oldest overdue task, for reports of what the process waits for.
  struct Overdue {
    std::string name;
    Duration age{};
  };

  // For a task whose time is limited elsewhere, such as by the launcher's --start-timeout.
  static constexpr Duration kNoDeadline = Duration::max();

  explicit BlockingPool(Post post);
  BlockingPool(Post post, const Limits& limits);
  // Does not block. `done` is not called afterwards; a thread that hangs in a call is abandoned.
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  // Calls work() on a pool thread and then done(its result) on the loop, exactly once and never
  // before run() returns. `done` gets kDeadlineExceeded if the result is late (work() continues,
  // and its late result is destroyed on its thread), kResourceExhausted if too many tasks wait or
  // no thread can be started. `name` describes what the task waits for: "the file system of /home".
  //
  // work() returns a Result<T> and owns everything it uses: it may outlive the caller and the pool.
  // It may take a `const BlockingPool::Label&` to change the name from step to step.
  // It must not start a process that uses PR_SET_PDEATHSIG, because pool threads may exit.
  template <class Work, class Done>
  TaskId run(std::string name, Duration deadline, Work work, Done done) {
    return add(std::make_shared<Call<Work, Done>>(std::move(work), std::move(done)),
               std::move(name), deadline);
  }
  // Drops a task whose result is no longer needed: its `done` will not be called.
  void forget(TaskId id);

  // Returns the oldest task whose result is awaited and overdue. If it is still waiting for a
  // thread, the name is that of the task that has held a thread for the longest time. Thread: any.
  std::optional<Overdue> overdue() const;
  // Returns the number of threads that have hung in a call for longer than Limits::overdue. Thread:
  // any.
  int stuck_threads() const;

 private:
  // Owned by the queue, its thread and the loop's queue at the same time. `done` is used and
  // destroyed only on the loop.
  struct Task {
    virtual ~Task() = default;
    virtual void perform(const Label& label) = 0;  // Pool thread.
    virtual void deliver() = 0;                    // Loop.
    virtual void drop() = 0;                       // Loop.

    TaskId id = 0;
    std::string name;
    std::int64_t since_ns = 0;     // Time of run().
    std::int64_t begun_ns = 0;     // Start on a thread; 0 while it waits for one.
    std::int64_t end_ns = 0;       // The deadline, or INT64_MAX.
    bool is_stuck = false;         // Its thread is counted as stuck.
    bool is_awaited = true;        // Neither answered nor forgotten.
    std::optional<Error> failure;  // Delivered instead of a result.
  };

  template <class Work, class Done>
  struct Call final : Task {
    static constexpr bool kTakesLabel = std::is_invocable_v<Work&, const Label&>;
    static auto call(Work& work, const Label& label) {
      if constexpr (kTakesLabel)
        return work(label);
      else
        return work();
    }
    using Answer = decltype(call(std::declval<Work&>(), std::declval<const Label&>()));
    Call(Work&& its_work, Done&& its_done) : work(std::move(its_work)), done(std::move(its_done)) {}
    void perform(const Label& label) override {
      answer.emplace(call(*work, label));
      work.reset();
    }
    void deliver() override {
      if (!done) return;
      Done called = std::move(*done);
      done.reset();
      called(failure ? Answer(std::move(*failure)) : std::move(*answer));
    }
    void drop() override { done.reset(); }

    std::optional<Work> work;
    std::optional<Done> done;
    std::optional<Answer> answer;
  };

  TaskId add(std::shared_ptr<Task> task, std::string name, Duration deadline);

  const std::shared_ptr<State> state_;  // Shared with the threads, which may outlive this object.
};

}  // namespace ivy

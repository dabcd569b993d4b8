// Writes files on a thread of its own, so that a file system that does not answer (a network file
// system whose server is away) stops this thread and not the loop. The queue is bounded by its
// user: while has_room() is false, do not read more of what would be written. Thread: all calls
// from one thread, the user's; `done` and the openers run on the writer's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

namespace ivy {

class FileWriter {
 public:
  using File = std::uint64_t;
  enum class Step : std::uint8_t { kOpen, kWrite, kClose };

  // One finished call of open(), close() or, in one piece or several joined, write().
  struct Done {
    File file = 0;
    Step step = Step::kWrite;
    std::size_t bytes =
        0;                // kWrite: how many left the queue, written or (after a failure) dropped.
    int errno_value = 0;  // The first failure of this file; repeated in each later Done of it.
  };

  // Returns a descriptor, which the writer closes, or -errno. It owns everything that it uses.
  using Opener = std::function<int()>;

  // `done` says that take_done() has something new. It must only wake the user's loop, as
  // boost::asio::post() does, and is never called after the destructor.
  FileWriter(std::size_t room_bytes, std::function<void()> done);
  // Never waits. What is still queued is written when the file system answers, or lost with the
  // process; wait_idle() first where that matters.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // For a descriptor that is open already, of which the writer becomes the owner.
  File adopt(int descriptor);
  File open(Opener opener);
  // Copies the bytes. A file that has failed gets nothing more, so that it has no hole.
  void write(File file, std::string_view bytes);
  // After all that was queued before. Some file systems report a full disk only here.
  void close(File file);

  // True if the bytes that are queued or being written are below the bound. write() takes bytes
  // nevertheless.
  bool has_room() const;
  std::size_t queued_bytes() const;
  // True if everything that was asked for is done.
  bool is_idle() const;
  // Blocks until is_idle() or until the timeout; returns is_idle().
  bool wait_idle(std::chrono::nanoseconds longest) const;
  // Returns what was finished since the last call, in order.
  std::vector<Done> take_done();

 private:
  struct Queue;
  struct Job;
  void add(Job job);

  const std::size_t room_bytes_;
  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive this object.
  std::thread thread_;                  // Started by the first call that needs it.
  bool has_no_thread_ = false;          // None could be started: the user's thread writes.
  File last_file_ = 0;
};

}  // namespace ivy

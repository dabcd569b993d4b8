// SPDX-License-Identifier: Apache-2.0
// Writes files on a separate thread, so that a file system that does not respond (a network file
// system whose server is down) blocks this thread and not the loop. The user bounds the queue:
// while has_room() is false, do not read more data to write. Thread: one thread, the user's, makes
// all calls; `done` and the openers run on the writer's thread.
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

  // One finished call of open(), close(), close_and_rename() (kClose) or, in one piece or several
  // joined, write().
  struct Done {
    File file = 0;
    Step step = Step::kWrite;
    // With kWrite, the number of bytes that left the queue: written or, after a failure, dropped.
    std::size_t bytes = 0;
    int errno_value = 0;  // The file's first failure; repeated in each later Done of the file.
  };

  // Returns a descriptor, which the writer closes, or -errno. Must own everything that it uses.
  using Opener = std::function<int()>;

  // `done` signals new results of take_done(). It must only wake the user's loop, as
  // boost::asio::post() does. It is never called after the destructor. May be empty.
  FileWriter(std::size_t max_queued_bytes, std::function<void()> done);
  // Does not block. Queued data is written when the file system responds, or lost with the process;
  // call wait_idle() first if that matters.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Takes ownership of an open descriptor.
  File adopt(int descriptor);
  File open(Opener opener);
  // Copies the bytes. After a failure nothing more is written to the file, so that it has no hole.
  void write(File file, std::string_view bytes);
  // Runs after all earlier operations on the file. Some file systems report a full disk only here.
  void close(File file);
  // Closes the file, which was opened at `from`, and renames it to `to`, so that readers of `to`
  // never see a part of it. If the file has failed, removes it instead.
  void close_and_rename(File file, std::string from, std::string to);

  // Returns whether the queued and in-progress bytes are below the bound. write() accepts bytes in
  // any case.
  bool has_room() const;
  std::size_t queued_bytes() const;
  // Returns whether all requested operations have completed.
  bool is_idle() const;
  // Blocks until is_idle() or until the timeout. Returns is_idle().
  bool wait_idle(std::chrono::nanoseconds longest) const;
  // Returns the operations completed since the last call, in order.
  std::vector<Done> take_done();

 private:
  struct Queue;
  struct Job;
  void add(Job job);

  const std::size_t max_queued_bytes_;
  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive this object.
  std::thread thread_;                  // Started by the first call that needs it.
  bool has_no_thread_ = false;          // No thread could be started, so the user's thread writes.
  File last_file_ = 0;
};

}  // namespace ivy

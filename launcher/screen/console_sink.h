// SPDX-License-Identifier: Apache-2.0
// Writes bytes to standard output or error without ever blocking the loop, and without changing the
// flags of the open file description, which the caller's shell and the other programs of a pipeline
// share.
//
//   pipe, terminal   opened again through /proc/self/fd, non-blocking; if that is not allowed (of
//                    another user's terminal): poll, then no more than the kernel is sure to take
//   socket           send with MSG_DONTWAIT
//   file             on a separate thread (proto/os/file_writer.h): its file system may hang
//   other devices    written directly: /dev/null and the like never wait for a reader
//
// Thread: the loop's. Lifetime: destroy it outside its events.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/os/descriptor.h"
#include "proto/os/file_writer.h"

namespace ivy {

// The owner of a sink: its Console.
class ConsoleSinkEvents {
 public:
  // written() has grown outside of flush().
  virtual void sink_moved() = 0;
  // Once; EPIPE: the reader went away. From now on everything is dropped.
  virtual void sink_failed(int errno_value) = 0;

 protected:
  ~ConsoleSinkEvents() = default;
};

class ConsoleSink {
 public:
  ConsoleSink(boost::asio::io_context& loop, int fd, ConsoleSinkEvents& owner);
  ~ConsoleSink();
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  // Append here, then flush(). Never shorten it.
  std::string& buffer() { return buffer_; }
  // Writes as much as possible now; the rest is written asynchronously.
  void flush();
  std::size_t backlog() const { return buffer_.size() - sent_; }
  // Bytes since the start: appended, and disposed of (written, or dropped after a failure).
  std::uint64_t appended() const { return dropped_front_ + buffer_.size(); }
  std::uint64_t written() const { return dropped_front_ + sent_; }
  bool has_failed() const { return failed_; }
  // Fails with EPIPE if the reader of a pipe or socket has gone, also while nothing is written.
  void check_reader();

 private:
  enum class Way { kDirect, kFile, kSocket, kNonBlocking, kPolled };
  void choose_way();
  long write_some(const char* bytes, std::size_t count);
  void write_loop();
  bool open_writer();  // False: no descriptor is left.
  void queue_for_file();
  void file_moved();
  void wait_writable();
  void fail(int errno_value);
  void trim();

  const int fd_;
  Descriptor own_fd_;  // Another description of the same pipe or terminal, for Way::kNonBlocking.
  std::size_t most_at_once_ = 0;
  Way way_ = Way::kDirect;
  bool has_reader_ = false;  // A pipe or a socket.
  ConsoleSinkEvents& owner_;
  // An epoll descriptor that watches ours: Asio would set O_NONBLOCK on ours.
  boost::asio::posix::stream_descriptor watcher_;
  std::unique_ptr<FileWriter> writer_;  // Way::kFile, from the first byte on.
  FileWriter::File file_ = 0;
  std::size_t queued_ = 0;  // Bytes after sent_ that the writer has not written yet.
  std::string buffer_;
  std::size_t sent_ = 0;
  std::uint64_t dropped_front_ = 0;  // Bytes written and no longer in buffer_.
  bool waiting_ = false;
  bool failed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy

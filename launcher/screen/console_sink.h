// SPDX-License-Identifier: Apache-2.0
// Writes bytes to standard output or error without ever blocking the loop, and without changing the
// flags of the open file description, which the caller's shell and the other programs of a pipeline
// share. The method depends on the kind of the descriptor (enum Way):
//
//  pipe, terminal   opened again through /proc/self/fd, non-blocking. If that is not allowed (the
//                   terminal of another user): poll, then write what the kernel is sure to take
//  socket           send with MSG_DONTWAIT
//  file             written on a separate thread (proto/os/file_writer.h): its file system may hang
//  other devices    written directly: /dev/null and the like never wait for a reader
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
  // written() has grown in an event of the loop; bytes that flush() writes itself are not reported.
  virtual void sink_moved() = 0;
  // Called once. EPIPE: the reader has exited. Everything is dropped from then on.
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

  // Append text here, then call flush(). Never shorten the buffer.
  std::string& buffer() { return buffer_; }
  // Writes what the descriptor takes now; the rest follows when it is writable.
  void flush();
  // Bytes that have been appended and not written.
  std::size_t backlog() const { return buffer_.size() - sent_; }
  // Bytes since the start that were appended, or were written or dropped after a failure.
  std::uint64_t appended() const { return dropped_front_ + buffer_.size(); }
  std::uint64_t written() const { return dropped_front_ + sent_; }
  bool has_failed() const { return failed_; }
  // Fails with EPIPE if the reader of a pipe or socket has exited, even if nothing is written.
  void check_reader();

 private:
  enum class Method { kDirect, kFile, kSocket, kNonBlocking, kPolled };
  void choose_method();
  long write_some(const char* bytes, std::size_t count);
  void write_loop();
  bool open_writer();  // Returns false if no descriptor is left for it.
  void queue_for_file();
  void file_moved();
  void wait_writable();
  void fail(int errno_value);
  void trim();

  const int fd_;
  // Another file description of the same pipe or terminal, for Method::kNonBlocking.
  Descriptor own_fd_;
  std::size_t max_write_bytes_ = 0;  // Limit of one write.
  Method method_ = Method::kDirect;
  bool has_reader_ = false;  // It is a pipe or a socket.
  ConsoleSinkEvents& owner_;
  // Asio waits on an epoll descriptor that watches the console's, on which it would set O_NONBLOCK.
  boost::asio::posix::stream_descriptor watcher_;
  std::unique_ptr<FileWriter> writer_;  // Method::kFile, from the first byte on.
  FileWriter::File file_ = 0;
  std::size_t queued_ = 0;  // Bytes after sent_ that the writer has and has not written yet.
  std::string buffer_;      // Text from byte dropped_front_ on.
  std::size_t sent_ = 0;    // Bytes of buffer_ that were written.
  std::uint64_t dropped_front_ = 0;  // Bytes that were written and removed from buffer_.
  bool waiting_ = false;             // For the descriptor to be writable.
  bool failed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy

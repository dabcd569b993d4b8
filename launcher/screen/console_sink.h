// SPDX-License-Identifier: Apache-2.0
// Writes bytes to standard output or error without ever blocking the loop, and without changing the
// flags of the open file description, which the caller's shell and the other programs of a pipeline
// share. The method depends on the descriptor (enum Method):
//
//  kNonBlocking   a pipe or terminal that could be opened again through /proc/self/fd: the new file
//                 description is non-blocking
//  kPolled        a pipe or terminal that could not (the terminal of another user): poll(2), then
//                 write only as much as the kernel is sure to accept
//  kSocket        send(2) with MSG_DONTWAIT
//  kFile          written on a separate thread (FileWriter), because its file system may hang
//  kDirect        other devices: /dev/null and the like never wait for a reader
//
// kNonBlocking, kPolled and kSocket wait until the descriptor is writable. Asio cannot wait for it
// directly, because it sets O_NONBLOCK on every descriptor that it is given. So the console's
// descriptor is added to a private epoll set, and Asio waits for the epoll set to become readable.
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
  virtual void sink_progressed() = 0;
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
  // Watches the descriptor that wait_writable() waits for.
  void open_epoll();
  int watched_fd() const { return own_fd_ ? own_fd_.get() : fd_; }
  // Writes at most max_write_bytes_ by the method, unless that is kFile. Returns as write(2) does.
  long write_some(const char* bytes, std::size_t count);
  void write_loop();
  void wait_writable();
  // kFile. Returns false if no descriptor is left for the writer.
  bool open_writer();
  void queue_for_writer();
  void writer_progressed();
  void fail(int errno_value);
  // After a failure: counts all text as written.
  void drop();
  // Removes written text from the buffer, if that is cheap.
  void trim();

  const int fd_;
  // Another file description of the same pipe or terminal, for Method::kNonBlocking.
  Descriptor own_fd_;
  std::size_t max_write_bytes_ = 0;  // Limit of one write.
  Method method_ = Method::kDirect;
  bool has_reader_ = false;  // It is a pipe or a socket.
  ConsoleSinkEvents& owner_;
  boost::asio::posix::stream_descriptor epoll_;  // The epoll set; see above.
  std::unique_ptr<FileWriter> writer_;           // Method::kFile, from the first byte on.
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

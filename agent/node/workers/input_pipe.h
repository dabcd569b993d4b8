// SPDX-License-Identifier: Apache-2.0
// Passes the launcher's standard input to the workers that receive it: one worker, or all workers
// of a host. Grants credit as the slowest of them reads, so that a worker that does not read stops
// the launcher's reading. Thread: the loop's. Lifetime: the arguments of the constructor must
// outlive it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/wire/session.h"

namespace ivy {

// Implemented by HostWorkers.
class InputPipeEvents {
 public:
  // The session has more credit for the launcher.
  virtual void input_granted() = 0;

 protected:
  ~InputPipeEvents() = default;
};

class InputPipe {
 public:
  InputPipe(boost::asio::io_context& loop, session::Session& session, InputPipeEvents& owner)
      : loop_(loop), session_(session), owner_(owner) {}
  ~InputPipe();

  // Sets the ranks that will read, before open(). An empty list means that no rank reads.
  void expect(const std::vector<std::uint32_t>& ranks);
  // Takes ownership of the non-blocking pipe of one of them. Bytes that arrive earlier wait; the
  // session's window limits them.
  void open(std::uint32_t rank, Descriptor fd);
  // Passes on the bytes of an Input frame; empty means end of input.
  void push(std::string bytes);
  // Returns the bytes that a rank has read; 0 if it receives none. Call it before close() of that
  // rank.
  std::uint64_t taken(std::uint32_t rank) const;
  // Closes the pipe of one rank, or of all: waiting and later bytes are dropped and granted.
  void close(std::uint32_t rank);
  void close();

 private:
  // Bytes of one frame, granted when the last reader drops them. Empty means end of input.
  using Bytes = std::shared_ptr<const std::string>;
  struct Reader {
    explicit Reader(boost::asio::io_context& loop) : pipe(loop) {}
    boost::asio::posix::stream_descriptor pipe;
    bool is_open = false;  // If false, its worker has not started yet.
    std::deque<Bytes> waiting;
    std::size_t written_bytes = 0;  // Bytes of the first entry that were written.
    std::uint64_t given = 0;        // Bytes written in total.
    bool is_waiting = false;
  };
  using ReaderPointer = std::shared_ptr<Reader>;
  // A rank whose input is complete, though its pipe may still hold some of it.
  struct Finished {
    std::uint64_t given = 0;
    Descriptor pipe;  // A reading end; the rank sees the end of its input nevertheless.
  };

  Bytes counted(std::string bytes);
  void write_some(std::uint32_t rank, const ReaderPointer& reader);
  void finish(std::uint32_t rank, const ReaderPointer& reader);
  void wait(std::uint32_t rank, const ReaderPointer& reader);

  boost::asio::io_context& loop_;
  session::Session& session_;
  InputPipeEvents& owner_;
  // Set to false by the destructor, after which dropped bytes are not granted.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool is_expected_ = false;
  std::deque<Bytes> early_;  // Before the readers are known.
  std::map<std::uint32_t, ReaderPointer> readers_;
  std::map<std::uint32_t, Finished> finished_;
};

}  // namespace ivy

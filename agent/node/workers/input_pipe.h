// SPDX-License-Identifier: Apache-2.0
// The launcher's standard input on its way to the workers that get it: one, or all of a host.
// Credit is granted back as the slowest of them takes bytes, so a worker that does not read stops
// the launcher's reading. Thread: the loop's. Lifetime: outlived by the session.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/os/descriptor.h"
#include "proto/wire/link.h"

namespace ivy {

class InputPipe {
 public:
  // `granted` is called after credit was given back.
  InputPipe(boost::asio::io_context& loop, link::Session& session, std::function<void()> granted);
  ~InputPipe();

  // The ranks that will read; before the first of them is opened. None: nothing will read it.
  void expect(const std::vector<std::uint32_t>& ranks);
  // Takes over the pipe of one of them (non-blocking). Earlier bytes wait until then; the session's
  // window bounds them.
  void open(std::uint32_t rank, Descriptor fd);
  // Bytes of one Input frame; empty: the end of standard input.
  void push(std::string bytes);
  // Bytes that a rank has read; 0 for a rank that gets none. Before close() of its rank.
  std::uint64_t taken(std::uint32_t rank) const;
  // Closes the pipe of one rank, or all of them, when nothing will read it: waiting and further
  // bytes are dropped and granted.
  void close(std::uint32_t rank);
  void close();

 private:
  // Granted when the last reader has let go of them. Empty: the end.
  using Bytes = std::shared_ptr<const std::string>;
  struct Reader {
    explicit Reader(boost::asio::io_context& loop) : pipe(loop) {}
    boost::asio::posix::stream_descriptor pipe;
    bool is_open = false;  // If false, its worker has not started yet.
    std::deque<Bytes> waiting;
    std::size_t written_bytes = 0;  // Bytes of the first one that were written.
    std::uint64_t given = 0;        // Bytes written in all.
    bool is_waiting = false;
  };
  using ReaderPointer = std::shared_ptr<Reader>;
  // A rank whose input is complete: its pipe may still hold some of it.
  struct Finished {
    std::uint64_t given = 0;
    Descriptor pipe;  // A reading end, with which the rank sees the end of its input nevertheless.
  };

  Bytes counted(std::string bytes);
  void write_some(std::uint32_t rank, const ReaderPointer& reader);
  void finish(std::uint32_t rank, const ReaderPointer& reader);
  void wait(std::uint32_t rank, const ReaderPointer& reader);

  boost::asio::io_context& loop_;
  link::Session& session_;
  std::function<void()> granted_;
  // Cleared by the destructor, after which dropped bytes are not granted.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool is_expected_ = false;
  std::deque<Bytes> early_;  // Before it is known who reads.
  std::map<std::uint32_t, ReaderPointer> readers_;
  std::map<std::uint32_t, Finished> finished_;
};

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
// Sends and receives frames on a connected socket until it breaks. Plain POSIX; never blocks. Not
// thread-safe, except that shut_down() may be called by any thread while the socket is open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/os/descriptor.h"
#include "proto/wire/store_wire.h"

namespace ivy::store {

class FrameSocket {
 public:
  FrameSocket() = default;
  FrameSocket(Descriptor socket, WireDecoder decoder)
      : socket_(std::move(socket)), decoder_(std::move(decoder)) {}

  bool is_open() const { return static_cast<bool>(socket_); }
  bool is_usable() const { return is_open() && broken_.empty(); }
  int descriptor() const { return socket_.get(); }
  // Returns the reason why the socket is unusable, or an empty string if it is usable.
  const std::string& broken() const { return broken_; }
  void set_broken(std::string why) { broken_ = std::move(why); }

  // Queues a frame. Returns its offset in the connection's stream of outgoing bytes.
  std::uint64_t queue(FrameHead head, std::string_view payload);
  bool has_unsent() const { return !unsent_.empty(); }
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  void write_some();
  void read_some();
  // Returns the next complete frame.
  std::optional<WireFrame> next();
  // Detects that the peer has closed the connection while nothing was expected from it.
  void notice_end();
  void shut_down() const;

 private:
  Descriptor socket_;
  std::string broken_;
  WireDecoder decoder_{kMaxFrameBytes};
  std::string unsent_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace ivy::store

// SPDX-License-Identifier: Apache-2.0
// Moves the bytes of the command that runs over SSH: first the conversation of remote_entry.h, then
// the relay's bytes. Thread: the loop's, except for write_alive().
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"
#include "launcher/links/remote_entry.h"
#include "launcher/links/ssh/ssh_wire.h"

namespace ivy {

// Implemented by SshLink.
class SshRelayEvents {
 public:
  // The far end has started the relay. Bytes that are written now follow the opening line in the
  // same packet.
  virtual void relay_up() = 0;

 protected:
  ~SshRelayEvents() = default;
};

class SshRelay {
 public:
  // Everything but `entry` must outlive this object.
  SshRelay(Sequence& sequence, TransportContext& context, SshWire& wire, LinkReports& reports,
           RemoteEntry entry, SshRelayEvents& owner)
      : sequence_(sequence),
        context_(context),
        wire_(wire),
        reports_(reports),
        entry_(std::move(entry)),
        owner_(owner) {}

  // Queues bytes; LinkReports::drained() follows when they have left.
  void write(std::string_view bytes);
  // Writes a heartbeat frame after everything that is still to be written, if the far end takes all
  // of that now; otherwise does nothing. Call only once the relay is up. Thread: any.
  void write_alive(std::string_view frame);
  // Call before closing the wire: nothing is written afterwards.
  void close();
  // Moves bytes until the connection ends. Returns the failure that the far end has reported, if
  // any.
  Awaitable<std::optional<LinkDown>> carry();

  bool is_up() const { return entry_.is_up(); }
  // True once bytes of the relay itself have arrived.
  bool has_received_relay() const { return has_received_relay_; }
  // True once the far shell has asked for something or started the relay.
  bool has_greeted() const { return has_greeted_; }
  // Returns the last line of the far end that is not the relay's output; empty: none.
  std::string last_remote_line() const;

 private:
  bool move_bytes();
  bool read_stream(SshStream stream);
  void enter(const RemoteEntry::Actions& actions);
  Awaitable<void> provide_bundle();
  bool write_some();
  // Returns the number of bytes that have left; 0: none can leave now; negative: the connection has
  // ended. Call with write_mutex_ held.
  long write_piece();
  std::size_t unwritten();

  static constexpr std::size_t kReadBytes = 64u << 10;
  static constexpr std::size_t kWriteBytes = 32u << 10;
  // Reads after which the loop gets a turn.
  static constexpr int kReadsPerTurn = 32;

  Sequence& sequence_;
  TransportContext& context_;
  SshWire& wire_;
  LinkReports& reports_;
  RemoteEntry entry_;
  SshRelayEvents& owner_;
  std::optional<LinkDown> failure_;
  bool is_over_ = false;
  bool has_received_relay_ = false;
  bool has_greeted_ = false;
  bool has_more_to_read_ = false;
  std::mutex write_mutex_;   // Guards outgoing_, written_ and is_closed_.
  std::string outgoing_;     // Bytes to be written.
  std::size_t written_ = 0;  // Bytes of outgoing_ that have left.
  bool is_closed_ = false;
  bool drained_due_ = false;  // drained() has to be reported.
  std::string error_text_;    // The last output on the standard error of the command.
  const std::unique_ptr<std::array<char, kReadBytes>> buffer_ =
      std::make_unique_for_overwrite<std::array<char, kReadBytes>>();
};

}  // namespace ivy

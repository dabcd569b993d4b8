// SPDX-License-Identifier: Apache-2.0
// The bytes of the command that we run over SSH: first the conversation of remote_entry.h, then
// those of the relay. Thread: the loop's, but for write_alive().
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/links/host_link.h"
#include "launcher/links/remote_entry.h"
#include "launcher/links/ssh/ssh_wire.h"

namespace ivy {

class SshRelay {
 public:
  // Entered through `entry`; calls came_up when it is. All but `entry` outlive this.
  SshRelay(Sequence& sequence, TransportContext& context, SshWire& wire, LinkReports& reports,
           RemoteEntry entry, std::function<void()> came_up)
      : sequence_(sequence),
        context_(context),
        wire_(wire),
        reports_(reports),
        entry_(std::move(entry)),
        came_up_(std::move(came_up)) {}

  void write(std::string_view bytes);
  // Writes a whole frame behind what is still to be written, if the far end takes all of that now;
  // else does nothing. Call it once the relay is up only. Thread: any.
  void write_alive(std::string_view frame);
  // Call before closing the wire: nothing is written afterwards.
  void close();
  // Moves bytes until the connection ends; returns the failure that the far end has named.
  Awaitable<std::optional<LinkDown>> carry();

  bool is_up() const { return entry_.is_up(); }
  // True once the relay itself has said anything.
  bool has_spoken() const { return has_spoken_; }
  // True if the far shell has asked for something or started the relay.
  bool has_greeted() const { return has_greeted_; }
  // Returns the last line of the far end that is not the relay's output, or nothing.
  std::string last_words() const;

 private:
  bool move_bytes();
  bool read_stream(SshStream stream);
  void enter(const RemoteEntry::Step& step);
  Awaitable<void> provide_bundle();
  bool write_some();
  // With write_mutex_ held. Bytes that have left: 0: none does now; negative: the connection is
  // over.
  long write_piece();
  std::size_t unwritten();

  static constexpr std::size_t kReadBytes = 64u << 10;
  static constexpr std::size_t kWriteBytes = 32u << 10;
  // Reads in a row before others get their turn.
  static constexpr int kReadsPerTurn = 32;

  Sequence& sequence_;
  TransportContext& context_;
  SshWire& wire_;
  LinkReports& reports_;
  RemoteEntry entry_;
  const std::function<void()> came_up_;
  std::optional<LinkDown> failure_;
  bool is_over_ = false;
  bool has_spoken_ = false;
  bool has_greeted_ = false;
  bool has_more_to_read_ = false;
  std::mutex write_mutex_;  // Guards the next three.
  std::string outgoing_;
  std::size_t written_ = 0;
  bool is_closed_ = false;
  bool owes_drained_ = false;
  std::string error_text_;
  const std::unique_ptr<std::array<char, kReadBytes>> buffer_ =
      std::make_unique_for_overwrite<std::array<char, kReadBytes>>();
};

}  // namespace ivy

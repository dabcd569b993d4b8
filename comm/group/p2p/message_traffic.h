// SPDX-License-Identifier: Apache-2.0
// The messages of one communicator in transit: for each peer its streams and the messages being
// sent and received on them, and the receives that wait. progress() moves bytes and never blocks.
//
// Requests end here, with success or with the failure that broke the communicator. A failure found
// here is kept until the owner has reported it to the other ranks (found()).
//
// Thread: one at a time (PointToPoint's mutex).
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/group/p2p/message_failure_detector.h"
#include "comm/group/p2p/message_matching.h"
#include "comm/group/p2p/message_texts.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/shm/message_rings.h"

namespace ivy::comm {

class MessageTraffic {
 public:
  using Request = std::shared_ptr<MessageRequest>;

  // `mail` and `connections` may be null if no rank needs them.
  MessageTraffic(const PointToPointOptions& options, MessageRings* mail,
                 PeerConnections* connections, MessageFailureDetector& detector);

  // Starts a request, which may be done immediately.
  void enter(const Request& request, std::chrono::nanoseconds timeout);
  // Cancels a receive. Returns false if a message has matched it.
  bool withdraw(const Request& request);
  // Moves all bytes that can be moved, and returns whether any were. A lent message (byte_stream.h)
  // stays with its sender until its receive is posted, so that it is copied only once. With
  // `keep_lent`, it is buffered like any other unexpected message, so that the messages after it
  // need not wait.
  bool progress(bool keep_lent = false);

  bool is_broken() const { return found_.has_value() || failure_.has_value(); }
  // A failure found here that the other ranks may not know yet.
  const MaybeFailure& found() const { return found_; }
  // The failure with which every request ends, or nothing if they succeed.
  const MaybeFailure& failure() const { return failure_; }
  // Keeps a failure that was found here, unless there is already one. A failure that names no
  // message is attributed to the longest-waiting one.
  void report(Failure failure);
  void name_message(Failure& failure) const {
    add_message(failure, oldest(), options_.communicator);
  }
  void end_all(const Failure& failure);

  const std::vector<std::unique_ptr<MessagePeer>>& peers() const { return peers_; }
  const PointToPointOptions& options() const { return options_; }
  const MessageMatching& matching() const { return matching_; }
  // Returns the sockets to wait for, or nothing if all peers are on this host.
  std::optional<std::vector<pollfd>> sockets() const;
  // Shows the longest-waiting request in the status page.
  void show_oldest();

 private:
  bool progress_sends(MessagePeer& peer);
  bool progress_receives(MessagePeer& peer);
  bool read_header(MessagePeer& peer, bool& has_moved);
  bool read_data(MessagePeer& peer, bool& has_moved);
  bool begin_message(MessagePeer& peer);
  void end_message(MessagePeer& peer);
  // Open the stream to or from a peer: a ring if the peer is on this host, otherwise a connection
  // that the sender dials in the background. Return false if it is not open yet, or cancelled. A
  // connection is only accepted if a receive waits for that rank.
  Result<bool> open_sink(MessagePeer& peer);
  Result<bool> open_source(MessagePeer& peer);
  PeerChannel channel_of(std::int32_t rank) const;
  bool is_open(std::int32_t rank, const Result<bool>& opened);
  void receive(const Request& request);
  void send_to_self(const Request& request);
  bool check(const MessageRequest& receive, const MessageStatus& status, Dtype dtype);
  void report_disconnect(std::int32_t rank, const std::string& why);
  void finish(MessageRequest& request);
  void notify(std::int32_t rank);
  const MessageRequest* oldest() const;
  void clear_shown(const MessageRequest& request);

  const PointToPointOptions& options_;
  MessageRings* const mail_;
  PeerConnections* const connections_;
  MessageFailureDetector& detector_;
  std::vector<std::unique_ptr<MessagePeer>> peers_;
  MessageMatching matching_;
  bool keeps_lent_ = false;     // Argument of the current call of progress().
  std::uint64_t messages_ = 0;  // Number of requests started.
  MaybeFailure found_;
  MaybeFailure failure_;
};

}  // namespace ivy::comm

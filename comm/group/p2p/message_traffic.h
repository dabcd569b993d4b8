// SPDX-License-Identifier: Apache-2.0
// The messages of one communicator on their way: for each peer the streams and what is being sent
// and received, and the receives that wait. Moves bytes when it is asked to, and never waits.
//
// Requests end here: well, or with the failure that broke the communicator. A failure that was
// found here is kept until the owner has told it to the other ranks (found()).
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
#include "comm/group/p2p/message_streams.h"
#include "comm/group/p2p/message_texts.h"
#include "comm/group/p2p/point_to_point_peer.h"
#include "comm/transports/shm/shared_mail.h"

namespace ivy::comm {

class MessageTraffic {
 public:
  using Request = std::shared_ptr<MessageRequest>;

  // `mail` and `listener` may be null if no rank needs them.
  MessageTraffic(const PointToPointOptions& options, SharedMail* mail, PeerListener* listener,
                 MessageFailureDetector& detector);

  // Starts a request; it may be done immediately.
  void enter(const Request& request, std::chrono::nanoseconds timeout);
  // Takes back a receive that no message has come for. False: one has.
  bool withdraw(const Request& request);
  // Moves all bytes that can be moved; returns whether any were. A lent message waits for its
  // receive, so that it is copied once. keep_lent: it is buffered like any other unexpected
  // message, so that messages after it need not wait.
  bool progress(bool keep_lent = false);

  bool is_broken() const { return found_.has_value() || failure_.has_value(); }
  // A failure found here, not yet told to the other ranks.
  const MaybeFailure& found() const { return found_; }
  // The failure with which every request ends; nothing if they succeed.
  const MaybeFailure& failure() const { return failure_; }
  // Keeps a failure that was found here, unless there is one already. If it names no message, it
  // will name the one that has waited longest; name_message() says which that is now.
  void report(Failure failure);
  void name_message(Failure& failure) const {
    add_message(failure, oldest(), options_.communicator);
  }
  void end_all(const Failure& failure);

  const std::vector<std::unique_ptr<MessagePeer>>& peers() const { return peers_; }
  const PointToPointOptions& options() const { return options_; }
  const MessageMatching& matching() const { return matching_; }
  // The sockets on which something may happen; nothing: all peers are of this host.
  std::optional<std::vector<pollfd>> sockets() const;
  // Shows in the status page which request has waited longest.
  void show_oldest();

 private:
  bool progress_sends(MessagePeer& peer);
  bool progress_receives(MessagePeer& peer);
  bool read_header(MessagePeer& peer, bool& has_moved);
  bool read_data(MessagePeer& peer, bool& has_moved);
  bool begin_message(MessagePeer& peer);
  void end_message(MessagePeer& peer);
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
  SharedMail* const mail_;
  MessageFailureDetector& detector_;
  MessageStreams streams_;
  std::vector<std::unique_ptr<MessagePeer>> peers_;
  MessageMatching matching_;
  bool keeps_lent_ = false;     // In the call of progress() that is under way.
  std::uint64_t messages_ = 0;  // Number of requests started.
  MaybeFailure found_;
  MaybeFailure failure_;
};

}  // namespace ivy::comm

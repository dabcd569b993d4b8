// SPDX-License-Identifier: Apache-2.0
// Names of messages in texts for users, and the failures that concern one message.
//
// Pure; thread: any.
#pragma once

#include <chrono>
#include <string>

#include "comm/contract/failure.h"
#include "comm/group/p2p/point_to_point_peer.h"

namespace ivy::comm {

// Returns, for example, "recv 5 of communicator world from rank 2 with tag 7".
std::string name_of(const MessageRequest& request, const std::string& communicator);

// For a request of which no byte has moved for that time.
Failure timeout_failure(const MessageRequest& request, const PointToPointOptions& options,
                        std::chrono::nanoseconds waited);
// For a request that its caller has interrupted.
Failure interrupt_failure(const MessageRequest& request, const PointToPointOptions& options);
// For a message that has another type, or does not fit.
Failure mismatch_failure(const MessageRequest& receive, const MessageStatus& sent, Dtype dtype,
                         const PointToPointOptions& options);
// For a receive from any rank when every other rank has left.
Failure all_left_failure(const MessageRequest& receive, const PointToPointOptions& options);
// Adds to the failure's text the message during which it was found, or messages in general if null.
void add_message(Failure& failure, const MessageRequest* during, const std::string& communicator);

}  // namespace ivy::comm

// SPDX-License-Identifier: Apache-2.0
// How messages between ranks are called in what users read, and the failures that are about one.
//
// Pure; thread: any.
#pragma once

#include <chrono>
#include <string>

#include "comm/contract/failure.h"
#include "comm/group/p2p/point_to_point_peer.h"

namespace ivy::comm {

// "recv 5 of communicator world from rank 2 with tag 7"
std::string name_of(const MessageRequest& request, const std::string& communicator);

// No byte of the request has moved for that long.
Failure timeout_failure(const MessageRequest& request, const PointToPointOptions& options,
                        std::chrono::nanoseconds waited);
// Its caller has called it off.
Failure interrupt_failure(const MessageRequest& request, const PointToPointOptions& options);
// The message has another type, or does not fit.
Failure mismatch_failure(const MessageRequest& receive, const MessageStatus& sent, Dtype dtype,
                         const PointToPointOptions& options);
// Every other rank has left, and the receive takes messages of any rank.
Failure all_left_failure(const MessageRequest& receive, const PointToPointOptions& options);
// Adds the message in which the failure was found, or, if that is null, what it was about.
void add_message(Failure& failure, const MessageRequest* during, const std::string& communicator);

}  // namespace ivy::comm

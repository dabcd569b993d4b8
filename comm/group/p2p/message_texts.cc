// SPDX-License-Identifier: Apache-2.0
#include "comm/group/p2p/message_texts.h"

#include "comm/transports/liveness/deadline.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

std::string_view operation_of(const MessageRequest& request) {
  return request.is_send ? "send" : "recv";
}

std::string elements_text(std::size_t bytes, Dtype dtype) {
  return std::to_string(bytes / element_bytes(dtype)) + " " + std::string(dtype_name(dtype));
}

}  // namespace

std::string name_of(const MessageRequest& request, const std::string& communicator) {
  return std::string(operation_of(request)) + " " + std::to_string(request.number) +
         " of communicator " + communicator + (request.is_send ? " to" : " from") +
         (request.peer < 0 ? std::string(" any rank") : " rank " + std::to_string(request.peer)) +
         (request.tag < 0 ? std::string(" with any tag")
                          : " with tag " + std::to_string(request.tag));
}

Failure timeout_failure(const MessageRequest& request, const PointToPointOptions& options,
                        std::chrono::nanoseconds waited) {
  std::string text = name_of(request, options.communicator) + ": timed out: no progress for " +
                     tenths_text(waited.count()) + "; ";
  Failure failure = make_failure(FailureKind::kTimeout, "");
  if (request.peer < 0) {
    text += "no rank has sent it";
  } else {
    const TcpPeer& peer = options.peer(request.peer);
    text += name_of_rank(peer.world_rank, peer.host, peer.pid) +
            (request.is_send ? " did not receive it" : " did not send it");
    failure.rank = peer.world_rank;
    failure.pid = peer.pid;
    set_host(failure, peer.host);
  }
  set_text(failure, text);
  failure.sequence = request.number;
  set_operation(failure, operation_of(request));
  return failure;
}

Failure interrupt_failure(const MessageRequest& request, const PointToPointOptions& options) {
  const TcpPeer& own = options.peer(options.self);
  Failure failure = make_failure(FailureKind::kAborted,
                                 "rank " + std::to_string(options.self) + " aborted communicator " +
                                     options.communicator + ": interrupted during " +
                                     name_of(request, options.communicator));
  failure.rank = own.world_rank;
  failure.sequence = request.number;
  set_host(failure, own.host);
  set_operation(failure, operation_of(request));
  return failure;
}

Failure mismatch_failure(const MessageRequest& receive, const MessageStatus& sent, Dtype dtype,
                         const PointToPointOptions& options) {
  Failure failure =
      make_failure(FailureKind::kMismatch,
                   "messages of communicator " + options.communicator + " differ: rank " +
                       std::to_string(sent.source) + " sends " + elements_text(sent.bytes, dtype) +
                       ", rank " + std::to_string(options.self) + " receives up to " +
                       elements_text(receive.bytes, receive.dtype));
  failure.rank = options.peer(sent.source).world_rank;
  set_operation(failure, "recv");
  return failure;
}

Failure all_left_failure(const MessageRequest& receive, const PointToPointOptions& options) {
  Failure failure = make_failure(FailureKind::kRankDied, name_of(receive, options.communicator) +
                                                             ": every other rank of communicator " +
                                                             options.communicator + " has left");
  failure.sequence = receive.number;
  set_operation(failure, "recv");
  return failure;
}

void add_message(Failure& failure, const MessageRequest* during, const std::string& communicator) {
  if (failure.sequence != 0 || failure.operation[0] != 0) return;
  set_text(failure, std::string(failure.text) + " during " +
                        (during != nullptr ? name_of(*during, communicator)
                                           : "messages of communicator " + communicator));
  failure.sequence = during != nullptr ? during->number : 0;
  set_operation(failure, during != nullptr ? operation_of(*during) : "recv");
}

}  // namespace ivy::comm

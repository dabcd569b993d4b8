// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks in the C interface: checks arguments and turns them into requests.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "comm/api/c_device.h"
#include "comm/api/struct_growth.h"
#include "comm/group/device/device_group.h"

using namespace ivy::comm;               // NOLINT: the C interface of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

namespace {

constexpr int kTagMax = 1 << 30;

int check_peer(const ivy_comm* comm, int rank, const char* name) {
  const Membership& ranks = comm->communicator->ranks();
  if (rank >= 0 && rank < ranks.size()) return IVY_OK;
  return invalid(std::string(name) + " " + std::to_string(rank) +
                 " is not a rank of communicator " + ranks.name());
}

int check_tag(int tag, const char* name) {
  if (tag >= 0 && tag <= kTagMax) return IVY_OK;
  return invalid(std::string(name) + " " + std::to_string(tag) + " is not between 0 and " +
                 std::to_string(kTagMax));
}

// A message's arguments, and their names in the header.
struct GivenMessage {
  bool is_send;
  void* buffer;
  std::size_t count;
  int dtype;
  int peer;
  int tag;
  const char* buffer_name = "buffer";
  const char* tag_name = "tag";
};

// The size of the struct in its first version, which never changes.
constexpr std::size_t kFirstMessageBytes =
    offsetof(ivy_message, bytes) + sizeof(ivy_message::bytes);

// Checks `message` before a message is received that could not be reported afterwards.
int check_message(const ivy_message* message) {
  if (message == nullptr || message->struct_bytes >= kFirstMessageBytes) return IVY_OK;
  return invalid("ivy_message.struct_bytes is not set to sizeof(ivy_message)");
}

int take_request(const ivy_comm* comm, const GivenMessage& given,
                 std::shared_ptr<MessageRequest>& request) {
  IVY_CHECKED(check_type(given.dtype));
  IVY_CHECKED(check_count(given.count, given.dtype, 1));
  if (given.is_send || given.peer != IVY_ANY_SOURCE) {
    IVY_CHECKED(check_peer(comm, given.peer, given.is_send ? "to" : "from"));
  }
  if (given.is_send || given.tag != IVY_ANY_TAG) IVY_CHECKED(check_tag(given.tag, given.tag_name));
  IVY_CHECKED(check_buffer(given.buffer, given.count, given.buffer_name));
  request = std::make_shared<MessageRequest>();
  request->is_send = given.is_send;
  request->peer = given.peer;
  request->tag = given.tag;
  request->dtype = static_cast<Dtype>(given.dtype);
  request->data = or_nothing(given.buffer);
  request->bytes = given.count * element_bytes(request->dtype);
  return IVY_OK;
}

int give_status(const MessageStatus& status, ivy_message* message) {
  if (message == nullptr) return IVY_OK;
  const ivy_message own = {sizeof own, status.source, status.tag, status.bytes};
  give_fields(own, kFirstMessageBytes, *message);
  return IVY_OK;
}

// NCCL's messages have no tags and need a known source.
int check_device_message(const GivenMessage& given, const LocatedBuffers& placed) {
  const bool is_any = !given.is_send && given.peer == IVY_ANY_SOURCE;
  const bool has_tag = given.tag != 0 && (given.is_send || given.tag != IVY_ANY_TAG);
  if (!is_any && !has_tag) return IVY_OK;
  return invalid(std::string(given.is_send ? "send" : "recv") + ": " + given.buffer_name +
                 " is memory of device " + std::to_string(placed.device) +
                 ", and for messages between devices " +
                 (is_any ? "the sender must be given" : "the tag must be 0") +
                 "; or copy to the host");
}

// Location and options of a message between devices.
struct OnDevice {
  ivy_comm* comm;
  const LocatedBuffers& placed;
  const ivy_call* call;
};

// Puts the message on the stream. Sets `called.work` if the call requested it.
int put_on_device(const OnDevice& where, const GivenMessage& given, OperationResult& called) {
  const auto& [comm, placed, call] = where;
  IVY_CHECKED(check_device_message(given, placed));
  Collective shape;
  shape.shape.operation = given.is_send ? Operation::kSend : Operation::kReceive;
  shape.shape.dtype = static_cast<Dtype>(given.dtype);
  shape.shape.root = given.peer;
  shape.shape.count = given.count;
  nccl::DeviceOperation operation = placed.operation(std::move(shape), call);
  operation.transfer = {given.buffer, given.count * element_bytes(static_cast<Dtype>(given.dtype)),
                        given.peer, given.is_send};
  called = comm->communicator->carry_out_on_device(std::move(operation), options_of(call));
  return called.outcome.code == IVY_OK ? IVY_OK : fail(called.outcome.failure());
}

int run_on_device(const OnDevice& where, const GivenMessage& given,
                  const std::shared_ptr<MessageRequest>& request, ivy_message* message) {
  const auto& [comm, placed, call] = where;
  request->status = {given.peer, 0, request->bytes};
  request->is_on_device = true;
  OperationResult called;
  IVY_CHECKED(put_on_device(where, given, called));
  if (called.work == nullptr) return give_status(request->status, message);
  *call->work = give_work({called.work, request, comm->communicator.get()});
  return IVY_OK;
}

int exchange_on_device(const OnDevice& where, const GivenMessage& out, const GivenMessage& in) {
  const auto& [comm, placed, call] = where;
  IVY_CHECKED(check_device_message(out, placed));
  IVY_CHECKED(check_device_message(in, placed));
  // No call can wait inside a group, so both messages are enqueued, and waited for after its end.
  ivy_call enqueued = {};
  if (call != nullptr) std::memcpy(&enqueued, call, std::min(call->struct_bytes, sizeof enqueued));
  enqueued.struct_bytes = sizeof enqueued;
  ivy_work* work = nullptr;
  const bool waits = (enqueued.flags & IVY_ENQUEUE) == 0;
  if (waits) enqueued.work = &work;
  enqueued.flags |= IVY_ENQUEUE;
  DeviceGroup::begin();
  OperationResult sent;
  OperationResult received;
  const OnDevice grouped{comm, placed, &enqueued};
  int code = put_on_device(grouped, out, sent);
  if (code == IVY_OK) code = put_on_device(grouped, in, received);
  const Outcome ended = DeviceGroup::end();
  if (code != IVY_OK) return code;
  if (ended.code != IVY_OK) return fail(ended.failure());
  for (const std::shared_ptr<Work>& each : {sent.work, received.work}) {
    if (each == nullptr) continue;
    const Outcome outcome = *each->wait(std::chrono::milliseconds(-1));
    if (outcome.code != IVY_OK) return fail(outcome.failure());
  }
  return IVY_OK;
}

int run_message(ivy_comm* comm, const GivenMessage& given, ivy_message* message,
                const ivy_call* call) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    std::shared_ptr<MessageRequest> request;
    IVY_CHECKED(take_request(comm, given, request));
    IVY_CHECKED(check_message(message));
    LocatedBuffers placed;
    IVY_CHECKED(find_memory(call, {given.buffer}, placed));
    if (placed.is_device) return run_on_device({comm, placed, call}, given, request, message);
    if (call != nullptr && call->work != nullptr) {
      comm->communicator->post_message(request, options_of(call));
      *call->work = give_work({request->work, request, comm->communicator.get()});
      return IVY_OK;
    }
    const Outcome outcome = comm->communicator->exchange_messages({request}, options_of(call));
    if (outcome.code != IVY_OK) return fail(outcome.failure());
    return give_status(request->status, message);
  });
}

}  // namespace

extern "C" {

int ivy_send(ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
             const ivy_call* call) {
  const GivenMessage sending = {.is_send = true,
                                .buffer = const_cast<void*>(buffer),
                                .count = count,
                                .dtype = dtype,
                                .peer = to,
                                .tag = tag};
  return run_message(comm, sending, nullptr, call);
}

int ivy_recv(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
             ivy_message* message, const ivy_call* call) {
  const GivenMessage receiving = {
      .is_send = false, .buffer = buffer, .count = count, .dtype = dtype, .peer = from, .tag = tag};
  return run_message(comm, receiving, message, call);
}

int ivy_recv_within(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
                    ivy_message* message, int64_t at_most_ms) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    std::shared_ptr<MessageRequest> request;
    const GivenMessage receiving = {.is_send = false,
                                    .buffer = buffer,
                                    .count = count,
                                    .dtype = dtype,
                                    .peer = from,
                                    .tag = tag};
    IVY_CHECKED(take_request(comm, receiving, request));
    if (message == nullptr) return invalid("message is NULL");
    IVY_CHECKED(check_message(message));
    LocatedBuffers placed;
    IVY_CHECKED(find_memory(nullptr, {buffer}, placed));
    if (placed.is_device) return invalid("buffer is device memory; use ivy_recv");
    CallOptions options;
    options.timeout = timeout_of(-1);
    options.wait_limit = at_most_ms == 0 ? std::chrono::nanoseconds(0) : timeout_of(at_most_ms);
    const Outcome outcome = comm->communicator->exchange_messages({request}, options);
    if (outcome.code != IVY_OK) return fail(outcome.failure());
    return give_status(request->status, message);
  });
}

int ivy_sendrecv(ivy_comm* comm, const void* send, size_t send_count, int to, int send_tag,
                 void* recv, size_t recv_count, int from, int recv_tag, int dtype,
                 ivy_message* message, const ivy_call* call) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    const GivenMessage out = {.is_send = true,
                              .buffer = const_cast<void*>(send),
                              .count = send_count,
                              .dtype = dtype,
                              .peer = to,
                              .tag = send_tag,
                              .buffer_name = "send",
                              .tag_name = "send_tag"};
    const GivenMessage in = {.is_send = false,
                             .buffer = recv,
                             .count = recv_count,
                             .dtype = dtype,
                             .peer = from,
                             .tag = recv_tag,
                             .buffer_name = "recv",
                             .tag_name = "recv_tag"};
    std::shared_ptr<MessageRequest> sending;
    IVY_CHECKED(take_request(comm, out, sending));
    std::shared_ptr<MessageRequest> receiving;
    IVY_CHECKED(take_request(comm, in, receiving));
    IVY_CHECKED(check_message(message));
    if (call != nullptr && call->work != nullptr) {
      return invalid("sendrecv is blocking; use ivy_send and ivy_recv with call.work");
    }
    LocatedBuffers placed;
    IVY_CHECKED(find_memory(call, {send, recv}, placed));
    if (placed.is_device) {
      receiving->status = {from, 0, receiving->bytes};
      IVY_CHECKED(exchange_on_device({comm, placed, call}, out, in));
      return give_status(receiving->status, message);
    }
    const Outcome outcome =
        comm->communicator->exchange_messages({sending, receiving}, options_of(call));
    if (outcome.code != IVY_OK) return fail(outcome.failure());
    return give_status(receiving->status, message);
  });
}

int ivy_group_begin(void) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    DeviceGroup::begin();
    return IVY_OK;
  });
}

int ivy_group_end(void) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    const Outcome ended = DeviceGroup::end();
    return ended.code == IVY_OK ? IVY_OK : fail(ended.failure());
  });
}

int ivy_work_message(ivy_work* work, ivy_message* message) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_process());
    if (work == nullptr || message == nullptr) return invalid("work or message is NULL");
    IVY_CHECKED(check_message(message));
    const std::optional<Outcome> outcome = work->work->test();
    const bool is_known = outcome && outcome->code == IVY_OK;
    if (work->message == nullptr || work->message->is_send ||
        !(is_known || work->message->is_on_device)) {
      return invalid("this is not a receive that has succeeded");
    }
    return give_status(work->message->status, message);
  });
}

}  // extern "C"

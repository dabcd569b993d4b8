// Messages between two ranks in the C interface: what the caller gave, checked and turned into
// requests.
#include <cstddef>
#include <memory>
#include <string>

#include "comm/api/c_device.h"
#include "comm/api/struct_growth.h"

using namespace ivy::comm;               // NOLINT: this file is the seam of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT

extern "C" {

namespace {

std::size_t size_of(int dtype) { return element_bytes(static_cast<Dtype>(dtype)); }

constexpr int kTagMax = 1 << 30;

int check_peer(const ivy_comm* comm, int rank, const char* name) {
  const Membership& ranks = comm->communicator->ranks();
  if (rank >= 0 && rank < ranks.size()) return IVY_OK;
  return invalid(std::string(name) + " " + std::to_string(rank) + " is no rank of communicator " +
                 ranks.name());
}

int check_tag(int tag, const char* name) {
  if (tag >= 0 && tag <= kTagMax) return IVY_OK;
  return invalid(std::string(name) + " " + std::to_string(tag) + " is not between 0 and " +
                 std::to_string(kTagMax));
}

// The names of a call's arguments in the header, for messages.
struct ArgumentNames {
  const char* buffer = "buffer";
  const char* tag = "tag";
};
constexpr ArgumentNames kSendNames = {"send", "send_tag"};
constexpr ArgumentNames kRecvNames = {"recv", "recv_tag"};

// The struct's size in the first version: it never changes.
constexpr std::size_t kFirstMessageBytes =
    offsetof(ivy_message, bytes) + sizeof(ivy_message::bytes);

// Checks `message` before a message is taken from the peer that could then not be reported.
int check_message(const ivy_message* message) {
  if (message == nullptr || message->struct_bytes >= kFirstMessageBytes) return IVY_OK;
  return invalid("ivy_message.struct_bytes is not set to sizeof(ivy_message)");
}

std::shared_ptr<MessageRequest> request_for(bool is_send, void* buffer, std::size_t count,
                                            int dtype, int peer, int tag) {
  auto request = std::make_shared<MessageRequest>();
  request->is_send = is_send;
  request->peer = peer;
  request->tag = tag;
  request->dtype = static_cast<Dtype>(dtype);
  request->data = or_nothing(buffer);
  request->bytes = count * size_of(dtype);
  return request;
}

int check_send(const ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
               const ArgumentNames& names = {}) {
  IVY_CHECKED(check_type(dtype));
  IVY_CHECKED(check_count(count, dtype, 1));
  IVY_CHECKED(check_peer(comm, to, "to"));
  IVY_CHECKED(check_tag(tag, names.tag));
  return check_buffer(buffer, count, names.buffer);
}

int check_recv(const ivy_comm* comm, const void* buffer, size_t count, int dtype, int from, int tag,
               const ivy_message* message, const ArgumentNames& names = {}) {
  IVY_CHECKED(check_type(dtype));
  IVY_CHECKED(check_count(count, dtype, 1));
  if (from != IVY_ANY_SOURCE) IVY_CHECKED(check_peer(comm, from, "from"));
  if (tag != IVY_ANY_TAG) IVY_CHECKED(check_tag(tag, names.tag));
  IVY_CHECKED(check_buffer(buffer, count, names.buffer));
  return check_message(message);
}

int give_status(const MessageStatus& status, ivy_message* message) {
  if (message == nullptr) return IVY_OK;
  const ivy_message own = {sizeof own, status.source, status.tag, status.bytes};
  give_fields(own, kFirstMessageBytes, *message);
  return IVY_OK;
}

int run_message(ivy_comm* comm, const std::shared_ptr<MessageRequest>& request,
                ivy_message* message, const ivy_call* call) {
  if (call != nullptr && call->work != nullptr) {
    comm->communicator->post_message(request, options_of(call));
    *call->work = give_work({request->work, request, comm->communicator.get()});
    return IVY_OK;
  }
  const Outcome outcome = comm->communicator->exchange_messages({request}, options_of(call));
  if (outcome.code != IVY_OK) return fail(outcome.failure());
  return give_status(request->status, message);
}

}  // namespace

int ivy_send(ivy_comm* comm, const void* buffer, size_t count, int dtype, int to, int tag,
             const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_send(comm, buffer, count, dtype, to, tag));
    IVY_CHECKED(expect_host("send", {buffer}));
    return run_message(comm, request_for(true, const_cast<void*>(buffer), count, dtype, to, tag),
                       nullptr, call);
  });
}

int ivy_recv(ivy_comm* comm, void* buffer, size_t count, int dtype, int from, int tag,
             ivy_message* message, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_recv(comm, buffer, count, dtype, from, tag, message));
    IVY_CHECKED(expect_host("recv", {buffer}));
    return run_message(comm, request_for(false, buffer, count, dtype, from, tag), message, call);
  });
}

int ivy_sendrecv(ivy_comm* comm, const void* send, size_t send_count, int to, int send_tag,
                 void* recv, size_t recv_count, int from, int recv_tag, int dtype,
                 ivy_message* message, const ivy_call* call) {
  return guarded([&] {
    IVY_CHECKED(check_comm(comm));
    IVY_CHECKED(check_call(call));
    IVY_CHECKED(check_send(comm, send, send_count, dtype, to, send_tag, kSendNames));
    IVY_CHECKED(check_recv(comm, recv, recv_count, dtype, from, recv_tag, message, kRecvNames));
    IVY_CHECKED(expect_host("sendrecv", {send, recv}));
    if (call != nullptr && call->work != nullptr) {
      return invalid("sendrecv waits; use ivy_send and ivy_recv with call.work");
    }
    const auto sending =
        request_for(true, const_cast<void*>(send), send_count, dtype, to, send_tag);
    const auto receiving = request_for(false, recv, recv_count, dtype, from, recv_tag);
    const Outcome outcome =
        comm->communicator->exchange_messages({sending, receiving}, options_of(call));
    if (outcome.code != IVY_OK) return fail(outcome.failure());
    return give_status(receiving->status, message);
  });
}

int ivy_work_message(ivy_work* work, ivy_message* message) {
  return guarded([&] {
    IVY_CHECKED(check_process());
    if (work == nullptr || message == nullptr) return invalid("work or message is NULL");
    IVY_CHECKED(check_message(message));
    const std::optional<Outcome> outcome = work->work->test();
    if (work->message == nullptr || work->message->is_send || !outcome || outcome->code != IVY_OK) {
      return invalid("this is no receive that has ended well");
    }
    return give_status(work->message->status, message);
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/dialects/native_dialect.h"

#include <utility>

#include "rendezvous/dialects/codec.h"

namespace ivy::store {
namespace {

// Packs the id on the wire and the operation into one id, so that the reply needs no table.
RequestId request_id(std::uint8_t op, std::uint32_t id) {
  return static_cast<RequestId>(id) << 8 | static_cast<RequestId>(op & ~kNumberedOp);
}

// Cancels the waiting request with this id, whatever its operation, which the client does not send.
Cancel cancel_of(std::uint32_t id) {
  Cancel cancel;
  for (const Command& command : kCommands) {
    if (command.waits != Op::kNone)
      cancel.or_these.push_back(request_id(static_cast<std::uint8_t>(command.waits), id));
  }
  return cancel;
}

}  // namespace

Result<std::unique_ptr<NativeDialect>> NativeDialect::make(Engine& engine, ClientInfo info,
                                                           std::uint64_t now_ns) {
  const ClientId client = IVY_TRY(engine.join(std::move(info), now_ns));
  return std::unique_ptr<NativeDialect>(new NativeDialect(engine, client));
}

Result<void> NativeDialect::receive(std::string_view bytes, std::uint64_t now_ns, Replies& out) {
  if (!bytes.empty()) decoder_.feed(bytes);
  turn_over_ = false;
  Turn turn(out);
  while (!turn.over()) {
    const std::optional<WireFrame> frame = IVY_TRY(decoder_.next());
    if (!frame) return {};
    IVY_CHECK(serve(*frame, now_ns, out));
    turn.count();
  }
  turn_over_ = true;
  return {};
}

Result<void> NativeDialect::serve(const WireFrame& frame, std::uint64_t now_ns, Replies& out) {
  const std::uint8_t op = frame.head.kind;
  const RequestId id = request_id(op, frame.head.id);
  PayloadReader in(frame.payload);
  if (op == static_cast<std::uint8_t>(Op::kPing)) {
    std::string text(in.text());
    if (!in.done()) return Error{Code::kDataLoss, "a damaged ping"};
    answer_to(client_, id, Value{std::move(text)}, out);
    return {};
  }
  if (op == static_cast<std::uint8_t>(Op::kCancel)) {
    const std::uint32_t cancelled = in.u32();
    if (!in.done()) return Error{Code::kDataLoss, "a damaged cancel"};
    engine_.apply(client_, id, cancel_of(cancelled), now_ns, out);
    return {};
  }
  Result<Request> request = take_native(op, in, now_ns);
  if (request.ok()) {
    engine_.apply(client_, id, std::move(*request), now_ns, out);
  } else if (request.error().code == Code::kInvalidArgument) {
    answer_to(client_, id, request.error(), out);
  } else {
    return request.error();
  }
  return {};
}

void NativeDialect::reply(const Reply& reply, std::string& bytes) {
  FrameHead head{0, static_cast<std::uint32_t>(reply.request >> 8)};
  std::string payload;
  if (const auto* error = std::get_if<Error>(&reply.body)) {
    head.kind = static_cast<std::uint8_t>(error->code);
    put_text(payload, error->message);
  } else {
    put_native_reply(payload, static_cast<Op>(reply.request & 0xff), reply.body);
  }
  append_frame(bytes, head, payload);
}

}  // namespace ivy::store

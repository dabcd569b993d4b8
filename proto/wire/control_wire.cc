// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/control_wire.h"

#include <optional>
#include <type_traits>
#include <utility>

#include "proto/wire/store_wire.h"

namespace ivy::control {
namespace {

// Fields are encoded like those of the store's frames.
using store::PayloadReader;

// A packet's kind is the index of its message in Request or Reply, plus this number.
template <class Message>
constexpr std::uint8_t kFirstKind = std::is_same_v<Message, Request> ? 1 : 128;

// Lists the fields of each message, in order. `visit` encodes or decodes them.
template <class Visit>
void fields(Attach& attach, Visit& visit) {
  visit.u32(attach.version);
  // The library may be another build: reject it for its version, not as a malformed packet.
  if (visit.skip_if_foreign(attach.version)) return;
  visit.u32(attach.rank);
  visit.u32(attach.generation);
  visit.u32(attach.pid);
}

template <class Visit>
void fields(Segment& segment, Visit& visit) {
  visit.u64(segment.bytes);
  visit.u32(segment.members);
  visit.flag(segment.reserve);
  visit.name(segment.name);
}

template <class Visit>
void fields(Report& report, Visit& visit) {
  visit.u8(report.kind);
  visit.u32(report.blamed);
  visit.u64(report.sequence);
  visit.name(report.communicator);
  visit.text(report.text);
}

template <class Visit>
void fields(Leave&, Visit&) {}

template <class Visit>
void fields(Observe& observe, Visit& visit) {
  visit.u32(observe.version);
  // Reject another version as such, as for Attach.
  if (visit.skip_if_foreign(observe.version)) return;
  visit.u32(observe.rank);
  visit.u32(observe.generation);
}

template <class Visit>
void fields(Attached& attached, Visit& visit) {
  visit.u32(attached.version);
  visit.u32(attached.slot);
  visit.u64(attached.bytes);
}

template <class Visit>
void fields(SegmentReady& ready, Visit& visit) {
  visit.u64(ready.bytes);
  visit.name(ready.name);
}

template <class Visit>
void fields(Rejected& rejected, Visit& visit) {
  visit.u8(rejected.request);
  visit.u32(rejected.code);
  visit.name(rejected.name);
  visit.text(rejected.text);
}

template <class Visit>
void fields(Left&, Visit&) {}

template <class Visit>
void fields(Observed& observed, Visit& visit) {
  visit.u64(observed.bytes);
}

// Checks the values of a decoded message beyond the limits of its texts.
template <class Message>
bool is_possible(const Message&) {
  return true;
}
bool is_possible(const Segment& segment) {
  return segment.bytes > 0 && segment.bytes <= kMaxSegmentBytes && segment.members > 0 &&
         segment.members <= kMaxMembers && !segment.name.empty();
}
bool is_possible(const Report& report) {
  return report.kind >= ReportKind::kMismatch && report.kind <= ReportKind::kInternal;
}
bool is_possible(const SegmentReady& ready) {
  return ready.bytes > 0 && ready.bytes <= kMaxSegmentBytes;
}
bool is_possible(const Rejected& rejected) {
  return rejected.request >= RequestKind::kAttach && rejected.request <= RequestKind::kObserve &&
         rejected.code >= Code::kCancelled && rejected.code <= Code::kUnauthenticated;
}

struct Writer {
  std::string& out;

  template <class Value>
  void u8(Value value) {
    store::put_u8(out, static_cast<std::uint8_t>(value));
  }
  template <class Value>
  void u32(Value value) {
    store::put_u32(out, static_cast<std::uint32_t>(value));
  }
  void u64(std::uint64_t value) { store::put_u64(out, value); }
  void flag(bool flag) { u8(flag ? 1 : 0); }
  void name(const std::string& name) {
    IVY_ASSERT(name.size() <= kMaxNameBytes);
    store::put_text(out, name);
  }
  void text(std::string_view text) { store::put_text(out, text.substr(0, kMaxTextBytes)); }
  static bool skip_if_foreign(std::uint32_t) { return false; }
};

struct Reader {
  PayloadReader& in;
  bool is_valid = true;

  template <class Value>
  void u8(Value& value) {
    value = static_cast<Value>(in.u8());
  }
  template <class Value>
  void u32(Value& value) {
    value = static_cast<Value>(in.u32());
  }
  void u64(std::uint64_t& value) { value = in.u64(); }
  void flag(bool& flag) {
    const std::uint8_t flags = in.u8();
    flag = flags != 0;
    is_valid = is_valid && flags <= 1;
  }
  void limited(std::string& text, std::size_t most) {
    text = in.text();
    is_valid = is_valid && text.size() <= most;
  }
  void name(std::string& name) { limited(name, kMaxNameBytes); }
  void text(std::string& text) { limited(text, kMaxTextBytes); }
  bool skip_if_foreign(std::uint32_t version) {
    if (version != kWireVersion) in.skip_rest();
    return version != kWireVersion;
  }
};

template <class Message>
std::string encode_any(Message message) {
  std::string out(1, static_cast<char>(kFirstKind<Message> + message.index()));
  std::visit(
      [&out](auto& value) {
        Writer writer{out};
        fields(value, writer);
      },
      message);
  IVY_ASSERT(out.size() <= kMaxPacketBytes);
  return out;
}

// Decodes the message with this index in Message.
template <class Message, std::size_t index = 0>
std::optional<Message> read_at(std::size_t wanted, PayloadReader& in) {
  if constexpr (index < std::variant_size_v<Message>) {
    if (wanted != index) return read_at<Message, index + 1>(wanted, in);
    std::variant_alternative_t<index, Message> value;
    Reader reader{in};
    fields(value, reader);
    if (reader.is_valid && is_possible(value)) return value;
  }
  return std::nullopt;
}

template <class Message>
Result<Message> decode_any(std::string_view packet) {
  PayloadReader in(packet);
  const std::uint8_t kind = in.u8();
  std::optional<Message> message =
      read_at<Message>(static_cast<std::size_t>(kind) - kFirstKind<Message>, in);
  if (!message || !in.done()) {
    return Error{Code::kDataLoss, "control socket: the packet of " + std::to_string(packet.size()) +
                                      " bytes, kind " + std::to_string(kind) + ", is invalid"};
  }
  return *std::move(message);
}

}  // namespace

std::string encode(const Request& request) { return encode_any(request); }
std::string encode(const Reply& reply) { return encode_any(reply); }

Result<Request> decode_request(std::string_view packet) { return decode_any<Request>(packet); }
Result<Reply> decode_reply(std::string_view packet) { return decode_any<Reply>(packet); }

}  // namespace ivy::control

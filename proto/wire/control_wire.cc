#include "proto/wire/control_wire.h"

#include <optional>
#include <utility>

#include "proto/wire/store_wire.h"

namespace ivy::control {
namespace {

// The fields are those of the store's frames.
using store::PayloadReader;
using store::put_text;
using store::put_u32;
using store::put_u64;
using store::put_u8;

constexpr std::uint8_t kAttach = 1;
constexpr std::uint8_t kSegment = 2;
constexpr std::uint8_t kReport = 3;
constexpr std::uint8_t kLeave = 4;
constexpr std::uint8_t kObserve = 5;
constexpr std::uint8_t kAttached = 128;
constexpr std::uint8_t kSegmentReady = 129;
constexpr std::uint8_t kRefused = 130;
constexpr std::uint8_t kLeft = 131;
constexpr std::uint8_t kObserved = 132;

constexpr std::uint8_t kFlagReserve = 1;

void put_name(std::string& out, const std::string& name) {
  IVY_ASSERT(name.size() <= kMaxNameBytes);
  put_text(out, name);
}

void put_cut_text(std::string& out, std::string_view text) {
  put_text(out, text.substr(0, kMaxTextBytes));
}

void put(std::string& out, const Attach& attach) {
  put_u8(out, kAttach);
  put_u32(out, attach.version);
  put_u32(out, attach.rank);
  put_u32(out, attach.generation);
  put_u32(out, static_cast<std::uint32_t>(attach.pid));
}

void put(std::string& out, const Segment& segment) {
  put_u8(out, kSegment);
  put_u64(out, segment.bytes);
  put_u32(out, segment.members);
  put_u8(out, segment.reserve ? kFlagReserve : 0);
  put_name(out, segment.name);
}

void put(std::string& out, const Report& report) {
  put_u8(out, kReport);
  put_u8(out, static_cast<std::uint8_t>(report.kind));
  put_u32(out, report.blamed);
  put_u64(out, report.sequence);
  put_name(out, report.communicator);
  put_cut_text(out, report.text);
}

void put(std::string& out, const Leave&) { put_u8(out, kLeave); }

void put(std::string& out, const Observe& observe) {
  put_u8(out, kObserve);
  put_u32(out, observe.version);
  put_u32(out, observe.rank);
  put_u32(out, observe.generation);
}

void put(std::string& out, const Attached& attached) {
  put_u8(out, kAttached);
  put_u32(out, attached.version);
  put_u32(out, attached.slot);
  put_u64(out, attached.bytes);
}

void put(std::string& out, const SegmentReady& ready) {
  put_u8(out, kSegmentReady);
  put_u64(out, ready.bytes);
  put_name(out, ready.name);
}

void put(std::string& out, const Refused& refused) {
  put_u8(out, kRefused);
  put_u8(out, static_cast<std::uint8_t>(refused.request));
  put_u32(out, static_cast<std::uint32_t>(refused.code));
  put_name(out, refused.name);
  put_cut_text(out, refused.text);
}

void put(std::string& out, const Left&) { put_u8(out, kLeft); }

void put(std::string& out, const Observed& observed) {
  put_u8(out, kObserved);
  put_u64(out, observed.bytes);
}

template <class Message>
std::string encode_any(const Message& message) {
  std::string out;
  std::visit([&out](const auto& value) { put(out, value); }, message);
  IVY_ASSERT(out.size() <= kMaxPacketBytes);
  return out;
}

bool in_range(std::uint8_t value, std::uint8_t low, std::uint8_t high) {
  return value >= low && value <= high;
}

Attach read_attach(PayloadReader& in) {
  Attach attach;
  attach.version = in.u32();
  // The library may be of another build: refuse it by its version, not as a damaged packet.
  if (attach.version != kWireVersion) {
    in.skip_rest();
    return attach;
  }
  attach.rank = in.u32();
  attach.generation = in.u32();
  attach.pid = static_cast<std::int32_t>(in.u32());
  return attach;
}

std::optional<Segment> read_segment(PayloadReader& in) {
  Segment segment;
  segment.bytes = in.u64();
  segment.members = in.u32();
  const std::uint8_t flags = in.u8();
  segment.reserve = (flags & kFlagReserve) != 0;
  segment.name = in.text();
  const bool is_ours = segment.bytes > 0 && segment.bytes <= kMaxSegmentBytes &&
                       segment.members > 0 && segment.members <= kMaxMembers &&
                       (flags & ~kFlagReserve) == 0 && !segment.name.empty() &&
                       segment.name.size() <= kMaxNameBytes;
  return is_ours ? std::optional<Segment>(std::move(segment)) : std::nullopt;
}

std::optional<Report> read_report(PayloadReader& in) {
  Report report;
  const std::uint8_t kind = in.u8();
  report.kind = static_cast<ReportKind>(kind);
  report.blamed = in.u32();
  report.sequence = in.u64();
  report.communicator = in.text();
  report.text = in.text();
  const bool is_ours = in_range(kind, static_cast<std::uint8_t>(ReportKind::kMismatch),
                                static_cast<std::uint8_t>(ReportKind::kInternal)) &&
                       report.communicator.size() <= kMaxNameBytes &&
                       report.text.size() <= kMaxTextBytes;
  return is_ours ? std::optional<Report>(std::move(report)) : std::nullopt;
}

Observe read_observe(PayloadReader& in) {
  Observe observe;
  observe.version = in.u32();
  // Another version is refused as such, as for Attach.
  if (observe.version != kWireVersion) {
    in.skip_rest();
    return observe;
  }
  observe.rank = in.u32();
  observe.generation = in.u32();
  return observe;
}

Attached read_attached(PayloadReader& in) {
  Attached attached;
  attached.version = in.u32();
  attached.slot = in.u32();
  attached.bytes = in.u64();
  return attached;
}

std::optional<SegmentReady> read_segment_ready(PayloadReader& in) {
  SegmentReady ready;
  ready.bytes = in.u64();
  ready.name = in.text();
  const bool is_ours =
      ready.bytes > 0 && ready.bytes <= kMaxSegmentBytes && ready.name.size() <= kMaxNameBytes;
  return is_ours ? std::optional<SegmentReady>(std::move(ready)) : std::nullopt;
}

std::optional<Refused> read_refused(PayloadReader& in) {
  Refused refused;
  const std::uint8_t request = in.u8();
  refused.request = static_cast<RequestKind>(request);
  const std::uint32_t code = in.u32();
  refused.code = static_cast<Code>(code);
  refused.name = in.text();
  refused.text = in.text();
  const bool is_ours = in_range(request, kAttach, kObserve) && code >= 1 &&
                       code <= static_cast<std::uint32_t>(Code::kUnauthenticated) &&
                       refused.name.size() <= kMaxNameBytes && refused.text.size() <= kMaxTextBytes;
  return is_ours ? std::optional<Refused>(std::move(refused)) : std::nullopt;
}

template <class Message>
std::optional<Message> read_kind(std::uint8_t kind, PayloadReader& in);

template <>
std::optional<Request> read_kind(std::uint8_t kind, PayloadReader& in) {
  switch (kind) {
    case kAttach:
      return read_attach(in);
    case kSegment:
      return read_segment(in);
    case kReport:
      return read_report(in);
    case kLeave:
      return Leave{};
    case kObserve:
      return read_observe(in);
    default:
      return std::nullopt;
  }
}

template <>
std::optional<Reply> read_kind(std::uint8_t kind, PayloadReader& in) {
  switch (kind) {
    case kAttached:
      return read_attached(in);
    case kSegmentReady:
      return read_segment_ready(in);
    case kRefused:
      return read_refused(in);
    case kLeft:
      return Left{};
    case kObserved:
      return Observed{in.u64()};
    default:
      return std::nullopt;
  }
}

template <class Message>
Result<Message> decode_any(std::string_view packet) {
  PayloadReader in(packet);
  const std::uint8_t kind = in.u8();
  std::optional<Message> message = read_kind<Message>(kind, in);
  if (!message || !in.done()) {
    return Error{Code::kDataLoss, "control socket: a packet of " + std::to_string(packet.size()) +
                                      " bytes, kind " + std::to_string(kind) + ", cannot be read"};
  }
  return *std::move(message);
}

}  // namespace

std::string encode(const Request& request) { return encode_any(request); }
std::string encode(const Reply& reply) { return encode_any(reply); }

Result<Request> decode_request(std::string_view packet) { return decode_any<Request>(packet); }
Result<Reply> decode_reply(std::string_view packet) { return decode_any<Reply>(packet); }

}  // namespace ivy::control

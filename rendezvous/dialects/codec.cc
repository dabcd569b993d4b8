// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes by passing a Writer or a Reader to the fields() of each type.
#include "rendezvous/dialects/codec.h"

#include <array>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ivy::store {
namespace {

constexpr std::uint64_t kNanosPerMilli = 1'000'000;

struct Writer {
  std::string& out;
  bool is_yes_no = false;    // As Command::is_yes_no.
  bool is_other_op = false;  // Output: the native request has the command's other number.

  void flag(bool value) { put_u8(out, value ? 1 : 0); }
  void number(std::uint64_t value) { put_u64(out, value); }
  void number(std::int64_t value) { put_u64(out, static_cast<std::uint64_t>(value)); }
  void number(std::uint32_t value) { put_u32(out, value); }
  void text(const std::string& value) { put_text(out, value); }
  void key(const std::string& value) { put_text(out, value); }
  void keys(const std::vector<std::string>& many) {
    count(many.size());
    for (const std::string& one : many) put_text(out, one);
  }
  void entries(const std::vector<std::pair<std::string, std::string>>& many) {
    count(many.size());
    for (const auto& [key, value] : many) put_text(out, key), put_text(out, value);
  }
  void optional_text(const std::optional<std::string>& value) {
    flag(value.has_value());
    put_text(out, value ? std::string_view(*value) : std::string_view());
  }
  void last_flag(bool value) {
    if (value) flag(value);
  }
  void by_op(bool value) { is_other_op = value; }
  // The timeout is encoded before the fields (requests.h).
  void deadline(std::uint64_t) {}
  void optional_deadline(const std::optional<std::uint64_t>& at_ns) { by_op(at_ns.has_value()); }
  void answer(std::int64_t value) { is_yes_no ? flag(value != 0) : number(value); }
  void values(const std::vector<std::string>& many) {
    for (const std::string& one : many) put_text(out, one);
  }
  void page(const std::vector<std::string>& names, bool more) {
    flag(more);
    keys(names);
  }
  void kind(Changed::Kind what) { put_u8(out, static_cast<std::uint8_t>(what)); }

 private:
  void count(std::size_t have) { put_u32(out, static_cast<std::uint32_t>(have)); }
};

struct Reader {
  PayloadReader& in;
  std::size_t most;  // A longer list is malformed.
  std::uint64_t now_ns = 0;
  bool is_yes_no = false;
  bool is_other_op = false;
  std::size_t values_asked = 0;
  std::optional<std::uint64_t> wait_until_ns = {};  // First field of a native request.
  std::uint32_t too_many = 0;                       // Output: a count beyond `most`.

  void flag(bool& value) { value = in.u8() != 0; }
  void number(std::uint64_t& value) { value = in.u64(); }
  void number(std::int64_t& value) { value = in.i64(); }
  void number(std::uint32_t& value) { value = in.u32(); }
  void text(std::string& value) { value = in.text(); }
  void key(std::string& value) { value = in.text(); }
  // Every entry takes at least four bytes, so a count that is too large ends these loops early.
  void keys(std::vector<std::string>& many) {
    for (std::uint32_t left = count(); left > 0 && in.ok(); --left) many.emplace_back(in.text());
  }
  void entries(std::vector<std::pair<std::string, std::string>>& many) {
    for (std::uint32_t left = count(); left > 0 && in.ok(); --left) {
      auto& [key, value] = many.emplace_back();
      key = in.text();
      value = in.text();
    }
  }
  void optional_text(std::optional<std::string>& value) {
    const bool is_present = in.u8() != 0;
    const std::string_view read = in.text();
    if (is_present) value.emplace(read);
  }
  void last_flag(bool& value) {
    if (!in.done()) flag(value);
  }
  void by_op(bool& value) { value = is_other_op; }
  void deadline(std::uint64_t& at_ns) { at_ns = *wait_until_ns; }
  void optional_deadline(std::optional<std::uint64_t>& at_ns) { at_ns = wait_until_ns; }
  void answer(std::int64_t& value) { value = is_yes_no ? in.u8() : in.i64(); }
  void values(std::vector<std::string>& many) {
    while (many.size() < values_asked && in.ok()) many.emplace_back(in.text());
  }
  void page(std::vector<std::string>& names, bool& more) {
    flag(more);
    keys(names);
  }
  void kind(Changed::Kind& what) { what = static_cast<Changed::Kind>(in.u8()); }
  std::uint64_t after(std::uint64_t from_now_ns) const {
    return from_now_ns >= kNever - now_ns ? kNever : now_ns + from_now_ns;
  }

 private:
  std::uint32_t count() {
    const std::uint32_t have = in.u32();
    if (have <= most) return have;
    too_many = have;
    in.skip_rest();
    in.u8();  // Makes this read and every further one fail.
    return 0;
  }
};

// One function per type of request, which decodes it with a Reader.
template <std::size_t... kIndex>
constexpr auto readers_of(std::index_sequence<kIndex...>) {
  return std::array{+[](Request& out, Reader& reader) {
    auto& kind = out.template emplace<kIndex>();
    kind.fields(reader, kind);
  }...};
}
constexpr auto kReaders = readers_of(std::make_index_sequence<std::variant_size_v<Request>>());

// Maps each op to the index of its request type, or to the number of types if it has none.
constexpr auto kRequestOfOp = [] {
  std::array<std::uint8_t, kNumberedOp> requests{};
  requests.fill(kCommands.size());
  for (std::uint8_t i = 0; i < kCommands.size(); ++i) {
    for (const Op op : {kCommands[i].op, kCommands[i].other})
      if (op != Op::kNone) requests[static_cast<std::uint8_t>(op)] = i;
  }
  return requests;
}();

bool is_code(std::uint8_t kind) {
  switch (static_cast<Code>(kind)) {
    case Code::kCancelled:
    case Code::kInvalidArgument:
    case Code::kDeadlineExceeded:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kPermissionDenied:
    case Code::kResourceExhausted:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kUnauthenticated:
      return true;
  }
  return false;
}

// Error{} has no fields; it travels as its code and text.
void put_body(Writer writer, const ReplyBody& body) {
  std::visit(
      [&](const auto& kind) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(kind)>, Error>)
          kind.fields(writer, kind);
      },
      body);
}

Error bad_request(std::uint8_t op, const char* how) {
  return Error{Code::kDataLoss, "request number " + std::to_string(op) + " is " + how};
}

}  // namespace

Op put_native(std::string& out, const Request& request) {
  Writer writer{out};
  std::visit([&](const auto& kind) { kind.fields(writer, kind); }, request);
  const Command& command = command_of(request);
  return writer.is_other_op && command.other != Op::kNone ? command.other : command.op;
}

void put_numbered(std::string& out, const Numbered& numbered) {
  put_u64(out, numbered.number);
  put_u64(out, numbered.lowest);
  put_u8(out, numbered.again ? 1 : 0);
}

Result<Request> take_native(std::uint8_t kind, PayloadReader& in, std::uint64_t now_ns) {
  const std::uint8_t op = kind & ~kNumberedOp;
  const std::size_t index = kRequestOfOp[op];
  if (index == kCommands.size()) return bad_request(op, "unknown");
  Numbered numbered;
  if ((kind & kNumberedOp) != 0) {
    numbered.number = in.u64();
    numbered.lowest = in.u64();
    numbered.again = in.u8() != 0;
    if (numbered.lowest == 0 || numbered.lowest > numbered.number)
      return bad_request(op, "wrongly numbered");
  }
  const Command& command = kCommands[index];
  Reader reader{in, kMaxKeysPerRequest, now_ns};
  reader.is_other_op = static_cast<Op>(op) == command.other;
  if (static_cast<Op>(op) == command.waits && command.has_timeout) {
    const std::uint64_t timeout_ms = in.u64();
    reader.wait_until_ns =
        timeout_ms >= kNever / kNanosPerMilli ? kNever : reader.after(timeout_ms * kNanosPerMilli);
  }
  Result<Request> request = Request();
  kReaders[index](*request, reader);
  if (reader.too_many != 0) {
    return Error{Code::kInvalidArgument, "a request with " + std::to_string(reader.too_many) +
                                             " keys; at most " +
                                             std::to_string(kMaxKeysPerRequest)};
  }
  if (!in.done()) return bad_request(op, "damaged");
  if (numbered.number != 0) {
    Numbered* const target = numbered_of(*request);
    if (target == nullptr) return bad_request(op, "unexpectedly numbered");
    *target = numbered;
  }
  return request;
}

std::optional<Error> take_error(std::uint8_t status, PayloadReader& in) {
  std::string text(in.text());
  if (!in.done() || !is_code(status)) return std::nullopt;
  return Error{static_cast<Code>(status), std::move(text)};
}

void put_native_reply(std::string& out, Op op, const ReplyBody& body) {
  const std::size_t index = kRequestOfOp[static_cast<std::uint8_t>(op)];
  const bool is_yes_no = index < kCommands.size() && kCommands[index].is_yes_no;
  put_body(Writer{out, is_yes_no}, body);
}

Result<ReplyBody> take_native_answer(const Request& request, PayloadReader& in) {
  Reader reader{in, kMaxKeys};
  reader.is_yes_no = command_of(request).is_yes_no;
  if (const auto* many = std::get_if<MultiGet>(&request)) reader.values_asked = many->keys.size();
  ReplyBody body;
  std::visit(
      [&](const auto& kind) {
        auto& answer = body.emplace<typename std::decay_t<decltype(kind)>::Answer>();
        answer.fields(reader, answer);
      },
      request);
  if (!in.done()) return Error{Code::kDataLoss, "a damaged reply"};
  return body;
}

std::optional<Changed> take_change(PayloadReader& in) {
  Reader reader{in, kMaxKeys};
  Changed change;
  change.fields(reader, change);
  const bool is_known =
      change.kind >= Changed::Kind::kSet && change.kind <= Changed::Kind::kOverflow;
  if (!is_known || !in.done()) return std::nullopt;
  return change;
}

}  // namespace ivy::store

// A Writer and a Reader visit the fields that each kind lists. What the two forms do differently
// stands in these two structs and nowhere else.
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
enum class Form { kNative, kLeaf };

template <Form form>
struct Writer {
  static constexpr bool kIsLeaf = form == Form::kLeaf;
  std::string& out;
  std::uint64_t now_ns = 0;
  bool is_yes_no = false;    // The command's property of that name.
  bool is_other_op = false;  // The outcome for a native request: it has the command's other number.

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
  void numbers(const std::vector<std::uint64_t>& many) {
    count(many.size());
    for (const std::uint64_t one : many) put_u64(out, one);
  }
  void optional_text(const std::optional<std::string>& value) {
    flag(value.has_value());
    if (value || !kIsLeaf) put_text(out, value ? std::string_view(*value) : std::string_view());
  }
  void inner(bool value) {
    if (kIsLeaf) flag(value);
  }
  void last_flag(bool value) {
    if (kIsLeaf || value) flag(value);
  }
  void by_op(bool value) {
    inner(value);
    is_other_op = value;
  }
  void deadline(std::uint64_t at_ns) {
    if (kIsLeaf) put_u64(out, at_ns == kNever ? kNever : at_ns > now_ns ? at_ns - now_ns : 0);
  }
  void optional_deadline(const std::optional<std::uint64_t>& at_ns) {
    by_op(at_ns.has_value());
    if (at_ns) deadline(*at_ns);
  }
  void numbered(const Numbered& value) {
    if (kIsLeaf) put_numbered(out, value);
  }
  void answer(std::int64_t value) { kIsLeaf || !is_yes_no ? number(value) : flag(value != 0); }
  void values(const std::vector<std::string>& many) {
    if (kIsLeaf) return keys(many);
    for (const std::string& one : many) put_text(out, one);
  }
  void page(const std::vector<std::string>& names, bool more) {
    if (!kIsLeaf) flag(more);
    keys(names);
    inner(more);
  }
  void kind(Changed::What what) {
    kIsLeaf ? put_u32(out, static_cast<std::uint32_t>(what))
            : put_u8(out, static_cast<std::uint8_t>(what));
  }

 private:
  void count(std::size_t have) { put_u32(out, static_cast<std::uint32_t>(have)); }
};

template <Form form>
struct Reader {
  static constexpr bool kIsLeaf = form == Form::kLeaf;
  PayloadReader& in;
  std::size_t most;  // A longer list is damaged.
  std::uint64_t now_ns = 0;
  bool is_yes_no = false;
  bool is_other_op = false;
  std::size_t values_asked = 0;
  std::optional<std::uint64_t> wait_until_ns = {};  // What a native request begins with.
  std::uint32_t too_many = 0;                       // The outcome: a count beyond `most`.

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
  void numbers(std::vector<std::uint64_t>& many) {
    for (std::uint32_t left = count(); left > 0 && in.ok(); --left) many.push_back(in.u64());
  }
  void optional_text(std::optional<std::string>& value) {
    const bool is_there = in.u8() != 0;
    const std::string_view read = is_there || !kIsLeaf ? in.text() : std::string_view();
    if (is_there) value.emplace(read);
  }
  void inner(bool& value) {
    if (kIsLeaf) flag(value);
  }
  void last_flag(bool& value) {
    if (kIsLeaf || !in.done()) flag(value);
  }
  void by_op(bool& value) { kIsLeaf ? flag(value) : void(value = is_other_op); }
  void deadline(std::uint64_t& at_ns) { at_ns = kIsLeaf ? after(in.u64()) : *wait_until_ns; }
  void optional_deadline(std::optional<std::uint64_t>& at_ns) {
    if (!kIsLeaf) {
      at_ns = wait_until_ns;
    } else if (in.u8() != 0) {
      at_ns = after(in.u64());
    }
  }
  void numbered(Numbered& value) {
    if (kIsLeaf) number(value.number), number(value.lowest), flag(value.again);
  }
  void answer(std::int64_t& value) { value = kIsLeaf || !is_yes_no ? in.i64() : in.u8(); }
  void values(std::vector<std::string>& many) {
    if (kIsLeaf) return keys(many);
    while (many.size() < values_asked && in.ok()) many.emplace_back(in.text());
  }
  void page(std::vector<std::string>& names, bool& more) {
    if (!kIsLeaf) flag(more);
    keys(names);
    inner(more);
  }
  void kind(Changed::What& what) {
    what = static_cast<Changed::What>(kIsLeaf ? in.u32() : std::uint32_t{in.u8()});
  }
  std::uint64_t after(std::uint64_t from_now_ns) const {
    return from_now_ns >= kNever - now_ns ? kNever : now_ns + from_now_ns;
  }

 private:
  std::uint32_t count() {
    const std::uint32_t have = in.u32();
    if (have <= most) return have;
    too_many = have;
    in.skip_rest();
    in.u8();  // Fails this and every further read.
    return 0;
  }
};

// For each alternative of a variant, a function that makes it from a Reader.
template <class Variant, Form form, std::size_t... kIndex>
constexpr auto readers_of(std::index_sequence<kIndex...>) {
  return std::array{+[](Variant& out, Reader<form>& reader) {
    auto& kind = out.template emplace<kIndex>();
    if constexpr (!std::is_same_v<std::decay_t<decltype(kind)>, Error>) kind.fields(reader, kind);
  }...};
}
template <class Variant, Form form>
constexpr auto kReaders =
    readers_of<Variant, form>(std::make_index_sequence<std::variant_size_v<Variant>>());

template <std::size_t... kIndex>
constexpr auto commands_of(std::index_sequence<kIndex...>) {
  return std::array{std::variant_alternative_t<kIndex, Request>::kCommand...};
}
constexpr auto kCommands = commands_of(std::make_index_sequence<std::variant_size_v<Request>>());

// For each op the index of its request, or the number of requests if it has none.
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

// Error{} has no fields: it travels as its code and text.
template <Form form>
void put_body(Writer<form> writer, const ReplyBody& body) {
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
  Writer<Form::kNative> writer{out};
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
    Reader<Form::kLeaf>{in, 0}.numbered(numbered);
    if (numbered.lowest == 0 || numbered.lowest > numbered.number)
      return bad_request(op, "numbered wrongly");
  }
  const Command& command = kCommands[index];
  Reader<Form::kNative> reader{in, kMaxKeysPerRequest, now_ns};
  reader.is_other_op = static_cast<Op>(op) == command.other;
  if (static_cast<Op>(op) == command.timed) {
    const std::uint64_t timeout_ms = in.u64();
    reader.wait_until_ns =
        timeout_ms >= kNever / kNanosPerMilli ? kNever : reader.after(timeout_ms * kNanosPerMilli);
  }
  Result<Request> request = Request();
  kReaders<Request, Form::kNative>[index](*request, reader);
  if (reader.too_many != 0) {
    return Error{Code::kInvalidArgument, "a request with " + std::to_string(reader.too_many) +
                                             " keys; at most " +
                                             std::to_string(kMaxKeysPerRequest)};
  }
  if (!in.done()) return bad_request(op, "damaged");
  if (numbered.number != 0) {
    Numbered* const place = numbered_of(*request);
    if (place == nullptr) return bad_request(op, "never numbered");
    *place = numbered;
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
  put_body(Writer<Form::kNative>{out, 0, is_yes_no}, body);
}

Result<ReplyBody> take_native_answer(const Request& request, PayloadReader& in) {
  Reader<Form::kNative> reader{in, kMaxKeys};
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
  Reader<Form::kNative> reader{in, kMaxKeys};
  Changed change;
  change.fields(reader, change);
  const bool is_known =
      change.what >= Changed::What::kSet && change.what <= Changed::What::kOverflow;
  if (!is_known || !in.done()) return std::nullopt;
  return change;
}

void put_leaf_request(std::string& out, const Request& request, std::uint64_t now_ns) {
  Writer<Form::kLeaf> writer{out, now_ns};
  std::visit([&](const auto& kind) { kind.fields(writer, kind); }, request);
}

Result<Request> take_leaf_request(std::size_t index, PayloadReader& in, std::uint64_t now_ns) {
  // The engine refuses the one key too many.
  Reader<Form::kLeaf> reader{in, kMaxKeysPerRequest + 1, now_ns};
  Result<Request> request = Request();
  if (index < kCommands.size()) kReaders<Request, Form::kLeaf>[index](*request, reader);
  if (index < kCommands.size() && in.done()) return request;
  return Error{Code::kDataLoss,
               "a leaf's request of kind " + std::to_string(index) + " is damaged"};
}

void put_leaf_reply(std::string& out, const ReplyBody& body) {
  if (const auto* error = std::get_if<Error>(&body)) return put_text(out, error->message);
  put_u8(out, static_cast<std::uint8_t>(body.index()));
  put_body(Writer<Form::kLeaf>{out}, body);
}

Result<ReplyBody> take_leaf_reply(std::uint8_t status, PayloadReader& in) {
  if (status != 0) {
    std::optional<Error> error = take_error(status, in);
    if (!error) return Error{Code::kDataLoss, "a damaged refusal"};
    return ReplyBody(std::move(*error));
  }
  Result<ReplyBody> body = ReplyBody();
  Reader<Form::kLeaf> reader{in, kMaxKeys};
  const std::size_t kind = in.u8();
  if (kind < std::variant_size_v<ReplyBody>) kReaders<ReplyBody, Form::kLeaf>[kind](*body, reader);
  if (kind < std::variant_size_v<ReplyBody> && in.ok() && !std::holds_alternative<Error>(*body))
    return body;
  return Error{Code::kDataLoss, "a damaged reply"};
}

}  // namespace ivy::store

// Encodes and decodes: each kind lists its fields once, and a Writer and a Reader visit them in the
// same order.
#include "rendezvous/dialects/leaf_wire.h"

#include <array>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ivy::store {
namespace {

struct Writer {
  std::string& out;
  std::uint64_t now_ns = 0;

  void flag(bool& value) { put_u8(out, value ? 1 : 0); }
  void number(std::uint64_t& value) { put_u64(out, value); }
  void number(std::int64_t& value) { put_u64(out, static_cast<std::uint64_t>(value)); }
  void number(std::uint32_t& value) { put_u32(out, value); }
  void text(std::string& value) { put_text(out, value); }
  void deadline(std::uint64_t& at_ns) {
    put_u64(out, at_ns == kNever ? kNever : at_ns > now_ns ? at_ns - now_ns : 0);
  }
  std::uint32_t count(std::size_t have) {
    put_u32(out, static_cast<std::uint32_t>(have));
    return static_cast<std::uint32_t>(have);
  }
  bool present(bool is_there) {
    put_u8(out, is_there ? 1 : 0);
    return is_there;
  }
};

struct Reader {
  PayloadReader& in;
  std::size_t most = kMaxKeysPerRequest + 1;  // In a list; the engine refuses the extra one.
  std::uint64_t now_ns = 0;

  void flag(bool& value) { value = in.u8() != 0; }
  void number(std::uint64_t& value) { value = in.u64(); }
  void number(std::int64_t& value) { value = in.i64(); }
  void number(std::uint32_t& value) { value = in.u32(); }
  void text(std::string& value) { value = std::string(in.text()); }
  void deadline(std::uint64_t& at_ns) {
    const std::uint64_t from_now = in.u64();
    at_ns = from_now >= kNever - now_ns ? kNever : now_ns + from_now;
  }
  std::uint32_t count(std::size_t) {
    const std::uint32_t count = in.u32();
    if (count <= most) return count;
    in.skip_rest();
    in.u8();  // Fails this and every further read.
    return 0;
  }
  bool present(bool) { return in.u8() != 0; }
};

template <class Archive, class One>
void each(Archive& a, std::vector<One>& many, void (*one)(Archive&, One&)) {
  const std::uint32_t count = a.count(many.size());
  if constexpr (std::is_same_v<Archive, Reader>) {
    // An entry takes at least one byte, so a count that is too large ends the loop early.
    for (std::uint32_t i = 0; i < count && a.in.ok(); ++i) one(a, many.emplace_back());
  } else {
    for (One& value : many) one(a, value);
  }
}

template <class Archive>
void texts(Archive& a, std::vector<std::string>& many) {
  each<Archive, std::string>(a, many, [](Archive& to, std::string& value) { to.text(value); });
}

template <class Archive, class Value, class Put>
void optional(Archive& a, std::optional<Value>& value, const Put& put) {
  if (!a.present(value.has_value())) return;
  if (!value) value.emplace();
  put(*value);
}

template <class Archive>
void optional_text(Archive& a, std::optional<std::string>& value) {
  optional(a, value, [&](std::string& text) { a.text(text); });
}

template <class Archive>
void optional_deadline(Archive& a, std::optional<std::uint64_t>& value) {
  optional(a, value, [&](std::uint64_t& at_ns) { a.deadline(at_ns); });
}

template <class A>
void fields(A& a, Numbered& r) {
  a.number(r.number), a.number(r.lowest), a.flag(r.again);
}
template <class A>
void fields(A& a, Set& r) {
  a.text(r.key), a.text(r.value), a.flag(r.once), fields(a, r.numbered);
}
template <class A>
void fields(A& a, Get& r) {
  a.text(r.key), optional_deadline(a, r.wait_until_ns);
}
template <class A>
void fields(A& a, Wait& r) {
  texts(a, r.keys), a.deadline(r.deadline_ns);
}
template <class A>
void fields(A& a, Check& r) {
  texts(a, r.keys);
}
template <class A>
void fields(A& a, Add& r) {
  a.text(r.key), a.number(r.delta);
}
template <class A>
void fields(A& a, CompareSet& r) {
  a.text(r.key), optional_text(a, r.expected), a.text(r.desired), a.flag(r.as_torch);
}
template <class A>
void fields(A& a, Append& r) {
  a.text(r.key), a.text(r.value);
}
template <class A>
void fields(A& a, Delete& r) {
  a.text(r.key), fields(a, r.numbered);
}
template <class A>
void fields(A& a, MultiGet& r) {
  texts(a, r.keys);
}
template <class A>
void fields(A& a, MultiSet& r) {
  using Entry = std::pair<std::string, std::string>;
  each<A, Entry>(a, r.entries, [](A& to, Entry& entry) {
    to.text(entry.first);
    to.text(entry.second);
  });
  fields(a, r.numbered);
}
template <class A>
void fields(A& a, QueuePush& r) {
  a.text(r.key), a.text(r.value);
}
template <class A>
void fields(A& a, QueuePop& r) {
  a.text(r.key), optional_deadline(a, r.wait_until_ns), a.flag(r.counted);
}
template <class A>
void fields(A& a, QueueLength& r) {
  a.text(r.key);
}
template <class A>
void fields(A& a, List& r) {
  a.text(r.prefix), a.number(r.limit), a.text(r.after);
}
template <class A>
void fields(A& a, Count& r) {
  a.text(r.prefix);
}
template <class A>
void fields(A& a, Barrier& r) {
  a.text(r.name), a.number(r.size), a.number(r.member), a.number(r.call);
  a.deadline(r.deadline_ns), a.flag(r.ends_with_a_loss);
}
template <class A>
void fields(A& a, AddAndWait& r) {
  a.text(r.key), a.number(r.at_least);
}
template <class A>
void fields(A& a, Watch& r) {
  a.text(r.prefix), a.flag(r.exact), a.flag(r.one_shot);
}
template <class A>
void fields(A& a, Cancel& r) {
  a.number(r.request);
  each<A, RequestId>(a, r.or_these, [](A& to, RequestId& id) { to.number(id); });
}
template <class A>
void fields(A&, Why&) {}

template <class A>
void fields(A&, Done&) {}
template <class A>
void fields(A& a, Value& r) {
  a.text(r.bytes);
}
template <class A>
void fields(A& a, Values& r) {
  texts(a, r.bytes);
}
template <class A>
void fields(A& a, Number& r) {
  a.number(r.value);
}
template <class A>
void fields(A& a, Compared& r) {
  a.flag(r.stored), optional_text(a, r.current);
}
template <class A>
void fields(A& a, Keys& r) {
  texts(a, r.keys), a.flag(r.more);
}
template <class A>
void fields(A& a, Changed& r) {
  auto what = static_cast<std::uint32_t>(r.what);
  a.number(what), a.text(r.key), a.text(r.value);
  r.what = static_cast<Changed::What>(what);
}
template <class A>
void fields(A& a, Popped& r) {
  a.number(r.length), optional_text(a, r.item);
}
template <class A>
void fields(A&, Error&) {}  // Encoded by its code.

// Reads the variant's alternative of that number; false if there is none.
template <class Variant, std::size_t... Index>
bool read_kind(std::size_t kind, Variant& out, Reader& reader, std::index_sequence<Index...>) {
  return ((kind == Index && (fields(reader, out.template emplace<Index>()), true)) || ...);
}

template <class Variant>
bool read_kind(std::size_t kind, Variant& out, Reader reader) {
  return read_kind(kind, out, reader, std::make_index_sequence<std::variant_size_v<Variant>>());
}

bool is_code(std::uint8_t status) {
  return status > 0 && status <= static_cast<std::uint8_t>(Code::kUnauthenticated);
}

}  // namespace

std::uint8_t request_kind(const Request& request) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(LeafOp::kFirstRequest) +
                                   request.index());
}

void put_request(std::string& out, Request& request, std::uint64_t now_ns) {
  Writer writer{out, now_ns};
  std::visit([&](auto& kind) { fields(writer, kind); }, request);
}

Result<Request> take_request(std::uint8_t kind, PayloadReader& in, std::uint64_t now_ns) {
  constexpr auto kFirst = static_cast<std::uint8_t>(LeafOp::kFirstRequest);
  Request request;
  const bool known = kind >= kFirst && read_kind(std::size_t{kind} - kFirst, request,
                                                 Reader{in, kMaxKeysPerRequest + 1, now_ns});
  if (known && in.done()) return request;
  return Error{Code::kDataLoss, "a leaf's frame of kind " + std::to_string(kind) + " is damaged"};
}

void put_reply(std::string& out, const Reply& reply) {
  if (const auto* error = std::get_if<Error>(&reply.body)) return put_text(out, error->message);
  put_u8(out, static_cast<std::uint8_t>(reply.body.index()));
  Writer writer{out};
  // Writing leaves it as it is.
  std::visit([&](auto& kind) { fields(writer, kind); },
             const_cast<decltype(Reply::body)&>(reply.body));
}

Result<decltype(Reply::body)> take_reply(std::uint8_t status, PayloadReader& in) {
  if (status != 0) {
    std::string text(in.text());
    if (!in.done() || !is_code(status)) return Error{Code::kDataLoss, "a damaged refusal"};
    return decltype(Reply::body)(Error{static_cast<Code>(status), std::move(text)});
  }
  decltype(Reply::body) body;
  const std::size_t kind = in.u8();
  if (!read_kind(kind, body, Reader{in, kMaxKeys}) || !in.ok() ||
      std::holds_alternative<Error>(body))
    return Error{Code::kDataLoss, "a damaged reply"};
  return body;
}

}  // namespace ivy::store

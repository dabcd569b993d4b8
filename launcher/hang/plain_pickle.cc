#include "launcher/hang/plain_pickle.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace ivy {
namespace {

using Kind = PlainValue::Kind;

using Stacked = std::shared_ptr<PlainValue>;  // A null pointer stands for a mark.

std::int64_t little_endian(std::string_view bytes) {
  // Two's complement of any length, cut to 64 bits.
  if (bytes.empty()) return 0;
  const bool is_negative = (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  std::uint64_t value = is_negative ? ~std::uint64_t{0} : 0;
  const unsigned char filler = is_negative ? 0xff : 0;
  for (std::size_t i = bytes.size(); i > 8; --i)
    if (static_cast<unsigned char>(bytes[i - 1]) != filler)
      return is_negative ? std::numeric_limits<std::int64_t>::min()
                         : std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = std::min<std::size_t>(bytes.size(), 8); i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return static_cast<std::int64_t>(value);
}

std::uint64_t unsigned_number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

class Reader {
 public:
  Reader(std::string_view bytes, const PickleLimits& limits) : bytes_(bytes), limits_(limits) {}

  Result<PlainPointer> read() {
    while (!is_stopped_ && error_.empty()) step();
    if (!error_.empty())
      return Error{Code::kDataLoss, "byte " + std::to_string(op_at_) + ": " + error_};
    return PlainPointer(stack_.back());
  }

 private:
  void fail(const std::string& why) {
    if (error_.empty()) error_ = why;
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail("it ends in the middle");
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::string_view take_counted(int count_bytes) {
    return take(unsigned_number(take(static_cast<std::uint64_t>(count_bytes))));
  }

  void push(Stacked value) {
    if (++references_ > limits_.references) return fail("it holds too many references");
    stack_.push_back(std::move(value));
  }
  Stacked make(Kind kind) {
    auto value = std::make_shared<PlainValue>();
    value->kind = kind;
    value->depth = is_container(kind) ? 1 : 0;
    if (++values_ > limits_.values) fail("it holds too many values");
    push(value);
    return value;
  }
  static bool is_container(Kind kind) { return kind == Kind::kList || kind == Kind::kDictionary; }
  void push_empty(Kind kind) { make(kind); }
  void push_integer(Kind kind, std::int64_t integer) { make(kind)->integer = integer; }
  void push_text(std::string_view text) { make(Kind::kText)->text = text; }

  std::optional<Stacked> pop() {
    if (stack_.empty() || !stack_.back()) {
      fail("a value is missing");
      return std::nullopt;
    }
    Stacked top = std::move(stack_.back());
    stack_.pop_back();
    top->is_closed = true;
    return top;
  }

  // Pops the mark and returns what lay above it.
  std::vector<Stacked> pop_to_mark() {
    const auto mark =
        std::find_if(stack_.rbegin(), stack_.rend(), [](const Stacked& value) { return !value; });
    if (mark == stack_.rend()) {
      fail("a mark is missing");
      return {};
    }
    const auto first = mark.base();
    std::vector<Stacked> items(std::make_move_iterator(first),
                               std::make_move_iterator(stack_.end()));
    stack_.erase(first - 1, stack_.end());
    for (const Stacked& item : items) item->is_closed = true;
    return items;
  }
  std::vector<Stacked> pop_some(std::size_t count) {
    std::vector<Stacked> items(count);
    for (std::size_t i = count; i > 0; --i) {
      std::optional<Stacked> item = pop();
      if (!item) return {};
      items[i - 1] = *std::move(item);
    }
    return items;
  }

  // What is added was closed when it left the stack, and can grow no more: so depths are right, and
  // nothing can come to contain itself.
  void append(std::vector<Stacked> items, Kind kind) {
    if (!error_.empty()) return;
    if (stack_.empty() || !stack_.back() || stack_.back()->kind != kind)
      return fail("there is nothing to append to");
    if (kind == Kind::kDictionary && items.size() % 2 != 0) return fail("a key without a value");
    PlainValue& container = *stack_.back();
    if (container.is_closed) return fail("a finished list is added to");
    for (Stacked& item : items) {
      container.depth = std::max(container.depth, item->depth + 1);
      container.items.push_back(std::move(item));
    }
    if (container.depth > limits_.depth) fail("its lists are nested too deeply");
  }
  void make_container(Kind kind, std::vector<Stacked> items) {
    if (!error_.empty()) return;
    make(kind);
    if (error_.empty()) append(std::move(items), kind);
  }

  void remember(std::uint64_t index) {
    if (stack_.empty() || !stack_.back()) return fail("there is nothing to remember");
    if (memo_.size() >= limits_.values) return fail("it remembers too much");
    memo_[index] = stack_.back();
  }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) return fail("it recalls what it has not remembered");
    const bool is_open = is_container(found->second->kind) && !found->second->is_closed;
    if (is_open) return fail("a list is referred to before it is finished");
    push(found->second);
  }

  void step() {
    op_at_ = at_;
    const std::string_view taken = take(1);
    if (taken.empty()) return;
    const char op = taken.front();
    if (!read_text(op)) read_number(op);
  }

  void refuse(char op) {
    char hexadecimal[8];
    std::snprintf(hexadecimal, sizeof hexadecimal, "0x%02x", static_cast<unsigned char>(op));
    fail(std::string("opcode ") + hexadecimal + " is not plain data");
  }

  void read_number(char op) {
    switch (op) {
      case 'N':
        return push_empty(Kind::kNone);
      case '\x88':
      case '\x89':
        return push_integer(Kind::kBool, op == '\x88' ? 1 : 0);
      case 'J':  // BININT: signed
        return push_integer(Kind::kInteger, little_endian(take(4)));
      case 'K':
      case 'M':
        return push_integer(Kind::kInteger,
                            static_cast<std::int64_t>(unsigned_number(take(op == 'K' ? 1 : 2))));
      case '\x8a':  // LONG1, LONG4
      case '\x8b':
        return push_integer(Kind::kInteger, little_endian(take_counted(op == '\x8a' ? 1 : 4)));
      case 'G': {  // BINFLOAT is big-endian, unlike the integers.
        std::string bytes(take(8));
        std::reverse(bytes.begin(), bytes.end());
        make(Kind::kReal)->real = std::bit_cast<double>(unsigned_number(bytes));
        return;
      }
      default:
        return read_container(op);
    }
  }

  // A text or bytes, behind a length of 1, 4 or 8 bytes.
  bool read_text(char op) {
    // SHORT_BINBYTES, SHORT_BINSTRING and SHORT_BINUNICODE; BINUNICODE, BINBYTES and BINSTRING;
    // BINUNICODE8 and BINBYTES8.
    constexpr std::pair<std::string_view, int> kTexts[] = {
        {"CU\x8c", 1}, {"XBT", 4}, {"\x8d\x8e", 8}};
    for (const auto& [ops, bytes] : kTexts) {
      if (ops.find(op) == ops.npos) continue;
      push_text(take_counted(bytes));
      return true;
    }
    return false;
  }

  void read_container(char op) {
    switch (op) {
      case ']':
      case ')':
        return push_empty(Kind::kList);
      case '}':
        return push_empty(Kind::kDictionary);
      case 'l':
      case 't':
        return make_container(Kind::kList, pop_to_mark());
      case 'd':
        return make_container(Kind::kDictionary, pop_to_mark());
      case '\x85':
      case '\x86':
      case '\x87':
        return make_container(Kind::kList, pop_some(static_cast<unsigned char>(op) - 0x84u));
      case 'a':
        return append(pop_some(1), Kind::kList);
      case 'e':
        return append(pop_to_mark(), Kind::kList);
      case 's':
        return append(pop_some(2), Kind::kDictionary);
      case 'u':
        return append(pop_to_mark(), Kind::kDictionary);
      default:
        return read_order(op);
    }
  }

  void read_order(char op) {
    switch (op) {
      case '\x80':  // PROTO
      case '\x95':  // FRAME
        take(op == '\x80' ? 1 : 8);
        return;
      case '(':
        return push(nullptr);
      case '0':
        pop();
        return;
      case '1':
        pop_to_mark();
        return;
      case '2':
        if (const std::optional<Stacked> top = pop())
          for (int copy = 0; copy < 2; ++copy) push(*top);
        return;
      case 'q':
      case 'r':
        return remember(unsigned_number(take(op == 'q' ? 1 : 4)));
      case '\x94':  // MEMOIZE
        return remember(memo_.size());
      case 'h':
      case 'j':
        return recall(unsigned_number(take(op == 'h' ? 1 : 4)));
      case '.':
        is_stopped_ = true;
        if (stack_.size() != 1 || !stack_.back()) fail("it does not end with one value");
        return;
      default:
        return refuse(op);
    }
  }

  const std::string_view bytes_;
  const PickleLimits limits_;
  std::size_t at_ = 0;
  std::size_t op_at_ = 0;
  std::size_t values_ = 0;
  std::size_t references_ = 0;
  std::vector<Stacked> stack_;
  std::unordered_map<std::uint64_t, Stacked> memo_;
  bool is_stopped_ = false;
  std::string error_;
};

}  // namespace

const PlainValue* PlainValue::find(std::string_view key) const {
  if (kind != Kind::kDictionary) return nullptr;
  for (std::size_t i = items.size(); i >= 2; i -= 2)
    if (items[i - 2]->kind == Kind::kText && items[i - 2]->text == key) return items[i - 1].get();
  return nullptr;
}

std::string PlainValue::shown(std::size_t limit) const {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return integer != 0 ? "True" : "False";
    case Kind::kInteger:
      return std::to_string(integer);
    case Kind::kReal:
      return std::to_string(real);
    case Kind::kText:
      return text.substr(0, limit);
    case Kind::kList:
    case Kind::kDictionary:
      break;
  }
  std::string all = "[";
  for (const PlainPointer& item : items) {
    if (all.size() > 1) all += ", ";
    if (all.size() >= limit) return all + "...]";
    all += item->shown(limit - all.size());
  }
  return all + "]";
}

Result<PlainPointer> read_plain_pickle(std::string_view bytes, const PickleLimits& limits) {
  return Reader(bytes, limits).read();
}

}  // namespace ivy

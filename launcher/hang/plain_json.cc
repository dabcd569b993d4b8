#include "launcher/hang/plain_json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ivy {
namespace {

using boost::json::error_code;
using boost::json::string_view;
using Kind = PlainValue::Kind;

// Builds the value that the parser reads, and stops it at the first limit.
class PlainBuilder {
 public:
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;

  explicit PlainBuilder(std::size_t limit) : room_(limit) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& error) { return open(Kind::kDictionary, error); }
  bool on_object_end(std::size_t, error_code&) { return close(); }
  bool on_array_begin(error_code& error) { return open(Kind::kList, error); }
  bool on_array_end(std::size_t, error_code&) { return close(); }
  bool on_key_part(string_view text, std::size_t, error_code&) { return add_text(text); }
  bool on_key(string_view text, std::size_t, error_code& error) { return end_text(text, error); }
  bool on_string_part(string_view text, std::size_t, error_code&) { return add_text(text); }
  bool on_string(string_view text, std::size_t, error_code& error) { return end_text(text, error); }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t number, string_view, error_code& error) {
    return add_integer(Kind::kInteger, number, error);
  }
  bool on_uint64(std::uint64_t number, string_view, error_code& error) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    return add_integer(Kind::kInteger, static_cast<std::int64_t>(std::min(number, kMost)), error);
  }
  bool on_double(double number, string_view, error_code& error) {
    const auto value = std::make_shared<PlainValue>();
    value->kind = Kind::kReal;
    value->real = number;
    return add(value, error);
  }
  bool on_bool(bool is_true, error_code& error) {
    return add_integer(Kind::kBool, is_true ? 1 : 0, error);
  }
  bool on_null(error_code& error) { return add(std::make_shared<PlainValue>(), error); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  const PlainPointer& root() const { return root_; }

 private:
  bool add(std::shared_ptr<PlainValue> value, error_code& error) {
    if (room_ == 0) {
      error = boost::json::error::array_too_large;
      return false;
    }
    --room_;
    if (open_.empty()) {
      root_ = value;
    } else {
      open_.back()->items.push_back(value);
    }
    return true;
  }
  bool add_integer(Kind kind, std::int64_t number, error_code& error) {
    auto value = std::make_shared<PlainValue>();
    value->kind = kind;
    value->integer = number;
    return add(std::move(value), error);
  }
  bool open(Kind kind, error_code& error) {
    const auto value = std::make_shared<PlainValue>();
    value->kind = kind;
    const bool is_added = add(value, error);
    if (is_added) open_.push_back(value);
    return is_added;
  }
  bool close() {
    open_.back()->is_closed = true;
    open_.pop_back();
    return true;
  }
  bool add_text(string_view text) {
    text_.append(text.data(), text.size());
    return true;
  }
  bool end_text(string_view text, error_code& error) {
    add_text(text);
    const auto value = std::make_shared<PlainValue>();
    value->kind = Kind::kText;
    value->text = std::exchange(text_, {});
    return add(value, error);
  }

  std::size_t room_;
  std::vector<std::shared_ptr<PlainValue>> open_;
  std::string text_;
  PlainPointer root_;
};

}  // namespace

Result<PlainPointer> read_plain_json(std::string_view bytes, const PickleLimits& limits) {
  boost::json::parse_options options;
  options.max_depth = limits.depth;
  options.allow_invalid_utf8 = true;
  boost::json::basic_parser<PlainBuilder> parser(options,
                                                 std::min(limits.values, limits.references));
  error_code error;
  const std::size_t read = parser.write_some(false, bytes.data(), bytes.size(), error);
  std::string why = error ? error.message() : "";
  if (error == boost::json::error::array_too_large) why = "it holds too many values";
  if (!error && read < bytes.size()) why = "something follows its end";
  if (why.empty() && parser.handler().root() != nullptr) return parser.handler().root();
  return Error{Code::kDataLoss,
               "byte " + std::to_string(read) + ": " + (why.empty() ? "it is empty" : why)};
}

}  // namespace ivy

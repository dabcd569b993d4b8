#include "comm/collectives/tuning_text.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

using Operation = comm_status::Operation;
using enum Aspect;

constexpr std::uint32_t kAnyMost = std::numeric_limits<std::uint32_t>::max();
constexpr std::string_view kBuiltInWord = "built-in";

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kReduce,    Operation::kReduceScatter,
    Operation::kBroadcast, Operation::kAllGather, Operation::kGather,
    Operation::kScatter,   Operation::kAllToAll,  Operation::kScan};

struct AspectWord {
  Aspect aspect;
  std::string_view ending;  // What stands behind the operation's name in a row.
};
constexpr AspectWord kAspectWords[] = {
    {kAlgorithm, ""}, {kStores, ".stores"}, {kRegistered, ".registered"}, {kPiece, ".piece"}};

struct WayWord {
  Aspect aspect;
  std::uint64_t value;
  std::string_view word;
};
constexpr WayWord kWayWords[] = {
    {kAlgorithm, static_cast<std::uint64_t>(Algorithm::kEager), "eager"},
    {kAlgorithm, static_cast<std::uint64_t>(Algorithm::kSlots), "slots"},
    {kAlgorithm, static_cast<std::uint64_t>(Algorithm::kKernel), "kernel"},
    {kAlgorithm, static_cast<std::uint64_t>(Algorithm::kWhole), "whole"},
    {kAlgorithm, static_cast<std::uint64_t>(Algorithm::kSliced), "sliced"},
    {kStores, static_cast<std::uint64_t>(Stores::kCached), "cached"},
    {kStores, static_cast<std::uint64_t>(Stores::kStreaming), "streaming"},
    {kRegistered, 0, "copied"},
    {kRegistered, 1, "mapped"}};

std::string subject_of(Operation operation, Aspect aspect) {
  std::string subject(comm_status::name_of(operation));
  for (const AspectWord& word : kAspectWords) {
    if (word.aspect == aspect) subject += word.ending;
  }
  return subject;
}

std::string_view over_word(Over over) { return over == Over::kShm ? "shm" : "tcp"; }

std::string size_text(std::uint64_t bytes) {
  constexpr std::pair<std::uint64_t, char> kUnits[] = {
      {std::uint64_t{1} << 30, 'G'}, {std::uint64_t{1} << 20, 'M'}, {std::uint64_t{1} << 10, 'K'}};
  for (const auto& [unit, letter] : kUnits) {
    if (bytes > 0 && bytes % unit == 0) return std::to_string(bytes / unit) + letter;
  }
  return std::to_string(bytes);
}

std::string members_text(const TuningRow& row) {
  if (row.members_least == 0 && row.members_most == kAnyMost) return "any";
  const std::string least = std::to_string(row.members_least);
  if (row.members_most == row.members_least) return least;
  return least + "-" + (row.members_most == kAnyMost ? "" : std::to_string(row.members_most));
}

std::string way_text(const TuningRow& row) {
  if (row.is_built_in) return std::string(kBuiltInWord);
  if (row.aspect == kPiece) return size_text(row.value);
  for (const WayWord& way : kWayWords) {
    if (way.aspect == row.aspect && way.value == row.value) return std::string(way.word);
  }
  return "?";
}

// As a sentence lists them: "a, b or c".
std::string list_text(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

auto sort_key(const TuningRow& row) {
  return std::tuple(row.operation, row.aspect, row.over, row.members_least, row.members_most,
                    row.from);
}

std::string quoted(std::string_view text) {
  std::string shown = "\"";
  for (const char c : text.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > 40 ? "...\"" : "\"");
}

std::optional<std::uint64_t> size_from(std::string_view text) {
  std::uint64_t unit = 1;
  if (text.ends_with('K')) unit = std::uint64_t{1} << 10;
  if (text.ends_with('M')) unit = std::uint64_t{1} << 20;
  if (text.ends_with('G')) unit = std::uint64_t{1} << 30;
  if (unit > 1) text.remove_suffix(1);
  const std::optional<std::uint64_t> count = to_number<std::uint64_t>(text);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  if (!count || *count > kMost / unit) return std::nullopt;
  return *count * unit;
}

class LineReader {
 public:
  LineReader(const std::string& name, std::size_t line, std::string_view text)
      : name_(name), line_(line), text_(text) {}

  // Nothing: an empty line, or only a comment.
  Result<std::optional<TuningRow>> read() {
    const std::vector<std::string_view> words =
        words_of(text_.substr(0, text_.find_first_of("#\r")));
    if (words.empty()) return std::optional<TuningRow>();
    constexpr std::size_t kColumns = 5;
    if (words.size() != kColumns) {
      const std::string_view at =
          words.size() < kColumns ? text_.substr(text_.size()) : words[kColumns];
      return wrong(at, std::to_string(words.size()) + " words where 5 belong",
                   "OPERATION MEMBERS shm|tcp FROM_BYTES WAY, as in: all_gather 2 shm 64K slots");
    }
    IVY_CHECK(read_subject(words[0]));
    IVY_CHECK(read_members(words[1]));
    IVY_CHECK(read_over(words[2]));
    const std::optional<std::uint64_t> from = size_from(words[3]);
    if (!from) {
      return wrong(words[3], quoted(words[3]) + " is no number of bytes",
                   "write it as 0, 65536, 64K, 8M or 1G");
    }
    row_.from = *from;
    IVY_CHECK(read_way(words[4]));
    return std::optional(row_);
  }

  // `at` is a part of the line: what is wrong stands there.
  Error wrong(std::string_view at, const std::string& what, const std::string& fix) const {
    const auto column = at.data() - text_.data() + 1;
    return Error{Code::kInvalidArgument,
                 name_ + ":" + std::to_string(line_) + ":" + std::to_string(column) + ": " + what,
                 fix};
  }
  // The same of the whole line.
  Error wrong(const std::string& what, const std::string& fix) const {
    return wrong(text_, what, fix);
  }

 private:
  Result<void> read_subject(std::string_view word) {
    const std::size_t dot = std::min(word.find('.'), word.size());
    const std::string_view operation = word.substr(0, dot);
    const std::string_view ending = word.substr(dot);
    std::vector<std::string> names;
    for (const Operation known : kOperations) {
      names.emplace_back(comm_status::name_of(known));
      if (operation == names.back()) row_.operation = known;
    }
    if (row_.operation == Operation::kNone) {
      return wrong(operation, quoted(operation) + " is no operation that has a choice",
                   "it may be " + list_text(names));
    }
    for (const AspectWord& aspect : kAspectWords) {
      row_.aspect = aspect.aspect;
      if (aspect.ending == ending) return {};
    }
    return wrong(ending, quoted(ending) + " is nothing that can be chosen",
                 "it may be .stores, .registered, .piece or nothing");
  }

  Result<void> read_members(std::string_view word) {
    if (word == "any") return {};
    const std::size_t dash = std::min(word.find('-'), word.size());
    const std::string_view most = dash < word.size() ? word.substr(dash + 1) : "";
    const std::optional<std::uint64_t> least = to_number<std::uint64_t>(word.substr(0, dash));
    std::optional<std::uint64_t> last =
        dash == word.size() ? least : to_number<std::uint64_t>(most);
    if (dash < word.size() && most.empty()) last = kAnyMost;
    if (!least || !last || *least == 0 || *least > *last || *last > kAnyMost) {
      return wrong(word, quoted(word) + " is no number of members",
                   "write it as any, 4, 2-8 or 9-");
    }
    row_.members_least = static_cast<std::uint32_t>(*least);
    row_.members_most = static_cast<std::uint32_t>(*last);
    return {};
  }

  Result<void> read_over(std::string_view word) {
    const bool is_tcp = word == "tcp";
    if (!is_tcp && word != "shm") {
      return wrong(word, quoted(word) + " is no way between ranks",
                   "it may be shm (ranks of one host) or tcp (between hosts)");
    }
    row_.over = is_tcp ? Over::kTcp : Over::kShm;
    if (has_choice(row_.operation, row_.aspect, row_.over)) return {};
    return wrong(
        word, subject_of(row_.operation, row_.aspect) + " is no choice over " + std::string(word),
        "docs/tuning.md lists what can be chosen; leave the line out");
  }

  Result<void> read_way(std::string_view word) {
    row_.is_built_in = word == kBuiltInWord;
    if (row_.is_built_in) return {};
    const std::optional<std::uint64_t> bytes = size_from(word);
    row_.value = bytes.value_or(0);
    if (row_.aspect == kPiece && bytes && may_be(row_)) return {};
    std::vector<std::string> names;
    for (const WayWord& way : kWayWords) {
      if (way.aspect != row_.aspect) continue;
      row_.value = way.value;
      if (!may_be(row_)) continue;
      if (way.word == word) return {};
      names.emplace_back(way.word);
    }
    if (row_.aspect == kPiece)
      names.push_back(size_text(kPieceLeast) + " to " + size_text(kPieceMost));
    names.emplace_back(kBuiltInWord);
    return wrong(word,
                 quoted(word) + " is no way of " + subject_of(row_.operation, row_.aspect) +
                     " over " + std::string(over_word(row_.over)),
                 "it may be " + list_text(names));
  }

  const std::string& name_;
  const std::size_t line_;
  const std::string_view text_;
  TuningRow row_;
};

// A row and where it stands.
struct PlacedRow {
  TuningRow row;
  std::size_t line;
};

// Which of two rows counts must not depend on their order.
Result<void> check_beside(const PlacedRow& placed, const std::vector<PlacedRow>& before,
                          const LineReader& reader) {
  const TuningRow& row = placed.row;
  for (const PlacedRow& earlier : before) {
    const TuningRow& other = earlier.row;
    const bool is_same_choice =
        other.operation == row.operation && other.aspect == row.aspect && other.over == row.over;
    const bool shares =
        row.members_least <= other.members_most && other.members_least <= row.members_most;
    if (!is_same_choice || !shares) continue;
    const std::string line = "line " + std::to_string(earlier.line);
    if (row.members_least != other.members_least || row.members_most != other.members_most) {
      return reader.wrong("members " + members_text(row) + " and those of " + line + ", " +
                              members_text(other) + ", have some in common",
                          "give both lines the same members, or members that they do not share");
    }
    if (row.from == other.from) {
      return reader.wrong("says the same as " + line + ", or something else of the same sizes",
                          "leave one of the two out");
    }
  }
  return {};
}

}  // namespace

Result<TuningTable> parse_tuning(std::string_view text, const std::string& name) {
  if (text.size() > kTuningTextMax) {
    return Error{Code::kInvalidArgument,
                 name + " has more than " + size_text(kTuningTextMax) + " bytes",
                 "is this a tuning table? python3 -m ivycomm.tune --out FILE writes one"};
  }
  std::vector<PlacedRow> rows;
  std::size_t line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    LineReader reader(name, ++line, text.substr(begin, end - begin));
    begin = end + 1;
    const std::optional<TuningRow> row = IVY_TRY(reader.read());
    if (!row) continue;
    if (rows.size() == kTuningRowsMax) {
      return reader.wrong("more than " + std::to_string(kTuningRowsMax) + " rows",
                          "write fewer thresholds");
    }
    IVY_CHECK(check_beside({*row, line}, rows, reader));
    rows.push_back({*row, line});
  }
  TuningTable table;
  for (const PlacedRow& placed : rows) table.push_back(placed.row);
  std::sort(table.begin(), table.end(), [](const TuningRow& left, const TuningRow& right) {
    return sort_key(left) < sort_key(right);
  });
  return table;
}

std::string tuning_text(const TuningTable& table) {
  std::string text;
  for (const TuningRow& row : table) {
    text += subject_of(row.operation, row.aspect) + " " + members_text(row) + " " +
            std::string(over_word(row.over)) + " " + size_text(row.from) + " " + way_text(row) +
            "\n";
  }
  return text;
}

std::string tuning_hash(const TuningTable& table) {
  return hexadecimal(name_hash(tuning_text(table)));
}

}  // namespace ivy::comm

// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/cause_list.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <utility>

#include "launcher/options/option_values.h"

namespace ivy {
namespace {

constexpr int kMaxCode = 255;
constexpr int kMaxXid = 9'999;
// Limit of the causes of a list. A person writes a handful.
constexpr std::size_t kMaxCauses = 64;

struct Word {
  std::string_view text;
  CauseKind kind;
};
constexpr std::array<Word, 7> kWords = {{{"exit", CauseKind::kAnyExit},
                                         {"signal", CauseKind::kAnySignal},
                                         {"oom", CauseKind::kOutOfMemory},
                                         {"xid", CauseKind::kXid},
                                         {"host-lost", CauseKind::kHostLost},
                                         {"store-lost", CauseKind::kStoreLost},
                                         {"stall", CauseKind::kStall}}};

// Removes the next CAUSE and the comma after it from the text. A pattern may contain commas and
// slashes: it ends with a slash before a comma or the end of the text.
std::string_view take_item(std::string_view& text) {
  std::size_t end = text.find(',');
  if (text.starts_with('/')) {
    const std::size_t close = text.find("/,", 1);
    end = close == std::string_view::npos ? close : close + 1;
  }
  const std::string_view item = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return item;
}

Result<Cause> parse_code(Cause cause, std::string_view item) {
  const std::size_t dash = item.find('-');
  cause.low = IVY_TRY(parse_number(item.substr(0, dash), 1, kMaxCode));
  cause.high = dash == std::string_view::npos
                   ? cause.low
                   : IVY_TRY(parse_number(item.substr(dash + 1), cause.low, kMaxCode));
  return cause;
}

Result<Cause> parse_cause(std::string_view item) {
  Cause cause;
  cause.text = item;
  if (item.size() > 2 && item.front() == '/' && item.back() == '/') {
    cause.kind = CauseKind::kOutput;
    cause.output = IVY_TRY(Pattern::compile(std::string(item.substr(1, item.size() - 2))));
    return cause;
  }
  for (const Word& word : kWords) {
    if (item != word.text) continue;
    cause.kind = word.kind;
    return cause;
  }
  if (item.starts_with("xid:")) {
    cause.kind = CauseKind::kXid;
    cause.low = IVY_TRY(parse_number(item.substr(4), 1, kMaxXid));
    return cause;
  }
  if (!item.empty() && std::isdigit(static_cast<unsigned char>(item.front())) != 0)
    return parse_code(std::move(cause), item);
  if (const int signal = signal_number(std::string(item)); signal > 0) {
    cause.kind = CauseKind::kSignal;
    cause.low = signal;
    return cause;
  }
  return usage_error(
      "\"" + std::string(item) + "\" is not a cause",
      "use exit codes (7 or 1-127), exit, signal, a signal such as SIGSEGV, oom, xid, xid:79, "
      "host-lost, store-lost, stall, or /REGEX/ for the rank's last standard error");
}

bool describes(const Cause& cause, const AttemptCause& attempt) {
  const int code = attempt.status ? attempt.status->shell_code() : 0;
  switch (cause.kind) {
    case CauseKind::kCode:
      return cause.low <= code && code <= cause.high;
    case CauseKind::kAnyExit:
      return attempt.status && attempt.status->signal == 0 && code != 0;
    case CauseKind::kAnySignal:
      return attempt.status && attempt.status->signal != 0;
    case CauseKind::kSignal:
      return code == 128 + cause.low;
    case CauseKind::kOutOfMemory:
      return attempt.out_of_memory;
    case CauseKind::kXid:
      return cause.low == 0 ? !attempt.xids.empty()
                            : std::find(attempt.xids.begin(), attempt.xids.end(), cause.low) !=
                                  attempt.xids.end();
    case CauseKind::kHostLost:
      return attempt.host_lost;
    case CauseKind::kStoreLost:
      return attempt.store_lost;
    case CauseKind::kStall:
      return attempt.has_stalled;
    case CauseKind::kOutput:
      return cause.output->matches(attempt.stderr_tail);
  }
  return false;
}

}  // namespace

Result<std::vector<Cause>> parse_cause_list(std::string_view text) {
  std::vector<Cause> list;
  do {
    if (list.size() == kMaxCauses)
      return usage_error("more than " + std::to_string(kMaxCauses) + " causes");
    list.push_back(IVY_TRY(parse_cause(take_item(text))));
  } while (!text.empty());
  return list;
}

Result<std::vector<Cause>> parse_condemning_causes(std::string_view text) {
  std::vector<Cause> list = IVY_TRY(parse_cause_list(text));
  for (const Cause& cause : list) {
    if (cause.kind != CauseKind::kHostLost && cause.kind != CauseKind::kStoreLost &&
        cause.kind != CauseKind::kStall)
      continue;
    return usage_error(cause.text + " is not the failure of a rank, so no host can be left out",
                       "use exit codes, signals, oom, xid or /REGEX/");
  }
  return list;
}

std::string cause_list_text(const std::vector<Cause>& list) {
  std::string text;
  for (const Cause& cause : list) text += (text.empty() ? "" : ",") + cause.text;
  return text;
}

const Cause* find_cause(const std::vector<Cause>& list, const AttemptCause& attempt) {
  const auto found = std::find_if(list.begin(), list.end(), [&attempt](const Cause& cause) {
    return describes(cause, attempt);
  });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace ivy

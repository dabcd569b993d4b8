// SPDX-License-Identifier: Apache-2.0
#include "launcher/drill/fault_log.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

using Kind = NamedFailure::Kind;

// Failures that no fault explains are listed up to this number; more of them repeat one another.
constexpr std::size_t kMaxOthers = 16;

template <class T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// Finds the rank's number in a sentence such as "rank 3 is stopped".
bool mentions_rank(std::string_view text, int rank) {
  const std::string number = std::to_string(rank);
  for (std::size_t at = text.find(number); at != std::string_view::npos;
       at = text.find(number, at + 1)) {
    const auto is_digit = [&](std::size_t i) {
      return i < text.size() && text[i] >= '0' && text[i] <= '9';
    };
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + number.size())) return true;
  }
  return false;
}

// Returns whether a report about the ranks' stacks (hang/stack_lines.h) has this text in the
// section about the rank, which is alone in its state.
bool shows_rank_as(std::string_view report, int rank, std::string_view state) {
  bool is_about_rank = false;
  while (!report.empty()) {
    const std::string_view line = take_part(report, '\n');
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) continue;
    const std::string_view text = line.substr(begin);
    if (text.starts_with("rank "))
      is_about_rank = mentions_rank(text.substr(0, text.find_first_of("(:")), rank);
    else if (text.starts_with("ranks "))
      is_about_rank = false;
    if (is_about_rank && line.find(state) != std::string_view::npos) return true;
  }
  return false;
}

// Returns whether this failure is what the fault causes.
bool is_effect(const InjectedFault& fault, const NamedFailure& failure) {
  const bool is_its_rank = failure.kind == Kind::kRank && has(fault.ranks, failure.rank);
  const bool is_its_host = has(fault.hosts, failure.host);
  const auto is_its_stall = [&](std::string_view state) {
    return failure.kind == Kind::kStall &&
           std::any_of(fault.ranks.begin(), fault.ranks.end(),
                       [&](int rank) { return shows_rank_as(failure.text, rank, state); });
  };
  switch (fault.fault) {
    case Fault::kKill:
      return is_its_rank && failure.status.shell_code() == 128 + SIGKILL;
    case Fault::kSegfault:
      return is_its_rank && failure.status.shell_code() == 128 + SIGSEGV;
    case Fault::kStop:
      return is_its_stall("stopped by a signal");
    case Fault::kHoldGil:
      return is_its_stall("sitecustomize");
    case Fault::kCut:
      // A supervisor whose lease expires during the cut leaves the job by itself.
      return is_its_host && (failure.kind == Kind::kHost || failure.kind == Kind::kSilence ||
                             failure.kind == Kind::kSupervisor);
    case Fault::kSlow:
      return is_its_host && failure.kind == Kind::kSilence;
    case Fault::kFullDisk:
      return is_its_host && failure.kind == Kind::kRank &&
             failure.text.find("No space left") != std::string::npos;
    case Fault::kKillSupervisor:
      return is_its_host && failure.kind == Kind::kSupervisor;
    case Fault::kNotice:
    case Fault::kDrain:
      return is_its_host && failure.kind == Kind::kNotice;
  }
  return false;
}

std::string named_text(const NamedFailure& failure) {
  switch (failure.kind) {
    case Kind::kRank:
      return "rank " + std::to_string(failure.rank) + " on " + failure.host + ": " +
             describe(failure.status);
    case Kind::kHost:
      return "host " + failure.host + " was lost";
    case Kind::kSupervisor:
      return "the supervisor on " + failure.host + " was lost";
    case Kind::kSilence:
      return failure.host + " does not respond";
    case Kind::kStall:
      return "a stall";
    case Kind::kNotice:
      return "a notice from " + failure.host;
  }
  return "";
}

std::string seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  if (to_ns == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(to_ns - from_ns) / 1e9);
  return text;
}

std::string number_text(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

bool InjectedFault::must_be_named() const {
  return fault == Fault::kKill || fault == Fault::kSegfault || fault == Fault::kKillSupervisor ||
         fault == Fault::kNotice || fault == Fault::kDrain || has_ended_attempt;
}

InjectedFault& FaultLog::add(Fault fault, std::int64_t now_ns) {
  InjectedFault& added = faults_.emplace_back();
  added.number = faults_.size();
  added.fault = fault;
  added.at_ns = added.lasts_until_ns = now_ns;
  return added;
}

void FaultLog::named(const NamedFailure& failure, std::int64_t now_ns) {
  const auto found = std::find_if(faults_.rbegin(), faults_.rend(), [&](const InjectedFault& one) {
    return one.failure.empty() && one.verdict == InjectedFault::Verdict::kOpen &&
           one.recovered_ns == 0 && is_effect(one, failure);
  });
  if (found == faults_.rend()) return;
  found->verdict = InjectedFault::Verdict::kCorrect;
  found->named_ns = now_ns;
  found->named_as = named_text(failure);
}

void FaultLog::attempt_failed(const std::optional<NamedFailure>& failure, std::uint32_t generation,
                              std::int64_t now_ns) {
  if (faults_.empty() || !failure || judged_generation_ == generation) return;
  judged_generation_ = generation;
  InjectedFault* newest = nullptr;
  InjectedFault* cause = nullptr;
  for (InjectedFault& fault : faults_) {
    if (fault.generation != generation || fault.recovered_ns != 0 || !fault.failure.empty())
      continue;
    fault.has_ended_attempt = true;
    newest = &fault;
    // The report of a stall, which precedes its verdict, has named the rank.
    const bool is_reported_stall = failure->kind == Kind::kStall &&
                                   fault.verdict == InjectedFault::Verdict::kCorrect &&
                                   (fault.fault == Fault::kStop || fault.fault == Fault::kHoldGil);
    if (is_reported_stall || is_effect(fault, *failure)) cause = &fault;
  }
  if (newest == nullptr) {
    if (others_.size() < kMaxOthers) others_.push_back(named_text(*failure));
    return;
  }
  InjectedFault& named = cause != nullptr ? *cause : *newest;
  named.verdict =
      cause != nullptr ? InjectedFault::Verdict::kCorrect : InjectedFault::Verdict::kWrong;
  named.named_as = named_text(*failure);
  if (named.named_ns == 0) named.named_ns = now_ns;
}

std::optional<NamedFailure> named_failure(const WorkerEnd* first, const LauncherEnd& reason) {
  NamedFailure failure;
  if (first != nullptr) {
    failure.rank = first->rank;
    failure.host = first->host;
    failure.status = first->status;
    failure.text = first->stderr_tail;
    return failure;
  }
  failure.host = reason.diagnostic.where;
  failure.text = reason.diagnostic.cause;
  if (reason.reason == LauncherReason::kHostLost) failure.kind = Kind::kHost;
  if (reason.reason == LauncherReason::kSupervisorLost) failure.kind = Kind::kSupervisor;
  if (reason.reason == LauncherReason::kStalled) failure.kind = Kind::kStall;
  if (failure.kind == Kind::kRank) return std::nullopt;
  return failure;
}

std::string correctness_text(const InjectedFault& fault) {
  if (!fault.failure.empty()) return "not injected: " + fault.failure;
  switch (fault.verdict) {
    case InjectedFault::Verdict::kCorrect:
      return "yes";
    case InjectedFault::Verdict::kWrong:
      return "no: " + fault.named_as;
    case InjectedFault::Verdict::kOpen:
      return fault.must_be_named() ? "no: not named" : "-";
  }
  return "";
}

std::string FaultLog::table(bool has_steps) const {
  if (faults_.empty()) return "";
  std::vector<TextRow> rows;
  rows.push_back({"#", "fault", "at s", "target", "named after s", "recovered after s",
                  "steps lost", "named correctly"});
  std::size_t named_wrongly = 0;
  for (const InjectedFault& fault : faults_) {
    const std::string correct = correctness_text(fault);
    if (correct.starts_with("no:")) ++named_wrongly;
    rows.push_back({std::to_string(fault.number), std::string(fault_name(fault.fault)),
                    number_text(fault.at_s, "%.1f"), fault.target,
                    seconds_between(fault.at_ns, fault.named_ns),
                    seconds_between(fault.at_ns, fault.recovered_ns),
                    fault.steps_lost ? number_text(*fault.steps_lost, "%.15g") : "-", correct});
  }
  if (!has_steps)
    for (TextRow& row : rows) row.erase(row.end() - 2);
  std::string text = "drill: " + counted(faults_.size(), "fault") + ", " +
                     std::to_string(named_wrongly) + " named wrongly or not at all\n" +
                     text_columns(rows);
  for (const std::string& other : others_)
    text += "  a failure that the drill did not cause: " + other + "\n";
  return text;
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/rank_rows.h"

#include <cstdio>

#include "launcher/hang/stack_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Returns the operation that the rank has been in for the longest time, which is the one that it
// waits in.
std::string operation_of(const RankOperations& rank) {
  const OperationState* oldest = nullptr;
  for (const OperationState& state : rank.running())
    if (oldest == nullptr || state.age_ms() > oldest->age_ms()) oldest = &state;
  if (oldest == nullptr) return {};
  char age[32];
  std::snprintf(age, sizeof age, " for %.1f s", static_cast<double>(oldest->age_ms()) / 1e3);
  return name_of_operation(*oldest) + age;
}

std::string state_of(const WorkerRecord& worker) {
  if (worker.ended) return describe(worker.end.status);
  return worker.end.pid == 0 ? "starting" : "running";
}

// Returns the row of a rank; null if the job does not have it. A host sent the number, which may be
// negative as an int.
ctl::RankRow* row_of(std::uint32_t rank, ctl::RanksDescription& out) {
  const bool is_known = rank < static_cast<std::uint32_t>(out.ranks_size());
  return is_known ? out.mutable_ranks(static_cast<int>(rank)) : nullptr;
}

void add_answers(const std::vector<HostOperations>& answers, ctl::RanksDescription& out) {
  for (const HostOperations& answer : answers) {
    for (const RankUsage& usage : answer.operations.usage()) {
      ctl::RankRow* const found = row_of(usage.rank(), out);
      if (found == nullptr) continue;
      ctl::RankRow& row = *found;
      row.set_has_usage(true);
      row.set_cpu_ms(usage.cpu_ms());
      row.set_sampled_ns(answer.operations.sampled_ns());
      row.set_memory_bytes(usage.memory_bytes());
      row.set_processes(usage.processes());
      row.set_devices(usage.devices());
      row.set_device_bytes(usage.device_bytes());
      row.set_device_percent(usage.device_percent());
    }
    for (const RankOperations& rank : answer.operations.ranks())
      if (ctl::RankRow* const row = row_of(rank.rank(), out); row != nullptr)
        row->set_operation(operation_of(rank));
  }
}

// Returns the collective that the process is in, or else its innermost Python line: "step
// (train.py:12)".
std::string stack_of(const RankEvidence& rank) {
  const std::vector<StackThread> threads = parse_stack(rank.tool(), rank.stack());
  if (threads.empty() || threads.front().name != "main thread") return {};
  const std::string collective = collective_of(threads.front());
  return collective.empty() ? threads.front().frames.front() : collective;
}

}  // namespace

void add_places(const HostEvidence& evidence, ctl::RanksDescription& out) {
  for (const RankEvidence& rank : evidence.ranks()) {
    ctl::RankRow* const row = row_of(rank.rank(), out);
    if (row != nullptr && row->operation().empty()) row->set_operation(stack_of(rank));
  }
}

void add_rank_rows(const JobWorkers& workers, const std::vector<HostOperations>& answers,
                   std::int64_t now_ns, ctl::RanksDescription& out) {
  for (const WorkerRecord& worker : workers) {
    ctl::RankRow& row = *out.add_ranks();
    row.set_rank(static_cast<std::uint32_t>(worker.end.rank));
    row.set_host(worker.end.host);
    row.set_pid(worker.end.pid);
    row.set_state(state_of(worker));
    const bool has_printed = worker.last_output_ns != 0;
    row.set_output_age_ms(has_printed ? (now_ns - worker.last_output_ns) / 1'000'000 : -1);
  }
  add_answers(answers, out);
}

std::optional<double> cpu_percent(const ctl::RankRow& before, const ctl::RankRow& now) {
  if (!before.has_usage() || !now.has_usage() || before.pid() != now.pid()) return std::nullopt;
  if (now.sampled_ns() <= before.sampled_ns()) return std::nullopt;
  // The usage of a child may be missing for a moment when the child exits.
  if (now.cpu_ms() <= before.cpu_ms()) return 0;
  return 100e6 * static_cast<double>(now.cpu_ms() - before.cpu_ms()) /
         static_cast<double>(now.sampled_ns() - before.sampled_ns());
}

std::string output_age_text(std::int64_t age_ms) {
  if (age_ms < 0) return "never";
  if (age_ms >= 60'000) return clock_text(age_ms / 1000) + " ago";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s ago", static_cast<double>(age_ms) / 1e3);
  return text;
}

}  // namespace ivy

// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/transport_kind.h"

#include <algorithm>
#include <iterator>

#include "proto/contract/limits.h"

namespace ivy {
namespace {

struct ChoiceRow {
  std::string_view word;
  bool ignores_allocation = false;
  bool needs_permission = false;
};

// In the order of the enumeration. option_table.cc has the help for users.
constexpr ChoiceRow kChoices[] = {
    {.word = "auto"},
    {.word = "local", .ignores_allocation = true},
    {.word = "agent", .ignores_allocation = true, .needs_permission = true},
    {.word = "ssh", .ignores_allocation = true, .needs_permission = true},
    {.word = "slurm", .needs_permission = true},
    {.word = "exec", .ignores_allocation = true, .needs_permission = true},
};

static_assert(std::size(kChoices) == static_cast<std::size_t>(TransportChoice::kExec) + 1);

const ChoiceRow& row_of(TransportChoice choice) {
  return kChoices[static_cast<std::size_t>(choice)];
}

struct TransportRow {
  std::string_view name;
  std::chrono::milliseconds attended_lease = kLeaseAttended;
  std::chrono::milliseconds unattended_lease = kLeaseUnattended;
};

// In the order of the enumeration. A transport may have separate default leases.
constexpr TransportRow kRows[] = {{"local"},      {"ssh"}, {"OpenSSH client"}, {"agent"}, {"srun"},
                                  {"own ivyrun"}, {"exec"}};

static_assert(std::size(kRows) == static_cast<std::size_t>(Transport::kExec) + 1);

const TransportRow& row_of(Transport transport) {
  return kRows[static_cast<std::size_t>(transport)];
}

}  // namespace

std::vector<std::pair<std::string, TransportChoice>> transport_choices() {
  std::vector<std::pair<std::string, TransportChoice>> choices;
  for (const ChoiceRow& row : kChoices)
    choices.emplace_back(row.word, static_cast<TransportChoice>(choices.size()));
  return choices;
}

std::string transport_name(TransportChoice choice) { return std::string(row_of(choice).word); }

bool ignores_allocation(TransportChoice choice) { return row_of(choice).ignores_allocation; }

bool needs_permission(TransportChoice choice) { return row_of(choice).needs_permission; }

std::vector<std::string> policy_words() {
  std::vector<std::string> words;
  for (const ChoiceRow& row : kChoices) {
    if (row.needs_permission) words.emplace_back(row.word);
  }
  words.emplace_back("join");
  return words;
}

std::string transport_name(Transport transport) { return std::string(row_of(transport).name); }

std::chrono::milliseconds default_lease(Transport transport, bool is_attended) {
  const TransportRow& row = row_of(transport);
  return is_attended ? row.attended_lease : row.unattended_lease;
}

std::chrono::milliseconds dial_back_silence(Transport transport,
                                            std::optional<std::chrono::milliseconds> lease) {
  const std::chrono::milliseconds shortest = default_lease(transport, true);
  return std::min(shortest, lease.value_or(shortest)) / 2;
}

Transport transport_named(std::string_view name) {
  const auto found = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const TransportRow& row) { return row.name == name; });
  if (found == std::end(kRows)) return Transport::kSsh;
  return static_cast<Transport>(found - std::begin(kRows));
}

}  // namespace ivy

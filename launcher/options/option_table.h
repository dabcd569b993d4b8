// SPDX-License-Identifier: Apache-2.0
// The single table of flags, from which the parser, the help (option_help.h) and the suggestions
// are built. Pure; thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ivy {

enum class OptionGroup : std::uint8_t {
  kPlacement,
  kCommand,
  kOutput,
  kLifecycle,
  kNetwork,
  kDiagnosis
};

enum class OptionKind : std::uint8_t {
  kHonoured,  // Works as documented; listed in the help.
  kIgnored,   // Another launcher's flag that changes nothing here: accepted, with a note.
  kRejected,  // Another launcher's flag that does not exist here: rejected, with the alternative.
};

// The launcher that defines a flag: torchrun's flags also take their default from PET_<NAME>.
enum class OptionOrigin : std::uint8_t { kIvyrun, kTorchrun };

struct OptionEntry {
  std::string_view name;     // Canonical, with '-' and without the two leading dashes.
  std::string_view aliases;  // Other spellings, blank-separated; "-l=rank" implies a value.
  std::string_view value;    // Name of its value in the help, "N" if a number; empty for a switch.
  OptionGroup group;
  OptionKind kind;
  OptionOrigin origin;
  std::string_view text;  // Help, note, or alternative. An ignored flag without text has no note.
  // A value that may be attached to this switch with '=': "json", or a name in capitals for any
  // text.
  std::string_view joined_value = {};
};

std::span<const OptionEntry> option_table();

struct OptionSpelling {
  const OptionEntry* entry = nullptr;
  // If not empty, this spelling is a switch that implies the value.
  std::string_view implied_value;

  bool takes_value() const { return implied_value.empty() && !entry->value.empty(); }
};

// Finds an option as typed, with its dashes and without "=value". '_' and '-' are equivalent.
std::optional<OptionSpelling> find_option(std::string_view typed);

// Returns the known spelling nearest to a mistyped one, with dashes; empty if none is similar.
std::string nearest_option(std::string_view typed);

}  // namespace ivy

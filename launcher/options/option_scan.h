// SPDX-License-Identifier: Apache-2.0
// The first steps of parsing a command line: from argv to settings, then defaults from the
// environment, and other launchers' flags. Pure; thread: any. Errors are InvalidArgument and name
// the flag as it was typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/option_table.h"
#include "launcher/options/option_types.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Setting {
  const OptionEntry* entry = nullptr;
  std::string value;          // "true" for a switch.
  std::string spelling;       // As the user wrote it: "--npernode", "IVY_NNODES".
  bool is_next_word = false;  // The value was a separate word: "-n 4", not "-n4".
  std::string origin = {};    // "IVY_NNODES", "/etc/ivyrun/config.toml:3"; empty if it was typed.
};

// A switch that was explicitly turned off.
struct SwitchedOff {
  const OptionEntry* entry = nullptr;
  std::string origin;
};

struct Scanned {
  std::vector<Setting> settings;     // In the order in which they were typed.
  std::vector<std::string> command;  // The program and its arguments, byte for byte.
  bool is_command_marked = false;    // The user wrote "--" before the command.
  std::vector<SwitchedOff> switched_off;
  // Transports of config files, those of the file that counts most first.
  std::vector<NamedCommand> transports;

  // Returns true if weaker sources are ignored for this flag. Flags that name hosts count as one,
  // and so do --transport and --exec.
  bool decides(const OptionEntry& entry) const;
};

// Returns true if `text` may be attached to a switch with '=': "json" with --dry-run[=json]; a name
// in capitals allows any text.
bool is_joinable(std::string_view wanted, std::string_view text);

// arguments: argv without argv[0]. Flags end at the first word that is not a flag, or after "--". A
// long name may have a single dash ("-nproc_per_node 2"). Errors about unknown flags name the
// nearest known one.
Result<Scanned> scan_command_line(const std::vector<std::string>& arguments);

// Adds IVY_<FLAG> and, for torchrun's flags, PET_<FLAG>. IVY_* takes precedence over PET_*; a typed
// flag, or another typed source of hosts, takes precedence over both.
Result<void> add_defaults(const Environment& environment, Scanned& scanned);

// Adds a note for each IVY_* variable of the caller that no ivyrun program reads.
void note_unknown_variables(const Environment& environment, std::vector<std::string>& notes);

// Removes flags that have no effect, with a note, or returns an error that says what to do instead.
Result<void> drop_flags_without_effect(Scanned& scanned, std::vector<std::string>& notes);

}  // namespace ivy

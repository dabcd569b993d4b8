// SPDX-License-Identifier: Apache-2.0
// The first steps of a command line: argv to settings, defaults of the environment, and the flags
// of other launchers. Pure; thread: any. Errors are InvalidArgument and name the flag as it was
// typed.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/option_table.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Setting {
  const OptionEntry* entry = nullptr;
  std::string value;          // A switch has the value "true".
  std::string shown;          // As the user wrote it: "--npernode", "IVY_NNODES".
  bool is_next_word = false;  // The value was a word of its own: "-n 4", not "-n4".
  std::string origin = {};    // "IVY_NNODES", "/etc/ivyrun/config.toml:3"; empty: it was typed.
};

// A switch that is explicitly off.
struct SwitchedOff {
  const OptionEntry* entry = nullptr;
  std::string origin;
};

struct Scanned {
  std::vector<Setting> settings;     // In the order of typing.
  std::vector<std::string> command;  // The program and its arguments, byte for byte.
  bool is_command_marked = false;    // The user wrote "--" before the command.
  std::vector<SwitchedOff> switched_off;

  // True if a weaker source has nothing to say about this flag any more. Flags that name hosts
  // decide together.
  bool decides(const OptionEntry& entry) const;
};

// arguments: argv without argv[0]. Flags end at the first word that is not a flag, or after "--". A
// long name may have one dash ("-nproc_per_node 2"). Unknown flags are errors with the nearest
// right one.
Result<Scanned> scan_command_line(const std::vector<std::string>& arguments);

// Adds IVY_<FLAG> and, for torchrun's flags, PET_<FLAG>. IVY_* counts more than PET_*; a typed
// flag, or another typed source of hosts, counts more than both.
Result<void> add_defaults(const Environment& environment, Scanned& scanned);

// Adds a note for each IVY_* of the caller's environment that no program of ours reads.
void note_unknown_variables(const Environment& environment, std::vector<std::string>& notes);

// Removes what is not honoured: with a note, or as an error that says what to do instead.
Result<void> sort_out(Scanned& scanned, std::vector<std::string>& notes);

}  // namespace ivy

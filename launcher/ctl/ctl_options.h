// SPDX-License-Identifier: Apache-2.0
// ivyctl's command line. CLI11 is used only in the source. Thread: any.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "proto/contract/status.h"

namespace ivy {

struct CtlOptions {
  // Of several verbs.
  std::string job;  // The start of a job's id, or its name; empty: the only job. explain: an id.
  ShowRanks ranks;
  bool json = false;
  std::string hosts;  // -H: queries the agents of these hosts; empty: this host only.
  // ps
  bool all = false;        // Also finished jobs.
  bool all_hosts = false;  // Every host of this host's jobs.
  // logs and attach
  bool follow = false;
  std::string label = "auto";
  ColorChoice color = ColorChoice::kAuto;
  int tail_lines = 10;
  // signal and stop
  int signal = 0;
  bool now = false;
  std::optional<std::chrono::milliseconds> grace;
  // top, stack, config, doctor
  bool once = false;
  bool native = false;
  bool origin = false;
  std::string config_file;
  std::vector<std::string> words;  // All arguments after the verb.
};

// The action for a command line: run a verb, or print a text and exit.
struct ParsedCtl {
  CtlOptions options;
  int (*run)(const CtlOptions& options) = nullptr;
  std::string text_to_print;
  int exit_code = 0;
};

// arguments: argv without argv[0]. The message of InvalidArgument contains the word and the nearest
// correct one.
Result<ParsedCtl> parse_ctl_command_line(const std::vector<std::string>& arguments);

}  // namespace ivy

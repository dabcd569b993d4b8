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
  std::string
      job;  // The start of a job's id, or its name; empty: the only job. For explain, a message id.
  // Flags of `ps`.
  bool json = false;  // Also of other verbs.
  bool all = false;   // Also finished jobs.
  std::string hosts;  // -H, also of stop: queries the agents of these hosts; empty: this host only.
  bool all_hosts = false;  // Every host of this host's jobs.
  // Flags of `logs` and `attach`; `ranks` also of other verbs.
  bool follow = false;
  ShowRanks ranks;
  std::string label = "auto";
  ColorChoice color = ColorChoice::kAuto;
  int tail_lines = 10;
  bool once = false;               // top.
  std::vector<std::string> words;  // doctor: all arguments after the verb.
  bool native = false;             // stack.
  bool origin = false;             // config.
  std::string config_file;         // config.
  // Flags of `signal` and `stop`.
  int signal = 0;
  bool now = false;
  std::optional<std::chrono::milliseconds> grace;
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

// SPDX-License-Identifier: Apache-2.0
// ivyrun's help, made from the table of flags. Thread: any.
#pragma once

#include <string>

#include "proto/contract/status.h"
#include "proto/pages/command_page.h"

namespace ivy {

// Twelve lines with two examples, for a call without arguments.
std::string short_help();

// For help, completions and the documentation.
CommandPage ivyrun_page();

// --help TOPIC. "all", a topic, or a flag; empty: common flags. NotFound names the topics.
Result<std::string> help_about(const std::string& topic);

// --generate FORM: markdown, bash, zsh, fish, and coming-from for the page about other launchers'
// flags.
Result<std::string> generated_text(const std::string& form);

}  // namespace ivy
